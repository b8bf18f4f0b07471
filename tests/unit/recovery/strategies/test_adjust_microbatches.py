"""S2: when micro-batches may move, which split is best, and that a short iteration does not deceive."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from falcon_core.recovery.diagnosis.stragglers import no_longer_slow
from falcon_core.recovery.mitigation import rebalance, strategy_ladder
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.wire.reporting.microbatches import MicroShare
from tests.unit.recovery.seen import MS, NOW, POLICY, replace, seen
from tests.unit.recovery.shared_out import FIXED_MS, LADDER, MOVED, applied, hybrid, job, slow


def best_ms(micro_ms: tuple[int, ...], per_rank: int) -> int:
    """Return the slowest rank's computation by the best of all splits that leave each rank two micro-batches."""
    most = per_rank * len(micro_ms)
    return min(
        max(FIXED_MS + share * each for share, each in zip(shares, micro_ms, strict=True))
        for shares in itertools.product(range(2, most), repeat=len(micro_ms))
        if sum(shares) == most
    )


@pytest.mark.parametrize("per_rank", [3, 4, 8])
@pytest.mark.parametrize("micro_ms", [(45, 45, 90), (45, 60, 135), (50, 50, 400), (90, 44, 45)])
def test_the_split_is_the_best_of_all(micro_ms: tuple[int, ...], per_rank: int) -> None:
    obs = job(micro_ms, shares=(per_rank,) * 3, per_rank=per_rank)
    found = adjust_microbatches.plan(Look(obs, LADDER))
    assert found is not None
    assert sum(found.shares) == 3 * per_rank
    assert min(found.shares) >= 2
    slowest = max(FIXED_MS + share * each for share, each in zip(found.shares, micro_ms, strict=True))
    assert slowest == best_ms(micro_ms, per_rank)
    assert found.slowest_ns == pytest.approx(slowest * MS)
    assert found.expected_ns == pytest.approx((slowest + 50) * MS)


def test_an_iteration_is_expected_to_be_no_shorter_than_what_its_slowest_rank_computes() -> None:
    found = adjust_microbatches.plan(
        Look(job(iteration_ns=[255 * MS] * 16), LADDER)
    )  # slow passes, and healthy iterations
    assert found is not None
    assert found.expected_ns == found.slowest_ns == 245 * MS


def test_noise_moves_nothing_and_a_split_that_is_best_stays() -> None:
    assert adjust_microbatches.plan(Look(job((45, 46, 44)), LADDER)) is None
    assert adjust_microbatches.plan(Look(job((45, 45, 90), shares=(5, 5, 2)), LADDER)) is None


# -- replicas of several ranks -----------------------------------------------------------------------------------------


def test_all_ranks_of_a_replica_get_its_share_and_the_filling_of_the_pipeline_does_not_depend_on_it() -> None:
    # Ranks 0 and 1 hold the first stage. Replica 0 takes 20 ms + m · 20 ms, replica 1 takes 10 ms + m · 10 ms.
    obs, policy = hybrid((160, 80, 80, 80), iteration_ms=170, pipeline=2)
    found = adjust_microbatches.plan(Look(obs, policy))
    assert found is not None
    best = min(max(10 + 20 * own, 10 + 10 * (16 - own)) for own in range(2, 15))
    assert found.slowest_ns == pytest.approx(best * MS)
    assert found.shares == [5, 11, 5, 11]
    assert found.expected_ns == pytest.approx(best * MS)


def test_a_schedule_without_overlap_takes_all_stages_for_each_micro_batch() -> None:
    # 30 ms a micro-batch in replica 0, and 20 ms in replica 1: 240 and 160 ms of 8.
    obs, policy = hybrid((160, 80, 80, 80), iteration_ms=250, pipeline=2)
    found = adjust_microbatches.plan(Look(obs, policy))
    assert found is not None
    best = min(max(30 * own, 20 * (16 - own)) for own in range(2, 15))
    assert found.slowest_ns == pytest.approx(best * MS)
    assert found.shares == [6, 10, 6, 10]


def test_a_replica_is_as_slow_as_its_slowest_tensor_rank_that_is_measured() -> None:
    obs, policy = hybrid((80, 160, 80, 80), iteration_ms=165, tensor=2, unmeasured=(0, 3))
    assert adjust_microbatches.hindrance(Look(obs, policy)) == ""
    found = adjust_microbatches.plan(Look(obs, policy))
    assert found is not None
    assert found.shares == [5, 5, 11, 11]
    unknown, policy = hybrid((80, 160, 80, 80), iteration_ms=165, tensor=2, unmeasured=(2, 3))
    assert "what rank 2 takes" in adjust_microbatches.hindrance(Look(unknown, policy))


@pytest.mark.parametrize(
    ("layout", "shares", "why"),
    [
        ({"data": 1, "pipeline": 4}, (8,), "the model has one replica only"),
        ({"data": 4, "expert": 2}, (8, 8, 8, 8), "replicas that share experts meet in each micro-batch"),
        ({"pipeline": 2}, (7, 8), "the ranks are about to change their shares"),
        ({"pipeline": 2}, (7, 9), ""),
    ],
)
def test_what_keeps_the_micro_batches_of_replicas_where_they_are(
    layout: dict[str, int], shares: tuple[int, ...], why: str
) -> None:
    obs, policy = hybrid((80,) * 4, iteration_ms=90, shares=shares, **layout)
    assert adjust_microbatches.hindrance(Look(obs, policy)) == why


