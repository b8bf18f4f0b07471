"""Which rights the operator's calls need: each method of its clients is called once, and what it sends is written down.

The answers are made up, since only the requests count: an object that decodes as any of the kinds; or "not found"; or
"exists already", which some methods meet with a second call.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import inspect
import itertools
import types
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple
from unittest.mock import Mock

import msgspec

from falcon_core.errors.judge import platform_judge
from falcon_operator.api.common import API_VERSION, ObjectMeta
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.ports import NotFound, Occupant
from falcon_operator.cluster.cache.views import Unreadable
from falcon_operator.cluster.certificates.etcd_pods import EtcdPod, EtcdPods
from falcon_operator.cluster.certificates.webhook import WebhookCertificates
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.daemon_sets import DaemonSets
from falcon_operator.cluster.gateway_pods import GatewayPods
from falcon_operator.cluster.leases import KubeLeases
from falcon_operator.cluster.nodes import Breaker
from falcon_operator.cluster.secrets import CertificateStore
from falcon_operator.cluster.transport import AlreadyExists, Transport
from falcon_operator.runtime.definition_check import require_current
from falcon_operator.runtime.evictions import Evictions
from falcon_operator.runtime.handlers import registry_of

CALL_SECONDS = 0.2  # some methods go on until they are cancelled
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
OBJECT: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": "Any",
    "metadata": {"name": "x", "namespace": "n", "uid": "u", "resourceVersion": "1"},
    "spec": {
        "replicas": 1,
        "template": {},
        "nodeSelector": {},
        "taints": [{"key": "x", "effect": "NoSchedule", "value": "another"}],
    },
    "items": [],
    "webhooks": [{"name": "x", "clientConfig": {}}],
}
# As the operator writes it: the answers lack the label, and belong to the same job or to an earlier one.
MANIFEST: dict[str, Any] = {
    **OBJECT,
    "metadata": {
        **OBJECT["metadata"],
        "labels": {"a": "b"},
        "ownerReferences": [{"apiVersion": API_VERSION, "kind": "TrainingJob", "name": "x", "uid": "owner"}],
    },
}


class Right(NamedTuple):
    """A right that RBAC is asked for."""

    group: str
    resource: str  # with its subresource: "nodes", "trainingjobs/status"
    verb: str


class _Recorder:
    """In the transport's place."""

    def __init__(self, *, found: bool, exists: bool, owner: str) -> None:
        reference = {"apiVersion": API_VERSION, "kind": "TrainingJob", "name": "x", "uid": owner, "controller": True}
        self._answer = {**OBJECT, "metadata": {**OBJECT["metadata"], "ownerReferences": [reference]}}
        self._found = found
        self._exists = exists
        self.rights: set[Right] = set()

    async def call(self, method: str, path: str, **_: Any) -> bytes:
        self.rights |= rights_of(method, path)
        if method == "GET" and not self._found:
            raise NotFound(path)
        if method == "POST" and self._exists:
            raise AlreadyExists(path)
        return msgspec.json.encode(self._answer)

    async def lines(self, path: str, query: Mapping[str, str], silent_seconds: float) -> AsyncIterator[bytes]:
        """Take a watch, and end it as no API server would."""
        assert query["watch"], "the only requests whose answers have no end"
        self.rights |= {right._replace(verb="watch") for right in rights_of("GET", path)}
        raise RuntimeError("enough")
        yield b""


def rights_of(method: str, path: str) -> set[Right]:
    """Return the rights that one request needs."""
    api, *rest = path.strip("/").split("/")
    group = "" if api == "api" else rest.pop(0)
    del rest[0]  # the version
    if rest[0] == "namespaces":
        rest = rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    verb = ("get" if name else "list") if method == "GET" else VERBS[method]
    return {Right(group, f"{resource}/{subresource}" if subresource else resource, verb)}


def client_rights() -> set[Right]:
    """Return the rights for all that is done with jobs, pods, nodes and pools."""

    def client(transport: Any) -> KubeClient:
        breaker = Breaker(limit=2, window_seconds=60)
        return KubeClient(transport, SystemClock(), breaker, instance="x", namespace="n")

    # The client asks for the owners of the pods that it lists, and the made-up lists are empty.
    owners = asyncio.run(_rights(lambda transport: DaemonSets(transport, SystemClock())))
    return asyncio.run(_rights(client)) | owners


