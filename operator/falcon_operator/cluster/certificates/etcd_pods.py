"""List and delete the pods of the release's own etcd, whose members read their authorities at their start alone."""

from __future__ import annotations

import datetime as dt

import msgspec

from falcon_operator.base.ports import NotFound
from falcon_operator.cluster.cache.views import Fields
from falcon_operator.cluster.transport import Transport, path_of


class _Metadata(Fields, frozen=True, kw_only=True):
    name: str
    uid: str = ""
    creation_timestamp: dt.datetime
    deletion_timestamp: str | None = None


class _Status(Fields, frozen=True, kw_only=True):
    phase: str = ""


class _Pod(Fields, frozen=True, kw_only=True):
    metadata: _Metadata
    status: _Status = _Status()


class _Pods(Fields, frozen=True, kw_only=True):
    items: list[_Pod]


class EtcdPod(msgspec.Struct, frozen=True):
    """A member's pod."""

    name: str
    uid: str
    created_unix: float
    deleting: bool = False


class EtcdPods:
    """The pods that ``selector`` (labels, as the API server reads them) finds in a namespace."""

    def __init__(self, transport: Transport, namespace: str, selector: str) -> None:
        self._http = transport
        self._namespace = namespace
        self._selector = selector

    async def list(self) -> list[EtcdPod]:
        """Return the pods that have not ended. Raises OSError, Rejected."""
        path = path_of("v1", "pods", self._namespace)
        answer = await self._http.call("GET", path, query={"labelSelector": self._selector})
        # A Deployment leaves an evicted pod lying next to its successor.
        pods = msgspec.json.decode(answer, type=_Pods).items
        found = (pod.metadata for pod in pods if pod.status.phase not in ("Failed", "Succeeded"))
        return [
            EtcdPod(meta.name, meta.uid, meta.creation_timestamp.timestamp(), meta.deletion_timestamp is not None)
            for meta in found
        ]

    async def restart(self, pod: EtcdPod) -> None:
        """Delete the pod, whose Deployment or StatefulSet makes another. Raises OSError, Conflict, Rejected."""
        try:
            body = {"preconditions": {"uid": pod.uid}}
            await self._http.call("DELETE", path_of("v1", "pods", self._namespace, pod.name), body=body)
        except NotFound:
            return
