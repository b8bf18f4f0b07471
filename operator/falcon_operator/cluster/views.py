"""Views of the API server's objects, decoded from bytes. Pure.

Fields that are not needed are not decoded; fields that are missing have their default. Pods and nodes are Kubernetes'
own and always decode. A TrainingJob or WarmPool may hold what a newer CRD allows and this version does not know. Such
an object is :class:`Unreadable`: its condition names the problem, and no other object is affected.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from falcon_operator.api import LABEL_ROLE, ObjectMeta, TrainingJob, WarmPool
from falcon_operator.ports import ContainerView, NodeTaint, NodeView, Occupant, PodView

T = TypeVar("T")
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


class _Raw(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A base class: the API's camelCase names; unknown fields are ignored."""


class _Condition(_Raw, frozen=True, kw_only=True):
    type: str
    status: str = "Unknown"
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class _Terminated(_Raw, frozen=True, kw_only=True):
    exit_code: int = 0
    reason: str | None = None
    message: str | None = None


class _Waiting(_Raw, frozen=True, kw_only=True):
    reason: str | None = None
    message: str | None = None


class _State(_Raw, frozen=True, kw_only=True):
    running: dict[str, Any] | None = None
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None


class _ContainerStatus(_Raw, frozen=True, kw_only=True):
    name: str
    ready: bool = False
    restart_count: int = 0
    state: _State | None = None