def own_rights() -> set[Right]:
    """Return the rights for what the operator keeps and reads in its own namespace: Lease, certificates, gateways."""
    leases = asyncio.run(_rights(lambda transport: KubeLeases(transport, "n")))
    gateways = asyncio.run(_rights(lambda transport: GatewayPods(transport, "n", "a=b")))
    secrets = asyncio.run(_rights(lambda transport: CertificateStore(transport, "n", "etcd", "falcon")))
    etcd = asyncio.run(_rights(lambda transport: EtcdPods(transport, "n", "a=b")))
    return leases | gateways | secrets | etcd


def webhook_rights() -> set[Right]:
    """Return the rights for the webhook's certificate, for its registration, and for what it judges by."""

    def evictions(http: Any) -> Evictions:
        return Evictions(http, lambda: True, (), platform_judge(""), SystemClock(), lambda _: None)

    certificates = _rights(lambda transport: WebhookCertificates(transport, "n", "falcon", ("a",), "falcon-webhook"))
    return asyncio.run(certificates) | asyncio.run(_rights(evictions))


def definition_rights() -> set[Right]:
    """Return the right for the check of TrainingRun's definition at the operator's start."""
    recorder = _Recorder(found=True, exists=False, owner="owner")
    with contextlib.suppress(KeyError):  # the answer is no definition
        asyncio.run(require_current(typing.cast(Transport, recorder)))
    return recorder.rights


def watch_rights() -> set[Right]:
    """Return the rights for kopf's watches."""
    handlers = registry_of(Mock(), Mock())._watching.get_all_handlers()
    selectors = [handler.selector for handler in handlers if handler.selector is not None]
    return {
        Right(selector.group or "", str(selector.any_name), verb)
        for selector in selectors
        for verb in ("list", "watch")
    }


async def _rights(make: Callable[[Any], Any]) -> set[Right]:
    rights: set[Right] = set()
    yes_and_no = (True, False)
    for found, exists, bare, owner in itertools.product(yes_and_no, yes_and_no, yes_and_no, ("owner", "earlier")):
        names = [name for name, value in inspect.getmembers(type(make(None)), inspect.isfunction) if name[0] != "_"]
        for name in names:
            recorder = _Recorder(found=found, exists=exists, owner=owner)
            # In a task of its own: before Python 3.11.4 a time-out around a TaskGroup spoils the task's next time-outs.
            await asyncio.create_task(_call(getattr(make(recorder), name), bare=bare))
            rights |= recorder.rights
    return rights


async def _call(method: Callable[..., Any], *, bare: bool) -> None:
    """Call the method with arguments made up from its annotations; what it does with the answers does not matter.

    ``bare``: None for each argument that may be None.
    """
    hints = typing.get_type_hints(method)
    hints.pop("return", None)
    signature = inspect.signature(method)
    given = {
        name: None if bare and types.NoneType in typing.get_args(kind) else _sample(kind)
        for name, kind in hints.items()
        if signature.parameters[name].default is inspect.Parameter.empty
    }
    try:
        async with asyncio.timeout(CALL_SECONDS):
            answer = method(**given)
            if inspect.isawaitable(answer):
                await answer
            elif isinstance(answer, AsyncIterator):
                [item async for item in answer]
    except Exception:  # noqa: BLE001, S110 - "not found", "exists already", no end, or a made-up answer that is too bare
        pass


def _sample(kind: Any) -> Any:
    samples: dict[Any, Any] = {
        str: "x",
        bool: False,
        int: 1,
        Any: OBJECT,
        dt.datetime: dt.datetime.now(dt.UTC),
        Occupant: Occupant(
            namespace="n", name="x", owner="DaemonSet", owner_api="apps/v1", owner_name="x", owner_uid="u"
        ),
        EtcdPod: EtcdPod("x", "u", 0.0),
        Unreadable: Unreadable(ObjectMeta(name="x", namespace="n"), "odd"),
    }
    if kind in samples:
        return samples[kind]
    options = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is tuple:
        return ()
    if origin is Callable:
        return lambda *_: None
    if origin is dict:
        return MANIFEST if options[1] is Any else {"a": "b"}
    if options:  # a union: the first will do
        return _sample(options[0])
    return msgspec.convert({**OBJECT, **OBJECT["metadata"], "identity": "x", "transitions": 0, "leaseSeconds": 1}, kind)
