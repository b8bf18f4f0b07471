"""The warm pool: who joins, how a spare gets ready, and what is left to do in each state."""

from __future__ import annotations

import json

import msgspec
import pytest

from falcon_core.wire.measurement.burn_in import BurnInReport, encode_report
from falcon_operator.api.common import TAINT_FENCED, TAINT_SPARE, ObjectMeta
from falcon_operator.api.warmpool import SpareStatus, WarmPool
from falcon_operator.base.effects import CreatePod, DeletePod, TaintNode, UntaintNode
from falcon_operator.base.ports import ContainerView, NodeView, PodView
from falcon_operator.base.spare_annotations import RECORD
from falcon_operator.base.time_format import timestamp
from falcon_operator.manifests.burn_in import PURPOSE_EXCLUDED, build_burn_in_pod
from falcon_operator.pool import decide as pools
from falcon_operator.pool.burn_in_result import APART_SECONDS
from falcon_operator.pool.decide import DISTURBED_APART_SECONDS
from tests.unit.operator.pool.pool_looks import (
    GPU_LOST,
    JOB,
    NOW,
    SETTINGS,
    a_node,
    a_pool,
    ended,
    look,
    of_type,
    spare,
    states,
    then,
)


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


def after_tests(pool: WarmPool, *nodes: NodeView, now: float, **gflops: float) -> WarmPool:
    """Return the pool after tests of the nodes that it tests, with these scores."""
    started = look(pool, *nodes, now=now)
    pods = []
    for created in of_type(started, CreatePod):
        [term] = created.manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        [name] = term["matchFields"][0]["values"]
        pods.append(ended(created.manifest, message=json.dumps({"gflops": gflops[name]})))
    return then(pool, look(then(pool, started), *nodes, now=now + 5, burn_ins=pods))


def test_a_spare_whose_cpu_is_halved_fails_beside_two_peers_and_a_spare_alone_beside_itself() -> None:
    for names in (("a", "b", "c"), ("a",)):
        nodes = [a_node(name, uid=f"uid-{name}") for name in names]
        pool = after_tests(a_pool(size=len(names)), *nodes, now=NOW, **dict.fromkeys(names, 100.0))
        assert [entry.state for entry in pool.status.spares] == ["Ready"] * len(names)
        (first, *others) = pool.status.spares
        again = msgspec.structs.replace(first, state="Testing", gemm_gflops="", since=timestamp(NOW + 100))
        pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, spares=[again, *others]))
        pool = after_tests(pool, *nodes, now=NOW + 101, a=50.0)
        assert (pool.status.spares[0].state, pool.status.spares[0].slow_tests) == ("Testing", 1), "tested twice"
        pool = after_tests(pool, *nodes, now=NOW + 200, a=50.0)
        assert pool.status.spares[0].state == "Failed"
        assert "2.0x slower than" in pool.status.spares[0].message
        (checks,) = [entry.checks for entry in pool.status.checks if entry.node == "a"]
        assert [check.outcome for check in checks] == ["Passed", "Slow", "Slow"]


def test_a_spare_whose_cpus_others_take_is_tested_each_minute_until_they_are_quiet() -> None:
    """An hour of load on the machine says nothing of the node, and costs the pool a minute when it is over."""
    node = a_node("a", uid="uid-a")
    pool = after_tests(a_pool(), node, now=NOW, a=100.0)
    again = msgspec.structs.replace(pool.status.spares[0], state="Testing", gemm_gflops="", since=timestamp(NOW + 100))
    pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, spares=[again]))
    waited = json.dumps({"gflops": 50.0, "run_delay": 0.5, "throttled": 0.0})
    at = NOW + 200
    for _ in range(20):
        started = look(pool, node, now=at)
        [created] = of_type(started, CreatePod)
        pool = then(
            pool, look(then(pool, started), node, now=at + 5, burn_ins=[ended(created.manifest, message=waited)])
        )
        (found,) = pool.status.spares
        assert (found.state, found.slow_tests) == ("Testing", 0)
        assert "others used its CPUs" in found.message
        at += 5 + DISTURBED_APART_SECONDS
        assert of_type(look(pool, node, now=at - 1), CreatePod) == []
    assert after_tests(pool, node, now=at, a=100.0).status.spares[0].state == "Ready"


