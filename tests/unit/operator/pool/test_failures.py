"""A look at a pool that cannot carry out what it wants says so on the pool."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec
import pytest

from falcon_operator.api.common import Condition
from falcon_operator.api.warmpool import WarmPool, WarmPoolStatus
from falcon_operator.base.ports import Conflict, Manifest, NodeView, NotFound, Occupant, PodView, Rejected, Unavailable
from falcon_operator.pool.reconciler import PoolReconciler
from falcon_operator.status.failures import FAILED
from tests.unit.operator.fake_clock import FakeClock
from tests.unit.operator.pool.pool_looks import SETTINGS, a_node, a_pool

ERRORS: dict[str, Exception] = {
    "Refused": Rejected("exceeded quota"),
    "Conflict": Conflict("modified"),
    "NotFound": NotFound("gone"),
    "ApiServerError": Unavailable("HTTP 500", 500),
    "InternalError": TypeError("of a bug"),
}


class Kube:
    """A pool of one node; the call ``broken`` fails with ``error``."""

    def __init__(self) -> None:
        self.pool = a_pool()
        self.pods: dict[str, PodView] = {}
        self.events: list[str] = []
        self.broken = ""
        self.error: Exception = Exception()

    def _may_fail(self, call: str) -> None:
        if self.broken == call:
            raise self.error

    async def get_pool(self, name: str) -> WarmPool | None:
        return self.pool

    async def write_pool_status(self, pool: WarmPool, status: WarmPoolStatus) -> WarmPool:
        self._may_fail("write_pool_status")
        self.pool = msgspec.structs.replace(pool, status=status)
        return self.pool

    async def nodes(self) -> Mapping[str, NodeView]:
        self._may_fail("nodes")
        return {"s1": a_node("s1")}

    async def list_pods(self, namespace: str, labels: dict[str, str]) -> list[PodView]:
        return list(self.pods.values())

    async def list_occupants(self, node: str) -> list[Occupant]:
        self._may_fail("list_occupants")
        return []

    def list_trainers(self) -> dict[str, list[Occupant]]:
        return {}

    async def create_pod(self, manifest: Manifest) -> PodView:
        self._may_fail("create_pod")
        name = manifest["metadata"]["name"]
        self.pods[name] = PodView(namespace="falcon-system", name=name, uid=name, labels=manifest["metadata"]["labels"])
        return self.pods[name]

    async def delete_pod(self, pod: PodView, grace_seconds: int | None = None) -> None:
        self.pods.pop(pod.name, None)

    async def taint_node(self, node: str, key: str, value: str) -> None:
        self._may_fail("taint_node")

    async def untaint_node(self, node: str, key: str, value: str | None = None) -> None: ...

    async def record_event(self, regarding: WarmPool, type_: str, reason: str, note: str) -> bool:
        self.events.append(reason)
        return True

    @property
    def failed(self) -> Condition | None:
        found = [each for each in self.pool.status.conditions if each.type == FAILED and each.status == "True"]
        return found[0] if found else None


async def nobody(uids: frozenset[str]) -> frozenset[str]:
    return frozenset()


async def looks(kube: Kube, pools: PoolReconciler, clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds):
        with contextlib.suppress(Exception):  # the queue logs it, and repeats the look
            await pools.reconcile("spares")
        clock.advance(1.0)


@pytest.mark.parametrize("reason", ERRORS)
@pytest.mark.parametrize("call", ["nodes", "list_occupants", "taint_node", "create_pod"])
async def test_what_fails_is_quoted_and_cleared(call: str, reason: str) -> None:
    kube, clock = Kube(), FakeClock()
    pools = PoolReconciler(kube, SETTINGS, clock, nobody)
    kube.broken, kube.error = call, ERRORS[reason]
    await looks(kube, pools, clock, 10)
    assert kube.failed is not None
    assert kube.failed.reason == reason
    assert str(ERRORS[reason]) in kube.failed.message
    assert kube.events.count(FAILED) == 1
    kube.broken = ""
    await looks(kube, pools, clock, 3)
    assert kube.failed is None
    assert kube.pods, "the test of the spare"


async def test_a_status_that_cannot_be_written_leaves_an_event() -> None:
    kube, clock = Kube(), FakeClock()
    pools = PoolReconciler(kube, SETTINGS, clock, nobody)
    kube.broken, kube.error = "write_pool_status", ERRORS["Refused"]
    await looks(kube, pools, clock, 10)
    assert kube.events == [FAILED]
