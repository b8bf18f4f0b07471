"""Which nodes may join a pool: who else uses them, their taints, and what they report of themselves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_operator.api.common import TAINT_SPARE, Resources
from falcon_operator.api.warmpool import BurnInSpec
from falcon_operator.base.ports import NodeTaint, NodeView, Occupant
from falcon_operator.pool.claims import claim
from falcon_operator.pool.decide import decide_pool
from falcon_operator.pool.snapshot import PoolSnapshot
from tests.unit.operator.pool.pool_looks import GPU_LOST, JOB, NOW, SETTINGS, a_node, a_pool, look, spare, states, then

TENANT = [Occupant(namespace="team", name="greedy", owner="ReplicaSet")]
DAEMONS = [
    Occupant(namespace="kube-system", name="proxy", owner="DaemonSet"),
    Occupant(namespace="kube-system", name="etcd-a", owner="Node"),
    Occupant(namespace="falcon-system", name="test", role="burn-in"),
    Occupant(namespace="team", name="shell", requests=False),
]
CONTROL_PLANE = NodeTaint(key="node-role.kubernetes.io/control-plane")
GPU = NodeTaint(key="nvidia.com/gpu", value="present")


def tainted(name: str, *taints: NodeTaint) -> NodeView:
    """Return a node with these taints and the pool's own taint."""
    own = NodeTaint(key=TAINT_SPARE, value="spares")
    return a_node(name, taints={taint.key: taint.value for taint in (own, *taints)}, hard_taints=(own, *taints))


@pytest.mark.parametrize("state", ["Ready", "Testing", "Failed"])
def test_a_spare_on_which_others_run_is_unavailable_and_made_up_for(state: Any) -> None:
    pool = a_pool(spare("a", state, gemm_gflops="50"))
    nodes = [a_node("a", taints={TAINT_SPARE: "spares"}), a_node("b")]
    used = look(pool, *nodes, occupants={"a": TENANT})
    assert states(used) == {"a": "Unavailable", "b": "Testing"}
    assert used.status.spares[0].message == "pods of others run on it: team/greedy"
    assert claim(then(pool, used), JOB, "ns", now=NOW) is None
    alone = look(then(a_pool(size=2), used), *nodes, occupants={"a": DAEMONS})
    assert states(alone) == {"a": "Testing", "b": "Testing"}


def test_a_ready_spare_with_training_pods_of_no_claim_is_unavailable() -> None:
    decision = look(a_pool(spare("a", gemm_gflops="50")), a_node("a", taints={TAINT_SPARE: "spares"}), busy={"a"})
    assert states(decision) == {"a": "Unavailable"}
    assert "ns/job-0" in decision.status.spares[0].message


def test_nodes_in_use_are_not_chosen_and_named() -> None:
    decision = look(
        a_pool(size=2), a_node("a"), a_node("b"), a_node("c"), occupants={"a": TENANT, "b": DAEMONS}, busy={"c"}
    )
    assert states(decision) == {"b": "Testing"}
    assert "a, c in use by other pods" in decision.status.conditions[0].message


def test_a_node_that_nobody_has_looked_at_is_not_chosen() -> None:
    snap = PoolSnapshot(pool=a_pool(), nodes={"a": a_node("a")}, settings=SETTINGS, now=NOW)
    assert states(decide_pool(snap)) == {}


def test_a_node_with_a_taint_that_the_test_does_not_tolerate_stays_out_and_the_condition_says_so() -> None:
    control = a_node("cp", taints={CONTROL_PLANE.key: ""}, hard_taints=(CONTROL_PLANE,))
    decision = look(a_pool(), control)
    assert (states(decision), decision.effects) == ({}, [])
    message = decision.status.conditions[0].message
    assert "cp left out for the taint node-role.kubernetes.io/control-plane:NoSchedule" in message
    assert "tolerate it in spec.burnIn.tolerations, or narrow spec.nodeSelector" in message


def test_a_spare_that_gets_such_a_taint_is_unavailable() -> None:
    decision = look(a_pool(spare("a", gemm_gflops="50")), tainted("a", GPU))
    assert states(decision) == {"a": "Unavailable"}
    assert "nvidia.com/gpu:NoSchedule is not in spec.burnIn.tolerations" in decision.status.spares[0].message


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerated"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, GPU, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, GPU, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, GPU, False),
        ({"key": "nvidia.com/gpu", "value": "present"}, GPU, True),
        ({"key": "nvidia.com/gpu"}, GPU, False),
        ({"operator": "Exists"}, CONTROL_PLANE, True),
        ({"key": "other", "operator": "Exists"}, GPU, False),
        ({"key": "other"}, NodeTaint(key="node.kubernetes.io/not-ready"), True),  # the node's readiness decides
    ],
)
def test_taints_are_tolerated_as_the_scheduler_does(
    toleration: dict[str, Any], taint: NodeTaint, tolerated: bool
) -> None:
    pool = a_pool(burn_in=msgspec.convert({"tolerations": [toleration]}, BurnInSpec))
    assert states(look(pool, tainted("a", taint))) == ({"a": "Testing"} if tolerated else {})


def test_a_node_with_the_taint_of_a_device_joins_a_pool_whose_test_asks_for_the_device() -> None:
    node = a_node("a", hard_taints=(NodeTaint(key="nvidia.com/gpu", value="present"),))
    wanted = BurnInSpec(resources=Resources(limits={"nvidia.com/gpu": 1}))
    assert states(look(a_pool(burn_in=wanted), node)) == {"a": "Testing"}
    assert states(look(a_pool(), node)) == {}


def test_a_node_in_grave_trouble_does_not_join() -> None:
    bad, good = a_node("a", reports=(GPU_LOST,)), a_node("b")
    assert [spare.node for spare in look(a_pool(), bad, good).status.spares] == ["b"]
    none = look(a_pool(), bad).status
    assert none.spares == []
    assert "a left out: the node reports GpuLost" in none.conditions[0].message
