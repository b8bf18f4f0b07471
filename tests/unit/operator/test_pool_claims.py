"""Who may take a spare, who holds it, and when it is free again."""

from __future__ import annotations

import msgspec

from falcon_operator.api import (
    TAINT_SPARE,
)
from falcon_operator.effects import CreatePod
from falcon_operator.pool import claims
from falcon_operator.pool.claims import claim, release
from tests.unit.operator.pool_looks import JOB, NOW, a_node, a_pool, look, of_type, spare, states


def test_the_fastest_ready_spare_is_claimed_once_for_a_key() -> None:
    pool = a_pool(spare("a", gemm_gflops="90"), spare("b", gemm_gflops="100"), spare("c", "Testing"), size=3)
    status = claim(pool, JOB, "ns", now=NOW)
    assert status is not None
    held = claims.held(msgspec.structs.replace(pool, status=status), JOB)
    assert held is not None
    assert (held.node, held.gemm_gflops) == ("b", "100")
    assert claim(msgspec.structs.replace(pool, status=status), JOB, "ns", now=NOW + 9) == status


def test_nothing_is_claimed_where_none_is_ready_all_are_to_be_avoided_or_the_namespace_may_not() -> None:
    assert claim(a_pool(spare("c", "Testing")), JOB, "ns", now=NOW) is None
    assert claim(a_pool(spare("a")), JOB, "ns", avoid={"a"}, now=NOW) is None
    assert claim(a_pool(spare("a"), allowed_namespaces=["other"]), JOB, "ns", now=NOW) is None
    assert claim(a_pool(spare("a"), allowed_namespaces=["ns"]), JOB, "ns", now=NOW) is not None


def test_a_claimed_spare_is_made_up_for() -> None:
    pool = a_pool(spare("a", "Claimed", claimed_by=JOB))
    nodes = [a_node("a", taints={TAINT_SPARE: "spares"}), a_node("b")]
    decision = look(pool, *nodes, live_jobs=frozenset({"uid-1"}))
    assert states(decision) == {"a": "Claimed", "b": "Testing"}
    assert "1 claimed by jobs" in decision.status.conditions[0].message


def test_a_released_spare_is_tested_anew() -> None:
    pool = a_pool(spare("a", "Claimed", claimed_by=JOB, gemm_gflops="90"))
    status = release(pool, JOB, now=NOW)
    assert [(entry.state, entry.claimed_by, entry.gemm_gflops) for entry in status.spares] == [("Testing", "", "")]
    assert release(pool, "ns/job/uid-1/8", now=NOW) is pool.status


def test_a_claim_ends_with_its_job_when_its_pods_have_gone() -> None:
    pool = a_pool(spare("a", "Claimed", claimed_by=JOB))
    node = a_node("a", taints={TAINT_SPARE: "spares"})
    ending = look(pool, node, busy={"a"})
    assert states(ending) == {"a": "Claimed"}
    assert "still ending" in ending.status.spares[0].message
    assert states(look(pool, node)) == {"a": "Testing"}
    assert states(look(pool)) == {}, "its node is gone, too"


def test_a_released_node_is_not_tested_beside_training_pods() -> None:
    pool = a_pool(spare("a", "Testing"))
    decision = look(pool, a_node("a", taints={TAINT_SPARE: "spares"}), busy={"a"})
    assert of_type(decision, CreatePod) == []
    assert "training pods" in decision.status.spares[0].message


def test_the_median_score_leaves_one_node_out() -> None:
    pool = a_pool(spare("a", gemm_gflops="10"), spare("b", gemm_gflops="30"), spare("c", "Testing"))
    assert claims.median_gflops(pool) == 20.0
    assert claims.median_gflops(pool, without="a") == 30.0
    assert claims.median_gflops(a_pool()) is None
