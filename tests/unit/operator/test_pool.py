"""The warm pool: who joins, how a spare gets ready, and what is left to do in each state."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from falcon_core.wire.burn_in import BurnInReport, encode_report
from falcon_operator.api import (
    TAINT_FENCED,
    TAINT_SPARE,
    BurnInSpec,
    ObjectMeta,
    SpareStatus,
)
from falcon_operator.effects import CreatePod, DeletePod, TaintNode, UntaintNode
from falcon_operator.manifests.burn_in import PURPOSE_EXCLUDED, build_burn_in_pod
from falcon_operator.pool import decide as pools
from falcon_operator.pool.burn_in_result import APART_SECONDS
from falcon_operator.pool.claims import claim
from falcon_operator.pool.decide import decide_pool
from falcon_operator.pool.snapshot import PoolSnapshot
from falcon_operator.ports import NodeReport, NodeTaint, NodeView, Occupant
from tests.unit.operator.pool_looks import JOB, NOW, SETTINGS, a_node, a_pool, ended, look, of_type, spare, states, then

GPU_LOST = NodeReport("FalconGpuProblem", "GpuLost", "GPU 3")


def test_a_node_is_chosen_tainted_tested_and_ready() -> None:
    pool = a_pool(images=["trainer:1", "other:2"])
    chosen = look(pool, a_node("b"), a_node("a"), NodeView(name="unselected"))
    assert states(chosen) == {"a": "Testing"}
    assert of_type(chosen, TaintNode) == [TaintNode("a", TAINT_SPARE, "spares")]
    [created] = of_type(chosen, CreatePod)
    assert chosen.again_seconds is not None
    assert chosen.status.ready == "0/1"

    tested_node = a_node("a", taints={TAINT_SPARE: "spares"})
    done = ended(created.manifest, message=json.dumps({"gflops": 41.27, "more": 1}))
    ready = look(then(pool, chosen), tested_node, now=NOW + 9, burn_ins=[done])
    assert states(ready) == {"a": "Ready"}
    assert ready.status.spares[0].gemm_gflops == "41.27"
    assert ready.status.ready == "1/1"
    assert of_type(ready, DeletePod) == [DeletePod(done)]
    assert ready.again_seconds is None

    quiet = look(then(pool, ready), tested_node, now=NOW + 99)
    assert quiet.status == ready.status
    assert quiet.effects == []


def test_the_burn_in_pod_is_pinned_tolerant_restricted_and_pulls_the_images() -> None:
    [created] = of_type(look(a_pool(images=["trainer:1", "other:2"]), a_node("a")), CreatePod)
    manifest = created.manifest
    assert manifest["metadata"]["namespace"] == "falcon-system"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "pool-uid"
    spec = manifest["spec"]
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    assert {toleration["key"] for toleration in spec["tolerations"]} == {TAINT_SPARE, TAINT_FENCED}
    assert [init["image"] for init in spec["initContainers"]] == ["agent:1", "trainer:1", "other:2"]
    for container in [*spec["initContainers"], *spec["containers"]]:
        context = container["securityContext"]
        assert context["runAsNonRoot"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def burn_in_pod(**burn_in: Any) -> dict[str, Any]:
    """Return the spec of the pod that tests a node, for this ``spec.burnIn``."""
    pool = a_pool(images=["trainer:1"], burn_in=msgspec.convert(burn_in, BurnInSpec))
    [created] = of_type(look(pool, a_node("a")), CreatePod)
    spec: dict[str, Any] = created.manifest["spec"]
    return spec


def test_the_pool_names_taints_secrets_image_and_length_of_its_test() -> None:
    spec = burn_in_pod(
        seconds=30,
        image="mirror/agent:1",
        imagePullSecrets=[{"name": "mirror"}],
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    )
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert {toleration["key"] for toleration in spec["tolerations"]} == {TAINT_SPARE, TAINT_FENCED, "nvidia.com/gpu"}
    assert spec["imagePullSecrets"] == [{"name": "mirror"}]
    assert [init["image"] for init in spec["initContainers"]] == ["mirror/agent:1", "trainer:1"]
    [container] = spec["containers"]
    assert (container["image"], container["command"][-1]) == ("mirror/agent:1", "30")
    assert spec["activeDeadlineSeconds"] > 30


def test_the_test_asks_for_the_cpu_that_it_uses() -> None:
    spec = burn_in_pod()
    for container in [*spec["initContainers"], *spec["containers"]]:
        assert container["resources"]["requests"] == container["resources"]["limits"] == {"cpu": 1, "memory": "512Mi"}
    [container] = burn_in_pod(resources={"requests": {"cpu": "50m"}, "limits": {"nvidia.com/gpu": 8}})["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "50m", "memory": "512Mi"},
        "limits": {"memory": "512Mi", "nvidia.com/gpu": 8},
    }
    [pull, *_] = burn_in_pod(resources={"limits": {"cpu": 4, "nvidia.com/gpu": 8}})["initContainers"]
    assert pull["resources"]["limits"] == {"cpu": 4, "memory": "512Mi"}, "no GPU to pull an image"


def test_asking_for_a_test_twice_is_asking_for_it_once() -> None:
    pool = a_pool()
    first = look(pool, a_node("a"))
    again = look(then(pool, first), a_node("a"), now=NOW + 3)
    [created], [created_again] = of_type(first, CreatePod), of_type(again, CreatePod)
    assert created.manifest == created_again.manifest
    assert again.status.spares == first.status.spares


@pytest.mark.parametrize(
    ("message", "exit_code", "expected"),
    [
        ('{"gflops": 0}', 0, "measured 0"),
        ("Killed", 137, "exit code 137: Killed"),
        ("no json", 0, "cannot be read"),
        ('{"gflops": "fast"}', 0, "cannot be read"),
        ('{"gflops": 40, "disk_error": "a file cannot be written to /tmp: EIO"}', 1, "disk: a file cannot be written"),
        ('{"gflops": 40}', 1, "exit code 1"),
    ],
)
def test_a_failed_test_is_reported_and_repeated_later(message: str, exit_code: int, expected: str) -> None:
    pool = a_pool()
    chosen = look(pool, a_node("a"))
    [created] = of_type(chosen, CreatePod)
    pod = ended(created.manifest, message=message, exit_code=exit_code)
    failed = look(then(pool, chosen), a_node("a"), burn_ins=[pod])
    assert states(failed) == {"a": "Failed"}
    assert expected in failed.status.spares[0].message
    assert expected in failed.status.conditions[0].message
    soon = look(then(pool, failed), a_node("a"), now=NOW + 60)
    assert states(soon) == {"a": "Failed"}
    later = look(then(pool, failed), a_node("a"), now=NOW + pools.FAILED_SPARE_RETEST_SECONDS)
    assert states(later) == {"a": "Testing"}
    edited = msgspec.structs.replace(pool, metadata=ObjectMeta(name="spares", uid="pool-uid", generation=4))
    assert states(look(then(edited, failed), a_node("a"), now=NOW + 60)) == {"a": "Testing"}
    [repeated] = of_type(later, CreatePod)
    assert repeated.manifest["metadata"]["name"] != created.manifest["metadata"]["name"]


def test_a_pod_that_vanished_without_a_result_is_made_again() -> None:
    pool = a_pool(spare("a", "Testing", since=NOW - 5))
    decision = look(pool, a_node("a", taints={TAINT_SPARE: "spares"}))
    assert states(decision) == {"a": "Testing"}
    assert len(of_type(decision, CreatePod)) == 1


def test_a_spare_far_slower_than_its_peers_is_no_spare() -> None:
    pool = a_pool(
        spare("a", gemm_gflops="100"),
        spare("b", gemm_gflops="104"),
        spare("c", gemm_gflops="60"),
        spare("d", "Claimed", gemm_gflops="96", claimed_by=JOB),
        size=3,
    )
    nodes = [a_node(name, taints={TAINT_SPARE: "spares"}) for name in "abcd"]
    live = frozenset({"uid-1"})
    doubted = look(pool, *nodes, live_jobs=live)
    assert states(doubted) == {"a": "Ready", "b": "Ready", "c": "Testing", "d": "Claimed"}
    assert doubted.effects == [], "the test is not repeated at once"
    repeated = look(then(pool, doubted), *nodes, live_jobs=live, now=NOW + APART_SECONDS)
    [created] = of_type(repeated, CreatePod)
    again = ended(created.manifest, message='{"gflops": 61}')
    decision = look(then(pool, repeated), *nodes, live_jobs=live, now=NOW + 30, burn_ins=[again])
    assert states(decision) == {"a": "Ready", "b": "Ready", "c": "Failed", "d": "Claimed"}
    assert "1.6x slower" in {entry.node: entry.message for entry in decision.status.spares}["c"]


PEERS = [spare("b", gemm_gflops="100"), spare("c", gemm_gflops="104")]


def results_of(*reports: BurnInReport) -> list[SpareStatus]:
    """Return the status of node a beside two peers, after each of these tests."""
    pool = a_pool(spare("a", "Testing"), *PEERS, size=3)
    nodes = [a_node(name, taints={TAINT_SPARE: "spares"}) for name in "abc"]
    now, seen = NOW, []
    for report in reports:
        asked = look(pool, *nodes, now=now)
        [created] = of_type(asked, CreatePod)
        pod = ended(created.manifest, message=encode_report(report).decode())
        decision = look(then(pool, asked), *nodes, now=now, burn_ins=[pod])
        pool, now = then(pool, decision), now + APART_SECONDS
        seen.append(decision.status.spares[0])
    return seen


SLOW = BurnInReport(gflops=40.0, run_delay=0.0, throttled=0.0, stolen=0.0)
TENANT = [Occupant(namespace="team", name="greedy", owner="ReplicaSet")]
DAEMONS = [
    Occupant(namespace="kube-system", name="proxy", owner="DaemonSet"),
    Occupant(namespace="kube-system", name="etcd-a", owner="Node"),
    Occupant(namespace="falcon-system", name="test", role="burn-in"),
    Occupant(namespace="team", name="shell", requests=False),
]


def test_a_node_is_slow_after_two_slow_tests_in_a_row() -> None:
    assert [(entry.state, entry.slow_tests) for entry in results_of(SLOW, SLOW)] == [("Testing", 1), ("Failed", 0)]
    fast = BurnInReport(gflops=90.0)
    assert [(entry.state, entry.slow_tests) for entry in results_of(SLOW, fast)] == [("Testing", 1), ("Ready", 0)]


def test_what_a_hypervisor_took_is_not_the_spares_fault() -> None:
    tests = results_of(SLOW, msgspec.structs.replace(SLOW, stolen=0.6))
    assert [(entry.state, entry.slow_tests) for entry in tests] == [("Testing", 1), ("Ready", 0)]
    assert tests[1].gemm_gflops == "100.00"
    assert [entry.state for entry in results_of(SLOW, SLOW)] == ["Testing", "Failed"]


def test_two_spares_alone_do_not_judge_each_other() -> None:
    pool = a_pool(spare("a", gemm_gflops="100"), spare("b", gemm_gflops="10"), size=2)
    nodes = [a_node(name, taints={TAINT_SPARE: "spares"}) for name in "ab"]
    assert set(states(look(pool, *nodes)).values()) == {"Ready"}


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (a_node("a", ready=False), "NotReady"),
        (a_node("a", unschedulable=True), "cordoned"),
        (a_node("a", reports=(GPU_LOST,)), "the node reports GpuLost (condition FalconGpuProblem: GPU 3)"),
        (a_node("a", taints={TAINT_FENCED: "job-3"}), "fenced (job-3)"),
    ],
)
def test_an_unusable_node_is_unavailable_replaced_and_tested_when_it_is_back(node: NodeView, reason: str) -> None:
    pool = a_pool(spare("a", gemm_gflops="50"))
    gone = look(pool, node, a_node("b"))
    assert states(gone) == {"a": "Unavailable", "b": "Testing"}
    assert reason in gone.status.spares[0].message
    back = look(then(a_pool(size=2), gone), a_node("a"), a_node("b"))
    assert states(back) == {"a": "Testing", "b": "Testing"}


def test_a_node_that_was_deleted_or_no_longer_matches_leaves() -> None:
    pool = a_pool(spare("a"), spare("b"), size=2)
    relabelled = NodeView(name="b", taints={TAINT_SPARE: "spares"})
    decision = look(pool, relabelled)
    assert states(decision) == {}
    assert decision.effects == [UntaintNode("b", TAINT_SPARE)]
    assert "2 missing" in decision.status.conditions[0].message
    assert "spec.nodeSelector" in decision.status.conditions[0].message


def test_busy_nodes_and_another_pools_nodes_are_not_chosen_and_own_nodes_come_first() -> None:
    nodes = [
        a_node("a"),
        a_node("b", taints={TAINT_SPARE: "others"}),
        a_node("c"),
        a_node("d", taints={TAINT_SPARE: "spares"}),
    ]
    decision = look(a_pool(size=2), *nodes, busy={"a"})
    assert states(decision) == {"c": "Testing", "d": "Testing"}
    assert states(look(a_pool(size=1), *nodes)) == {"d": "Testing"}


def test_a_smaller_size_lets_the_least_worthy_go_and_zero_all_but_the_claimed() -> None:
    held = [
        spare("a", gemm_gflops="90"),
        spare("b", gemm_gflops="100"),
        spare("c", "Testing"),
        spare("d", "Claimed", claimed_by=JOB),
        spare("e", "Failed"),
    ]
    nodes = [a_node(name, taints={TAINT_SPARE: "spares"}) for name in "abcde"]
    live = frozenset({"uid-1"})
    smaller = look(a_pool(*held, size=1), *nodes, live_jobs=live)
    assert states(smaller) == {"b": "Ready", "d": "Claimed", "e": "Failed"}
    assert {effect.node for effect in of_type(smaller, UntaintNode)} == {"a", "c"}
    none = look(a_pool(*held, size=0), *nodes, live_jobs=live)
    assert states(none) == {"d": "Claimed"}
    assert none.status.ready == "0/0"


# -- who else uses the nodes -------------------------------------------------------------------------------------------


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


CONTROL_PLANE = NodeTaint(key="node-role.kubernetes.io/control-plane")
GPU = NodeTaint(key="nvidia.com/gpu", value="present")


def tainted(name: str, *taints: NodeTaint) -> NodeView:
    """Return a node with these taints and the pool's own taint."""
    own = NodeTaint(key=TAINT_SPARE, value="spares")
    return a_node(name, taints={taint.key: taint.value for taint in (own, *taints)}, hard_taints=(own, *taints))


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


