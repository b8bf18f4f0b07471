"""Mirror the pods of the gateways in memory: they name the gateways while etcd is away.

They are in the operator's own namespace, where it may list and watch pods for its burn-ins already.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from falcon_operator.bus.census import GatewayPod
from falcon_operator.cluster.cache.mirror import Item, Mirror
from falcon_operator.cluster.cache.reflector import Interruption, Reflector, Server, uncounted
from falcon_operator.cluster.cache.views import Condition, Fields
from falcon_operator.cluster.transport import path_of

PORT = "operator"  # the name of the port in the gateway's container


class _Metadata(Fields, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = "0"
    deletion_timestamp: str | None = None


class _Port(Fields, frozen=True, kw_only=True):
    name: str = ""
    container_port: int = 0


class _Container(Fields, frozen=True, kw_only=True):
    ports: list[_Port] | None = None


class _Spec(Fields, frozen=True, kw_only=True):
    containers: list[_Container] | None = None


class _Status(Fields, frozen=True, kw_only=True):
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[Condition] | None = None


class _Pod(Fields, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_pod = msgspec.json.Decoder(_Pod)


def item(data: bytes | msgspec.Raw) -> Item[GatewayPod]:
    """Decode a gateway's pod."""
    pod = _pod.decode(data)
    meta, conditions = pod.metadata, pod.status.conditions or []
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in conditions)
    view = GatewayPod(meta.name, _address(pod), ready and meta.deletion_timestamp is None)
    return Item((meta.namespace, meta.name), int(meta.resource_version), view)


def _address(pod: _Pod) -> str:
    ports = [port for container in pod.spec.containers or [] for port in container.ports or []]
    numbers = [port.container_port for port in ports if port.name == PORT]
    host = pod.status.pod_ip
    if not numbers or not host:
        return ""
    # An IPv6 address needs brackets, or its last group would be read as the port.
    return f"[{host}]:{numbers[0]}" if ":" in host else f"{host}:{numbers[0]}"


class GatewayPods:
    """The pods that ``selector`` (labels, as the API server reads them) finds in a namespace."""

    def __init__(
        self,
        server: Server,
        namespace: str,
        selector: str,
        on_interruption: Callable[[str, Interruption], None] = uncounted,
    ) -> None:
        self._mirror: Mirror[GatewayPod] = Mirror()
        path = path_of("v1", "pods", namespace)
        self._reflector = Reflector(server, self._mirror, path, item, {"labelSelector": selector}, on_interruption)

    async def run(self) -> None:
        """Keep the pods current until cancelled."""
        await self._reflector.run()

    def known(self) -> dict[str, GatewayPod] | None:
        """Return the pods by name; None before they have been listed."""
        return {pod.name: pod for pod in self._mirror.views()} if self._mirror.synced else None
