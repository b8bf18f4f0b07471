"""Who may take a spare, who holds it, and when it is free again."""

from __future__ import annotations

import msgspec
import pytest

from falcon_operator.api.common import TAINT_SPARE
from falcon_operator.api.warmpool import ClaimLimits, NamespaceClaims
from falcon_operator.base.effects import ChangeClaims, CreatePod
from falcon_operator.base.time_format import timestamp
from falcon_operator.intent.model.claim_limits import MOST_REMEMBERED, allowance
from falcon_operator.pool import claims
from falcon_operator.pool.claims import claim, release
from tests.unit.operator.pool.pool_looks import JOB, NOW, a_node, a_pool, look, of_type, spare, states


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


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        ({"per_job": 2}, "spec.claims.perJob: the job holds 2"),
        ({"per_namespace": 3}, "spec.claims.perNamespace: the jobs of ns hold 3"),
        ({"per_hour": 3}, "spec.claims.perHour: the jobs of ns have claimed 3 within an hour"),
    ],
)
def test_a_limit_of_the_pool_is_kept_and_named(limits: dict[str, int], word: str) -> None:
    pool = a_pool(*(spare(f"n{index}") for index in range(9)), size=9, claims=ClaimLimits(**limits))
    keys = ["ns/job/uid-1/1", "ns/job/uid-1/2", "ns/twin/uid-2/1", "ns/job/uid-1/3"]
    for key in keys if "per_job" not in limits else keys[:2]:
        status = claim(pool, key, "ns", now=NOW)
        if status is None:
            break
        pool = msgspec.structs.replace(pool, status=status)
    assert claim(pool, "ns/job/uid-1/9", "ns", now=NOW) is None
    refused = allowance(pool, "ns/job/uid-1/", NOW)
    assert refused.spares == 0
    assert word in refused.message
    assert claim(pool, "another/job/uid-3/1", "another", now=NOW) is not None, "other namespaces are not affected"
    assert claim(pool, keys[0], "ns", now=NOW) == pool.status, "who asks twice still gets the same spare"


def test_an_hour_later_a_namespace_may_claim_again_though_its_jobs_come_and_go() -> None:
    pool = a_pool(spare("a"), claims=ClaimLimits(per_hour=2))
    for number in range(2):  # each job is deleted and its spare is ready again
        status = claim(pool, f"ns/job/uid-{number}/1", "ns", now=NOW + number)
        assert status is not None
        pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(status, spares=[spare("a")]))
    assert claim(pool, "ns/job/uid-9/1", "ns", now=NOW + 3599) is None
    assert "wait until" in allowance(pool, "ns/job/uid-9/", NOW + 60).message
    again = claim(pool, "ns/job/uid-9/1", "ns", now=NOW + 3600)
    assert again is not None
    assert [len(entry.at) for entry in again.recent_claims] == [2], "the first has been forgotten"


def test_a_leader_whose_clock_was_ahead_holds_nobody_up_for_more_than_an_hour() -> None:
    pool = a_pool(spare("a"), spare("b"), size=2, claims=ClaimLimits(per_hour=1))
    status = claim(pool, "ns/job/uid-1/1", "ns", now=NOW + 86_400)
    assert status is not None
    status = msgspec.structs.replace(status, spares=[spare("a"), spare("b")])
    pool = msgspec.structs.replace(pool, status=status)
    assert claim(pool, "ns/job/uid-1/2", "ns", now=NOW) is None
    status = claim(pool, "other/job/uid-2/1", "other", now=NOW)
    assert status is not None
    pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(status, spares=[spare("b")]))
    assert claim(pool, "ns/job/uid-1/2", "ns", now=NOW + 3600) is not None


def test_what_is_remembered_of_claims_is_bounded() -> None:
    pool = a_pool(*(spare(f"n{index}") for index in range(3)), size=3)
    claims_of = [NamespaceClaims(namespace=f"ns-{index}", at=[timestamp(NOW)] * 1024) for index in range(4)]
    pool = msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, recent_claims=claims_of))
    status = claim(pool, JOB, "ns", now=NOW + 1)
    assert status is not None
    assert sum(len(entry.at) for entry in status.recent_claims) == MOST_REMEMBERED
    assert status.recent_claims[0].namespace == "ns"


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


def test_many_claims_and_releases_are_one_change_and_go_as_far_as_there_are_spares() -> None:
    held = spare("z", "Claimed", claimed_by="ns/job/uid-1/1")
    pool = a_pool(*(spare(f"s{number:02}", gemm_gflops="100") for number in range(30)), held, size=30)
    keys = [f"ns/job/uid-1/{number}" for number in range(2, 34)]
    wanted = ChangeClaims(take=keys, release=["ns/job/uid-1/1"], avoid=["s00"])
    status = claims.changed(pool, wanted, "ns", now=NOW)
    owners = {entry.claimed_by: entry.node for entry in status.spares if entry.state == "Claimed"}
    assert set(owners) == set(keys[:29]), "29 spares for 32 claims"
    assert len(set(owners.values())) == 29
    assert "s00" not in owners.values()
    assert next(entry.state for entry in status.spares if entry.node == "z") == "Testing"
    assert len(status.recent_claims[0].at) == 29