class _Metadata(_Raw, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _OwnerReference(_Raw, frozen=True, kw_only=True):
    kind: str = ""
    controller: bool | None = None


class _OccupantMetadata(_Raw, frozen=True, kw_only=True):
    name: str
    namespace: str
    labels: dict[str, str] | None = None
    owner_references: list[_OwnerReference] | None = None


class _Requesting(_Raw, frozen=True, kw_only=True):
    requests: dict[str, Any] | None = None


class _Resourceful(_Raw, frozen=True, kw_only=True):
    """A container, or the pod as a whole."""

    resources: _Requesting | None = None


class _OccupantSpec(_Resourceful, frozen=True, kw_only=True):
    containers: list[_Resourceful] = []
    init_containers: list[_Resourceful] | None = None


class _Occupant(_Raw, frozen=True, kw_only=True):
    metadata: _OccupantMetadata
    spec: _OccupantSpec = _OccupantSpec()


class _PodSpec(_Raw, frozen=True, kw_only=True):
    node_name: str | None = None


class _PodStatus(_Raw, frozen=True, kw_only=True):
    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(_Raw, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class Taint(_Raw, frozen=True, kw_only=True, omit_defaults=True):
    """A corev1.Taint."""

    key: str
    effect: str
    value: str | None = None
    time_added: str | None = None


class _NodeSpec(_Raw, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class _NodeStatus(_Raw, frozen=True, kw_only=True):
    conditions: list[_Condition] | None = None


class NodeObject(_Raw, frozen=True, kw_only=True):
    """A node as far as the operator reads it. Its taints are complete, since they are written back."""

    metadata: _Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class _List(_Raw, Generic[T], frozen=True, kw_only=True):
    items: list[T]


class _ListMeta(_Raw, frozen=True, kw_only=True):
    continue_: str = msgspec.field(name="continue", default="")


class _Page(_Raw, frozen=True, kw_only=True):
    metadata: _ListMeta = _ListMeta()


class _AnyObject(_Raw, frozen=True, kw_only=True):
    metadata: ObjectMeta


_pods = msgspec.json.Decoder(_List[_Pod])
_pod = msgspec.json.Decoder(_Pod)
_occupants = msgspec.json.Decoder(_List[_Occupant])
_nodes = msgspec.json.Decoder(_List[NodeObject])
_node = msgspec.json.Decoder(NodeObject)
_raws = msgspec.json.Decoder(_List[msgspec.Raw])
_any = msgspec.json.Decoder(_AnyObject)
_page = msgspec.json.Decoder(_Page)


def continue_token(data: bytes) -> str:
    """Return the token of a list's next page; "" for the last page."""
    return _page.decode(data).metadata.continue_


def items(data: bytes) -> list[msgspec.Raw]:
    """Return a list's objects, not decoded yet: an object that does not decode must not spoil the others."""
    return _raws.decode(data).items


def custom(data: bytes | msgspec.Raw, type_: type[Custom]) -> Custom:
    """Decode a TrainingJob or WarmPool. Raises :class:`Unreadable` when this version cannot decode it."""
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.MsgspecError as error:
        raise Unreadable(_any.decode(data).metadata, str(error)) from None


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


def pod(data: bytes) -> PodView:
    return _pod_view(_pod.decode(data))


def pods(data: bytes) -> list[PodView]:
    return [_pod_view(pod) for pod in _pods.decode(data).items]


def occupants(data: bytes) -> list[Occupant]:
    """Decode a list of pods into a node's occupants."""
    return [_occupant(pod) for pod in _occupants.decode(data).items]


def _occupant(pod: _Occupant) -> Occupant:
    meta, spec = pod.metadata, pod.spec
    parts = [spec, *spec.containers, *(spec.init_containers or [])]
    return Occupant(
        namespace=meta.namespace,
        name=meta.name,
        role=(meta.labels or {}).get(LABEL_ROLE, ""),
        owner=next((owner.kind for owner in meta.owner_references or [] if owner.controller), ""),
        requests=any(part.resources is not None and part.resources.requests for part in parts),
    )


def node_object(data: bytes) -> NodeObject:
    return _node.decode(data)


def node_objects(data: bytes) -> list[NodeObject]:
    return _nodes.decode(data).items


def node_from_body(body: Any) -> NodeObject:
    """Build a node from an event's body, which is decoded already."""
    return msgspec.convert(body, NodeObject, strict=False)


def node_view(node: NodeObject) -> NodeView:
    conditions = {condition.type: condition for condition in node.status.conditions or []}
    ready = conditions.get("Ready")
    hard = tuple(
        NodeTaint(key=taint.key, value=taint.value or "", effect=taint.effect)
        for taint in node.spec.taints or []
        if taint.effect in ("NoSchedule", "NoExecute")
    )
    return NodeView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        ready=ready is not None and ready.status == "True",
        ready_changed_unix=unix(ready.last_transition_time) if ready else 0.0,
        unschedulable=node.spec.unschedulable,
        labels=node.metadata.labels or {},
        taints={taint.key: taint.value for taint in hard},
        hard_taints=hard,
        conditions={name: condition.status for name, condition in conditions.items()},
    )


def unix(stamp: str | None) -> float:
    """Convert an RFC 3339 time to Unix seconds; 0 for an empty one."""
    return dt.datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _pod_view(pod: _Pod) -> PodView:
    meta, status = pod.metadata, pod.status
    conditions = {condition.type: condition for condition in status.conditions or []}
    scheduled = conditions.get("PodScheduled")
    disruption = conditions.get("DisruptionTarget")
    return PodView(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        node=pod.spec.node_name or "",
        pod_ip=status.pod_ip or "",
        phase=status.phase,
        reason=status.reason or "",
        message=status.message or "",
        deleting=meta.deletion_timestamp is not None,
        created_unix=unix(meta.creation_timestamp),
        unschedulable=(scheduled.message or scheduled.reason or "not scheduled yet")
        if scheduled is not None and scheduled.status == "False" and not pod.spec.node_name
        else "",
        disruption=(disruption.message or disruption.reason or "disrupted")
        if disruption is not None and disruption.status == "True"
        else "",
        containers={
            container.name: _container_view(container)
            for container in [*(status.init_container_statuses or []), *(status.container_statuses or [])]
        },
    )


def _container_view(container: _ContainerStatus) -> ContainerView:
    state = container.state or _State()
    ended, waiting = state.terminated, state.waiting
    return ContainerView(
        name=container.name,
        running=state.running is not None,
        ready=container.ready,
        restarts=container.restart_count,
        waiting_reason=(waiting.reason or "") if waiting else "",
        waiting_message=(waiting.message or "") if waiting else "",
        exit_code=ended.exit_code if ended else None,
        exit_reason=(ended.reason or "") if ended else "",
        exit_message=(ended.message or "") if ended else "",
    )