def test_ranks_of_one_replica_with_different_shares_are_about_to_change() -> None:
    obs, policy = hybrid((80,) * 4, iteration_ms=90, pipeline=2)
    micros = [MicroShare(per_rank=8, share=share, timed=False) for share in (7, 9, 9, 7)]
    ranks = [replace(each, sent=replace(each.sent, micro=micro)) for each, micro in zip(obs.ranks, micros, strict=True)]
    assert "about to change" in adjust_microbatches.hindrance(Look(replace(obs, ranks=ranks), policy))


SAID = MicroShare(per_rank=4, share=4, micro_ns=45 * MS)


@pytest.mark.parametrize(
    ("obs", "why"),
    [
        (seen(), "the script does not use falcon_torch.MicroBatches"),
        (seen(ranks={0: {"micro": SAID}}), "rank 1 says nothing of its micro-batches"),
        (job(micro=replace(SAID, hindrance="the model is on a GPU")), "rank 0 says: the model is on a GPU"),
        (job(micro=replace(SAID, micro_ns=None)), "it is not known yet what rank 0 takes for a micro-batch"),
        (job(fresh=False), "it is not known yet what rank 0 takes for a micro-batch"),
        (job(compute_ns=[]), "it is not known yet what rank 0 takes for a micro-batch"),
        (job(shares=(2, 2, 2), per_rank=2), "each rank has 2 micro-batches in a step, and keeps 2"),
        (job(shares=(5, 4, 4)), "the ranks are about to change their shares"),
        (job(), ""),
    ],
)
def test_it_applies_where_all_ranks_say_that_it_can(obs: Observation, why: str) -> None:
    assert adjust_microbatches.hindrance(Look(obs, LADDER)) == why


def test_the_ranks_have_to_have_equally_many_in_the_even_split() -> None:
    obs = job()
    other = replace(obs.ranks[2], sent=replace(obs.ranks[2].sent, micro=replace(SAID, per_rank=6)))
    obs = replace(obs, ranks=[*obs.ranks[:2], other])
    assert "equally many" in adjust_microbatches.hindrance(Look(obs, LADDER))


def named(obs: Observation, policy: Policy = LADDER, **fields: Any) -> str:
    found = strategy_ladder.next_of(RecoveryState(), slow(**fields), Look(obs, policy))
    return "" if found is None else found.name


def test_the_ladder_passes_over_what_does_not_apply() -> None:
    ignored = [applied("Ignore")]
    assert named(job()) == "Ignore"
    assert named(job(), applied=ignored) == "AdjustMicrobatches"
    assert named(seen(), applied=ignored) == "ReplaceNode"
    assert named(job((45, 45, 46)), applied=ignored) == "ReplaceNode"
    assert named(job(), POLICY, applied=ignored) == "ReplaceNode"
    assert named(job(), applied=[*ignored, applied("AdjustMicrobatches")]) == "ReplaceNode"


def test_why_not_is_asked_of_a_spec_with_the_strategy_alone() -> None:
    assert rebalance.blocked_reason(slow(), Look(seen(), LADDER)) == adjust_microbatches.NOT_USED
    assert rebalance.blocked_reason(slow(), Look(job((45, 45, 46)), LADDER)) == adjust_microbatches.NO_GAIN
    assert rebalance.blocked_reason(slow(), Look(job(), LADDER)) == ""
    assert rebalance.blocked_reason(slow(), Look(seen(), POLICY)) == ""


@pytest.mark.parametrize(("times", "waited", "again"), [(1, 59, False), (1, 61, True), (2, 119, False), (2, 121, True)])
def test_what_failed_is_tried_again_after_longer_each_time(times: int, waited: float, again: bool) -> None:
    failed = replace(MOVED, failed="it did not make iterations shorter", failed_at=NOW - waited)
    done = [applied("Ignore"), *[applied("AdjustMicrobatches")] * times]
    assert named(job(), applied=done, moved=failed) == ("AdjustMicrobatches" if again else "ReplaceNode")
    assert named(job(), applied=done, moved=MOVED) == "ReplaceNode", "it has not failed"
    assert named(job((45, 45, 46)), applied=done, moved=failed) == "ReplaceNode", "no split is better"


def test_a_healthy_iteration_is_no_relief_while_other_ranks_compute_the_culprits_micro_batches() -> None:
    as_short_as_ever: dict[str, Any] = {"iteration_ns": [255 * MS] * 16}
    even, uneven = job(**as_short_as_ever), job(shares=(5, 5, 2), **as_short_as_ever)
    assert no_longer_slow(slow(), Look(even, LADDER))
    assert not no_longer_slow(slow(), Look(uneven, LADDER))
    assert not no_longer_slow(slow(moved=MOVED), Look(even, LADDER)), (
        "its newest iterations may be of the shares before"
    )
    well = job((45, 45, 45), shares=(5, 5, 2))
    assert no_longer_slow(slow(moved=MOVED), Look(well, LADDER)), "its own computation tells"


@pytest.mark.parametrize(
    ("micro_ms", "moved", "left_ms"),
    [
        ((45, 45, 90), (5, 5, 2), 45),  # who has more takes 245 ms, and the healthy 200 ms with the even share
        ((45, 45, 45), (4, 4, 4), 0),
        ((45, 106), (6, 2), 90),  # of two replicas, the faster is healthy
        ((106, 45), (2, 6), 90),
    ],
)
def test_what_slow_ranks_cost_after_the_move(micro_ms: tuple[int, ...], moved: tuple[int, ...], left_ms: float) -> None:
    policy = replace(LADDER, world_size=len(micro_ms))
    assert adjust_microbatches.left_ns(Look(job(micro_ms, shares=moved), policy)) == pytest.approx(left_ms * MS)
