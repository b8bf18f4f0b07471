"""Decode Falcon's own objects from bytes, and define what all kinds of objects share.

Fields that are not needed are not decoded; fields that are missing have their default. Pods and nodes are Kubernetes'
own and always decode (``pods``, ``nodes``). A TrainingJob or WarmPool may hold what a newer CRD allows and this version
does not know. Such an object is :class:`Unreadable`: its condition names the problem, and no other object is affected.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from falcon_operator.api.common import API_VERSION, ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobStatus
from falcon_operator.api.warmpool import WarmPool, WarmPoolStatus

Custom = TypeVar("Custom", TrainingJob, WarmPool)


class Unreadable(Exception):  # noqa: N818 - a state of an object
    """The error of a Falcon object that this version cannot decode; the message names the field."""

    def __init__(self, metadata: ObjectMeta, problem: str) -> None:
        super().__init__(problem)
        self.metadata = metadata
        self.problem = problem

    @property
    def name(self) -> str:
        """Return ``namespace/name``; for an object without a namespace, its name."""
        return "/".join(part for part in (self.metadata.namespace, self.metadata.name) if part)


class Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A base class: the API's camelCase names; unknown fields are ignored."""


class Condition(Fields, frozen=True, kw_only=True):
    """A condition of a pod or a node."""

    type: str
    status: str = "Unknown"
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None  # of a node's alone


class ListMeta(Fields, frozen=True, kw_only=True):
    """What a list or a bookmark says of itself."""

    resource_version: str = "0"
    continue_: str = msgspec.field(name="continue", default="")  # the token of the next page; "" on the last page


class Page(Fields, frozen=True, kw_only=True):
    """A page of a list. Its objects are not decoded yet: an object that does not decode must not spoil the others."""

    items: list[msgspec.Raw]
    metadata: ListMeta = ListMeta()


class _AnyObject(Fields, frozen=True, kw_only=True):
    metadata: ObjectMeta


_any = msgspec.json.Decoder(_AnyObject)
_page = msgspec.json.Decoder(Page)


def page(data: bytes) -> Page:
    return _page.decode(data)


def uid(data: bytes) -> str:
    """Return an object's uid."""
    return _any.decode(data).metadata.uid


def custom(data: bytes | msgspec.Raw, type_: type[Custom]) -> Custom:
    """Decode a TrainingJob or WarmPool. Raises :class:`Unreadable` when this version cannot decode it."""
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.MsgspecError as error:
        raise Unreadable(_any.decode(data).metadata, str(error)) from None


def with_status(kind: str, of: TrainingJob | WarmPool, status: TrainingJobStatus | WarmPoolStatus) -> dict[str, Any]:
    """Build the body that replaces an object's status under the object's resourceVersion."""
    meta = of.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            **({"namespace": meta.namespace} if meta.namespace else {}),
        },
        "spec": msgspec.to_builtins(of.spec),  # required by the schema, ignored by the server
        "status": msgspec.to_builtins(status),
    }


class JobSketch(msgspec.Struct, frozen=True, kw_only=True):
    """The few facts known of any TrainingJob, also of one that does not decode."""

    namespace: str
    name: str
    uid: str
    over: bool = False  # it has succeeded or failed for good
    pool: str = ""  # the WarmPool that it names


def sketch(body: Any) -> JobSketch:
    """Build a job's sketch from a decoded body, whatever the body holds."""
    metadata = _dict(_dict(body).get("metadata"))
    spec, status = _dict(_dict(body).get("spec")), _dict(_dict(body).get("status"))
    return JobSketch(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        over=bool(status.get("completionTime")),
        pool=str(_dict(spec.get("warmPoolRef")).get("name", "")),
    )


def run_nodes(body: Any) -> frozenset[str]:
    """Return the nodes of a TrainingRun's members, from a decoded body, whatever the body holds."""
    members = _dict(_dict(body).get("spec")).get("members")
    known = members if isinstance(members, list) else []
    return frozenset(str(node) for member in known if (node := _dict(member).get("node")))


UNREADABLE = "Unreadable"


def mark_unreadable(body: dict[str, Any], problem: str, now: float) -> bool:
    """Set condition Ready to False in a decoded body. Return whether that changed the body."""
    status = body.setdefault("status", {})
    known: list[dict[str, Any]] = status.get("conditions") or []
    conditions = [condition for condition in known if condition.get("type") != "Ready"]
    before: dict[str, Any] = next((condition for condition in known if condition.get("type") == "Ready"), {})
    message = (
        f"this version of the operator cannot read the object: {problem}; correct the field, or bring operator and CRDs"
        " to the same version"
    )
    # An equal condition is not written again: each write would cause an event, and the event another look.
    if before.get("reason") == UNREADABLE and before.get("message") == message:
        return False
    stamp = dt.datetime.fromtimestamp(int(now), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": UNREADABLE,
        "message": message,
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == "False" else stamp,
        "observedGeneration": body["metadata"].get("generation", 0),
    }
    status["conditions"] = [*conditions, ready]
    return True


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def unix(stamp: str | None) -> float:
    """Convert an RFC 3339 time to Unix seconds; 0 for an empty one."""
    return dt.datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