def test_a_test_that_the_api_server_refuses_says_so() -> None:
    pool = a_pool(spare("a", "Testing"))
    decision = look(pool, a_node("a", taints={TAINT_SPARE: "spares"}), refused="exceeded quota: pods")
    assert "the API server refuses its test's pod: exceeded quota: pods" in decision.status.conditions[0].message


# -- claims ------------------------------------------------------------------------------------------------------------


def test_an_excluded_nodes_test_is_its_jobs_to_remove_until_nobody_can_be_waiting_for_it() -> None:
    pool = a_pool(spare("n1"))
    nodes = [a_node("n1", taints={TAINT_SPARE: "spares"})]
    manifest = build_burn_in_pod(
        name="test",
        namespace="falcon-system",
        node="n2",
        pool=pool,
        purpose=PURPOSE_EXCLUDED,
        agent_image="agent:1",
        image_pull_policy="Never",
    )
    pod = msgspec.structs.replace(ended(manifest, message="{}"), created_unix=NOW - 600)
    assert look(pool, *nodes, burn_ins=[pod]).effects == []
    assert look(pool, *nodes, burn_ins=[pod], now=NOW + 600).effects == [DeletePod(pod)]


def test_a_deleted_pool_leaves_no_taint() -> None:
    nodes = [a_node("a", taints={TAINT_SPARE: "spares"}), a_node("b", taints={TAINT_SPARE: "others"})]
    assert pools.abandoned("spares", nodes) == [UntaintNode("a", TAINT_SPARE)]


def test_a_node_in_grave_trouble_does_not_join() -> None:
    bad, good = a_node("a", reports=(GPU_LOST,)), a_node("b")
    assert [spare.node for spare in look(a_pool(), bad, good).status.spares] == ["b"]
    none = look(a_pool(), bad).status
    assert none.spares == []
    assert "a left out: the node reports GpuLost" in none.conditions[0].message
