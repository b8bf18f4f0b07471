"""Micro-batches move before an onset is certain: when two long iterations are enough, and what keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery.mitigation import onset, rebalance
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.recovery.model.treatments import Sharing
from falcon_core.signals.changepoint.sudden_jump import NEWEST, is_suddenly_slow
from falcon_core.wire.reporting.messages import RankSignals
from falcon_core.wire.reporting.microbatches import MicroShare
from tests.unit.recovery.seen import MS, NOW, POLICY, replace, seen

LADDER = replace(POLICY, strategies=[("Ignore", None), ("AdjustMicrobatches", None), ("ReplaceNode", 60.0)])
WELL, LONG, COMPUTES, COMPUTES_LONG = 4000 * MS, 6000 * MS, 3900 * MS, 5900 * MS


def ranks(long: int, **slow: Any) -> dict[int, dict[str, Any]]:
    """Return a job of long iterations in which rank 2 alone computed longer in so many of the newest."""
    common = {
        "healthy_iteration_ns": WELL,
        "healthy_compute_ns": COMPUTES,
        "healthy_noise": 0.01,
        "micro": MicroShare(per_rank=8, share=8, micro_ns=0, timed=False),
    }
    brief = {**common, "iteration_ns": [WELL] * 5, "compute_ns": [COMPUTES] * 5, "detailed": False}
    slow_rank = {
        **common,
        "iteration_ns": [WELL] * (16 - long) + [LONG] * long,
        "compute_ns": [COMPUTES] * (16 - long) + [COMPUTES_LONG] * long,
        **slow,
    }
    return {0: brief, 1: brief, 2: slow_rank}


def job(long: int = NEWEST, **slow: Any) -> Observation:
    return seen(ranks=ranks(long, **slow))


def asked_for(obs: Observation, policy: Policy = LADDER, before: Sharing | None = None) -> list[int] | None:
    """Return the shares that are asked for; None where nothing begins."""
    state = onset.look(RecoveryState(levels=Levels(healthy_ns=WELL), sharing=before), Look(obs, policy))
    if state.leader is None:
        return None
    assert state.leader.phase == "Suspected"
    assert state.leader.moved is not None
    assert state.sharing is not None
    return state.sharing.shares


def test_micro_batches_move_away_from_a_rank_that_is_suddenly_slow() -> None:
    shares = asked_for(job())
    assert shares is not None
    assert sum(shares) == 24
    assert shares[2] < 8 < min(shares[:2])


def test_the_split_is_planned_by_the_newest_iteration_since_the_one_before_may_be_partly_healthy() -> None:
    half = (COMPUTES + COMPUTES_LONG) // 2
    assert asked_for(job(compute_ns=[COMPUTES] * 14 + [half, COMPUTES_LONG])) == asked_for(job())


def test_the_slowdown_counts_from_the_first_long_iteration() -> None:
    state = onset.look(RecoveryState(), Look(job(), LADDER))
    assert state.leader is not None
    assert state.leader.onset.iteration == 100 - NEWEST + 1
    assert state.leader.loss.seconds == pytest.approx(NEWEST * (LONG - WELL) / 1e9)
    assert state.leader.loss.counted_iterations == 100
    assert (state.leader.times.healthy_ns, state.leader.times.slow_ns) == (WELL, LONG)


@pytest.mark.parametrize(
    ("obs", "policy", "before", "why"),
    [
        (job(1), LADDER, None, "a spike"),
        (job(healthy_noise=0.2), LADDER, None, "the job is that noisy"),
        (job(healthy_noise=None), LADDER, None, "its noise is not known"),
        (job(compute_ns=[COMPUTES] * 16), LADDER, None, "it waits for something else"),
        (job(compute_ns=[COMPUTES] * 13 + [COMPUTES + 700 * MS] * 3), LADDER, None, "most has another reason"),
        (job(fresh=False), LADDER, None, "its report is old"),
        (job(detailed=False), LADDER, None, "a brief repeats a median"),
        (job(), POLICY, None, "the spec does not name it"),
        (job(), replace(LADDER, enforce=False), None, "mode Observe"),
        (job(), replace(LADDER, strategies=[("AdjustMicrobatches", 7.0)]), None, "it has lost six seconds"),
        (job(), LADDER, Sharing(generation=1, shares=[8, 8, 8], per_rank=8, at=NOW - 9), "its shares are new"),
    ],
)
def test_what_keeps_them(obs: Observation, policy: Policy, before: Sharing | None, why: str) -> None:
    assert asked_for(obs, policy, before) is None, why


def test_shares_of_an_earlier_generation_keep_nobody() -> None:
    assert asked_for(job(), before=Sharing(generation=0, shares=[8, 8, 8], per_rank=8, at=NOW - 9)) is not None


def test_it_is_not_over_while_they_are_on_their_way() -> None:
    state = onset.look(RecoveryState(), Look(job(), LADDER))
    assert rebalance.is_on_its_way(state, Look(job(), LADDER))
    assert state.sharing is not None
    for taken, is_on_its_way in ((97, True), (95, False)):
        after = replace(state, sharing=replace(state.sharing, taken_iteration=taken))
        assert rebalance.is_on_its_way(after, Look(job(), LADDER)) is is_on_its_way
    assert not rebalance.is_on_its_way(replace(state, sharing=None), Look(job(), LADDER))


def test_a_rank_without_a_history_is_not_judged() -> None:
    assert not is_suddenly_slow(RankSignals(rank=0, tracking="Tracking"), 0.1)
