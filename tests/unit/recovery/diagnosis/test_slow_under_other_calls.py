"""A rank that is slow before, at or soon after a change of the job's calls: it is named, and stays named.

The agents learn the healthy level again with other calls, and take a slow rank for healthy.
"""

from __future__ import annotations

import math

import pytest

from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.diagnosis import slow_without_onset
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident, SlowLink
from falcon_core.recovery.model.suspects import Grown
from tests.seeds import seeds
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import MS, replace
from tests.unit.recovery.series import Job, Times, only

RANKS, CHANGE, SLOW_RANK = 8, 160, 5
LATEST = 140  # iterations after the change: levels that settle, and five reports
NEVER = 1e6  # seconds: a price that no loss reaches


def job(onset: float, factor: float = 1.4, more: float = 2.0, seed: int = 0) -> Job:
    """Return a job that computes ``more`` times as long from the change on, with other calls."""

    def work(iteration: int) -> Times:
        share = more if iteration >= CHANGE else 1.0
        return only(SLOW_RANK, factor if iteration >= onset else 1.0, RANKS) * share

    calls = lambda iteration: 4 if iteration < CHANGE else round(4 * more)  # noqa: E731
    return Job(work, ranks=RANKS, price_seconds=NEVER, seed=seed, calls=calls)


def opened(played: Job) -> SlowIncident:
    assert played.state.leader is not None
    return played.state.leader


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("more", [0.5, 2.0])
@pytest.mark.parametrize("after", [0, 12, 30, 80])
def test_a_rank_that_is_slow_soon_after_a_change_of_calls_is_named(after: int, more: float, seed: int) -> None:
    played = job(CHANGE + after, more=more, seed=seed).run(CHANGE + 250)
    ((rank, iteration),) = played.named
    assert rank == SLOW_RANK
    assert iteration <= CHANGE + after + LATEST
    slow = opened(played)
    assert slow.culprit is not None
    assert slow.culprit.slowdown == pytest.approx(1.4, rel=0.1)
    assert slow.times.healthy_ns == pytest.approx((200 * more + 50) * MS, rel=0.12)
    assert slow.loss.seconds == pytest.approx((250 - after) * 0.2 * more * 0.4, rel=0.3), "nothing from before it"


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("more", [0.5, 2.0])
def test_a_rank_that_is_slow_before_a_change_of_calls_stays_the_same_incident(more: float, seed: int) -> None:
    played = job(CHANGE - 80, more=more, seed=seed).run(CHANGE + 250)
    assert [rank for rank, _ in played.named] == [SLOW_RANK]
    assert played.closed == []
    lost = 80 * 0.2 * 0.4 + 250 * 0.2 * more * 0.4
    assert opened(played).loss.seconds == pytest.approx(lost, rel=0.3), "more work for all ranks is no loss"


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("more", [0.5, 2.0])
def test_a_change_of_calls_alone_names_no_rank_and_leaves_nothing_open(more: float, seed: int) -> None:
    played = job(math.inf, more=more, seed=seed).run(CHANGE + 250)
    assert played.named == []
    assert played.state.slowdowns == []


@pytest.mark.parametrize("seed", seeds(2))
def test_a_slowdown_without_a_name_ends_where_the_peers_show_nothing_under_the_new_calls(seed: int) -> None:
    work = lambda iteration: 1.3 if CHANGE - 20 <= iteration < CHANGE else 1.0  # noqa: E731
    calls = lambda iteration: 4 if iteration < CHANGE else 8  # noqa: E731
    transfers = lambda iteration: 3.0 if iteration >= CHANGE - 20 else 1.0  # noqa: E731
    played = Job(work, transfers, ranks=RANKS, price_seconds=NEVER, seed=seed, calls=calls).run(CHANGE + 250)
    assert played.named == []
    assert played.state.slowdowns == []


def test_a_rank_that_was_watched_under_other_calls_is_not_held_against_their_level() -> None:
    played = job(CHANGE).run(CHANGE + 20)
    grown = Grown(generation=1, iteration=CHANGE - 4, healthy_ns=250 * MS, compute_ns={SLOW_RANK: 200 * MS})
    before = replace(played.state, suspicions=replace(played.state.suspicions, grown=grown))
    after = slow_without_onset.look(before, Look(played.observation(), played.policy))
    assert after.suspicions.grown is None


@pytest.mark.parametrize("named", [False, True])
def test_a_named_link_outlasts_a_change_of_calls(named: bool) -> None:
    """Comparing the ranks' computation says nothing of a link; what names nothing can no longer be measured."""
    calls = lambda iteration: 4 if iteration < CHANGE else 8  # noqa: E731
    played = Job(lambda _: 1.0, ranks=RANKS, price_seconds=NEVER, calls=calls).run(CHANGE + 250)
    link = SlowLink(ranks=[], members=RANKS, comm="", excess_ns=100 * MS, compute_growth=1.0)
    slow = located(id="gpt2-1", phase="Detected", subject=link if named else None, applied=[])
    slow = replace(slow, times=replace(slow.times, healthy_ns=100 * MS, slow_ns=250 * MS))
    slow = replace(slow, onset=replace(slow.onset, generation=1, iteration=CHANGE - 20, reported_iteration=CHANGE - 10))
    before = replace(played.state, slowdowns=[slow])
    taken = mitigation_ladder.step(before, Look(played.observation(), played.policy))
    outcomes = [event.outcome for event in taken.events if isinstance(event, SlowClosed)]
    assert outcomes == ([] if named else ["OtherCalls"])
