"""Read and write the election's Lease in the API server."""

from __future__ import annotations

import msgspec

from falcon_operator.base.ports import LEASE_NAME, Holder
from falcon_operator.cluster.transport import Transport, path_of

_API = "coordination.k8s.io/v1"


class _Meta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str = ""


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None


class _Lease(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Meta
    spec: _Spec = _Spec()


class KubeLeases:
    """An implementation of ``election.Leases``."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self._http = transport
        self._namespace = namespace

    async def read(self) -> Holder:
        return _holder(await self._http.call("GET", self._path(LEASE_NAME), guarded=False))

    async def create(self, holder: Holder) -> Holder:
        return _holder(await self._http.call("POST", self._path(), body=self._body(holder), guarded=False))

    async def replace(self, holder: Holder) -> Holder:
        return _holder(await self._http.call("PUT", self._path(LEASE_NAME), body=self._body(holder), guarded=False))

    def _path(self, name: str = "") -> str:
        return path_of(_API, "leases", self._namespace, name)

    def _body(self, holder: Holder) -> dict[str, object]:
        metadata = {"name": LEASE_NAME, "namespace": self._namespace}
        # Without the version that was read, the write would overrule a replica that took the lease meanwhile.
        if holder.resource_version:
            metadata["resourceVersion"] = holder.resource_version
        return {
            "apiVersion": _API,
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder.identity,
                "leaseTransitions": holder.transitions,
                "leaseDurationSeconds": holder.lease_seconds,
                "renewTime": holder.renewed or None,
                "acquireTime": holder.acquired or None,
            },
        }


def _holder(data: bytes) -> Holder:
    lease = msgspec.json.decode(data, type=_Lease)
    spec = lease.spec
    return Holder(
        identity=spec.holder_identity or "",
        transitions=spec.lease_transitions or 0,
        lease_seconds=spec.lease_duration_seconds or 1,
        renewed=spec.renew_time or "",
        acquired=spec.acquire_time or "",
        resource_version=lease.metadata.resource_version,
    )
