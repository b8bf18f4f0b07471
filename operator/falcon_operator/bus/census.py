"""Determine which gateways exist, from two sources.

etcd names a gateway as long as its lease lasts; while etcd is away its last word holds. The API server names the
gateways' pods, and says which of them are ready. Their names are the gateways' ids. So an operator that starts while
etcd is away finds the gateways all the same, and a gateway that dies meanwhile is not waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec


class Registration(msgspec.Struct, frozen=True):
    """The value of a gateway's key: where the operator reaches it, and when its process began (unix ns)."""

    operator: str
    incarnation: int


class GatewayPod(msgspec.Struct, frozen=True):
    """A gateway's pod. ``address``: where the operator reaches it, host:port; "" before the pod has an address.

    ``ready``: its readiness probe passes, its node is well, and it is not being deleted.
    """

    name: str
    address: str
    ready: bool


Pods = Mapping[str, GatewayPod]  # by name


def read_registration(value: bytes) -> Registration | None:
    """Read the value of a gateway's key; None for one that another release has written."""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(value, type=Registration)
    return None


def addresses(registered: Mapping[str, Registration], pods: Pods | None) -> dict[str, str]:
    """Return the gateways to which a stream is worth a try, with their addresses.

    A pod that is not ready is one of them: a gateway that starts while etcd is away becomes ready by that stream.
    """
    found = {gateway: registration.operator for gateway, registration in registered.items()}
    return found | {name: pod.address for name, pod in (pods or {}).items() if pod.address}


def awaited(registered: Mapping[str, Registration], pods: Pods | None) -> frozenset[str]:
    """Return the gateways whose streams have to answer before the streams alone make a session whole.

    They are those whose pods are ready. A registered gateway whose pod is gone, or not ready, is dead or about to end:
    its agents move to the others, and those that do not are unknown, like those of any lost gateway. Before the pods
    have been listed (None), all registered gateways count.
    """
    if pods is None:
        return frozenset(registered)
    return frozenset(name for name, pod in pods.items() if pod.ready)
