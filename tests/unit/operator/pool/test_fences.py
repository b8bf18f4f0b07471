"""Fences whose job is over: who tests the node, when, and when the fence is lifted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_operator.api.common import TAINT_FENCED, TAINT_SPARE
from falcon_operator.base.effects import CreatePod, DeletePod, UntaintNode
from falcon_operator.base.ports import NodeView, Occupant, PodView
from falcon_operator.pool.fences import RETEST_SECONDS
from falcon_operator.pool.snapshot import PoolDecision
from tests.unit.operator.pool.pool_looks import NOW, a_node, a_pool, ended, look, of_type, spare

UID = "8f14e45f-ceea-467f-a8b1-3c9c0f2d9f3a"
FENCED = a_node("slow", taints={TAINT_FENCED: f"gpt2.{UID}"})
SPARE = a_node("spare", taints={TAINT_SPARE: "spares"})
NEXT_HOUR = NOW + RETEST_SECONDS


def looked(*nodes: NodeView, score: str = "100", now: float = NOW, **rest: Any) -> PoolDecision:
    return look(a_pool(spare("spare", gemm_gflops=score)), SPARE, *(nodes or [FENCED]), now=now, **rest)


def burn_in_of(decision: PoolDecision, *, gflops: float) -> PodView:
    """Return the pod of the test that the pool asked for, after its end with this result."""
    [created] = of_type(decision, CreatePod)
    assert created.manifest["metadata"]["labels"]["falcon.dev/burn-in"] == "fenced"
    return ended(created.manifest, message=f'{{"gflops": {gflops}}}')


def test_a_node_that_passes_is_released() -> None:
    test = burn_in_of(looked(), gflops=95)
    assert looked(burn_ins=[test]).effects == [UntaintNode("slow", TAINT_FENCED)]
    assert looked(a_node("slow"), burn_ins=[test]).effects == [DeletePod(test)]


def test_a_node_that_is_still_slow_is_tested_again_each_hour() -> None:
    slow = burn_in_of(looked(), gflops=40)
    assert looked(burn_ins=[slow]).effects == []
    later = looked(burn_ins=[slow], now=NEXT_HOUR)
    assert of_type(later, DeletePod) == [DeletePod(slow)]
    healed = burn_in_of(later, gflops=98)
    assert healed.name != slow.name
    assert looked(burn_ins=[healed], now=NEXT_HOUR).effects == [UntaintNode("slow", TAINT_FENCED)]


def test_the_fence_of_a_live_job_is_left_to_it() -> None:
    assert looked(live_jobs=frozenset({UID})).effects == []


@pytest.mark.parametrize("value", ["", "repair", "gpt2.of-somebody", f"x{UID}"])
def test_a_fence_that_no_job_set_is_left_alone(value: str) -> None:
    assert looked(a_node("slow", taints={TAINT_FENCED: value})).effects == []


def test_a_node_that_cannot_be_tested_fairly_waits() -> None:
    assert looked(score="").effects == [], "no spare has a score"
    assert looked(busy={"slow"}).effects == [], "training pods run on it"
    assert looked(a_node("slow", taints=FENCED.taints, ready=False)).effects == []
    assert looked(a_node("slow", taints=FENCED.taints, unschedulable=True)).effects == []


def test_a_test_that_others_disturbed_lifts_nothing() -> None:
    test = burn_in_of(looked(), gflops=40)
    tenant = {"slow": [Occupant(namespace="a", name="web", requests={"cpu": 1.0})]}
    assert looked(burn_ins=[test], occupants=tenant).effects == []


def test_a_pool_does_not_test_nodes_that_it_does_not_select() -> None:
    other = NodeView(name="slow", labels={"pool": "no"}, taints=FENCED.taints, ready=True)
    assert looked(other).effects == []


def test_the_end_of_a_test_is_looked_for() -> None:
    running = msgspec.structs.replace(burn_in_of(looked(), gflops=0), phase="Running", containers={})
    assert looked(burn_ins=[running]).again_seconds is not None
    assert looked().again_seconds is None