def test_a_disturbed_test_excuses_no_slow_one() -> None:
    node = a_node("a", uid="uid-a")
    pool = after_tests(a_pool(), node, now=NOW, a=100.0)
    again = msgspec.structs.replace(pool.status.spares[0], state="Testing", gemm_gflops="", since=timestamp(NOW + 100))
    pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, spares=[again]))
    seen = []
    for number, run_delay in enumerate((0.0, 0.5, 0.0)):
        at = NOW + 200 + 100 * number
        started = look(pool, node, now=at)
        [created] = of_type(started, CreatePod)
        said = json.dumps({"gflops": 50.0, "run_delay": run_delay, "throttled": 0.0})
        pool = then(pool, look(then(pool, started), node, now=at + 5, burn_ins=[ended(created.manifest, message=said)]))
        seen.append((pool.status.spares[0].state, pool.status.spares[0].slow_tests))
    assert seen == [("Testing", 1), ("Testing", 1), ("Failed", 0)]


def test_another_machine_of_the_same_name_has_no_history() -> None:
    pool = after_tests(a_pool(), a_node("a", uid="one"), now=NOW, a=100.0)
    again = msgspec.structs.replace(pool.status.spares[0], state="Testing", gemm_gflops="", since=timestamp(NOW + 100))
    pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, spares=[again]))
    pool = after_tests(pool, a_node("a", uid="two"), now=NOW + 101, a=50.0)
    assert pool.status.spares[0].state == "Ready"
    assert [entry.uid for entry in pool.status.checks] == ["two"]


def test_machines_of_another_kind_are_no_peers() -> None:
    def node(name: str, kind: str) -> NodeView:
        labels = {"pool": "yes", "node.kubernetes.io/instance-type": kind}
        return NodeView(name=name, uid=name, labels=labels)

    nodes = [node("a", "small"), node("b", "large"), node("c", "large")]
    pool = after_tests(a_pool(size=3), *nodes, now=NOW, a=50.0, b=100.0, c=100.0)
    again = msgspec.structs.replace(pool.status.spares[0], state="Testing", gemm_gflops="", since=timestamp(NOW + 100))
    pool = msgspec.structs.replace(
        pool, status=msgspec.structs.replace(pool.status, spares=[again, *pool.status.spares[1:]])
    )
    assert after_tests(pool, *nodes, now=NOW + 101, a=50.0).status.spares[0].state == "Ready"


def test_how_far_the_images_are_pulled_is_shown() -> None:
    pool = a_pool(images=["x:1", "y:1"])
    started = look(pool, a_node("a"))
    [created] = of_type(started, CreatePod)
    meta = created.manifest["metadata"]
    pulled = ContainerView(name="pull-0", exit_code=0)
    waiting = ContainerView(name="pull-1", waiting_reason="PodInitializing")
    pod = PodView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid="u",
        labels=meta["labels"],
        node="a",
        containers={view.name: view for view in (pulled, waiting)},
    )
    assert look(then(pool, started), a_node("a"), burn_ins=[pod]).status.spares[0].images == "1/2"


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
    assert decision.effects == [UntaintNode("b", TAINT_SPARE, "spares")]
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


MARK = {"karpenter.sh/do-not-disrupt": "true"}
MARKED = {**MARK, RECORD: "karpenter.sh/do-not-disrupt=true"}


def test_a_spare_whose_taint_is_older_than_the_setting_gets_its_annotations_and_the_pools_nodes_alone() -> None:
    settings = msgspec.structs.replace(SETTINGS, spare_annotations=MARK)
    mine = {TAINT_SPARE: "spares"}
    pool = a_pool(spare("a"), spare("b"), spare("c"), size=3)
    nodes = [
        a_node("a", taints=mine),
        a_node("b", taints=mine, annotations=MARKED),
        a_node("c", taints=mine, annotations={"karpenter.sh/do-not-disrupt": "false"}),
        a_node("d", taints={TAINT_SPARE: "others"}),
    ]
    assert look(pool, *nodes, settings=settings).effects == [TaintNode("a", TAINT_SPARE, "spares")]
    assert look(pool, *nodes).effects == [TaintNode("b", TAINT_SPARE, "spares")], "the setting is empty again"


def test_annotations_of_a_spare_are_removed_also_where_somebody_has_removed_the_taint() -> None:
    nodes = [
        NodeView(name="left", annotations=MARKED),
        NodeView(name="theirs", taints={TAINT_SPARE: "others"}, annotations=MARKED),
        NodeView(name="plain", annotations=MARK),
    ]
    assert look(a_pool(), *nodes).effects == [UntaintNode("left", TAINT_SPARE, "spares")]
    assert pools.abandoned("spares", nodes) == [UntaintNode("left", TAINT_SPARE, "spares")]


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
    assert pools.abandoned("spares", nodes) == [UntaintNode("a", TAINT_SPARE, "spares")]
