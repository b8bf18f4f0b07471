"""What is an incident and what is only suspected: what passes, recurs or is explained by the work is not reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.history import reporting_threshold
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import SlowIncident, Spell
from falcon_core.recovery.model.state import Habits, Levels, RecoveryState
from tests.seeds import seeds
from tests.unit.recovery.incidents import SETTLED
from tests.unit.recovery.seen import FAST, MS, ONSET, POLICY, replace, seen
from tests.unit.recovery.series import Job, Times, only

SEEDS = seeds(2)
NOISES = [(0.015, 0.0), (0.04, 0.05)]  # of each rank, and of all together
RANKS = 8
FIRST = ONSET.iteration


def slowly(lasted: int, seconds: float, **fields: Any) -> Observation:
    """Return a job that has been slow for so long, with no rank standing out."""
    ranks: dict[int, dict[str, Any]] = {number: {**FAST, "iterations": FIRST + lasted - 1} for number in range(3)}
    ranks[2] |= fields
    return seen(ranks=ranks, now=ONSET.unix_ns / 1e9 + seconds)


def at(size: float, lasted: int, seconds: float) -> Observation:
    """Return the same, of iterations that take so many times as long as before."""
    obs = slowly(lasted, seconds)
    iteration_ns = [round(size * 250 * MS)] * 16
    return replace(obs, ranks=[replace(rank, sent=replace(rank.sent, iteration_ns=iteration_ns)) for rank in obs.ranks])


def watched(state: RecoveryState, *looks: Observation) -> RecoveryState:
    for obs in looks:
        state = mitigation_ladder.step(state, Look(obs, POLICY)).state
    return state


def phase(state: RecoveryState) -> str:
    assert state.leader is not None
    return state.leader.phase


LONG = reporting_threshold.LEAST_ITERATIONS + 1


def test_a_slowdown_is_reported_when_it_outlasts_what_would_explain_it() -> None:
    state = watched(RecoveryState(), slowly(11, 6.0), slowly(12, 6.6), slowly(LONG - 1, 90.0))
    assert phase(state) == "Suspected"
    assert phase(watched(state, slowly(LONG, reporting_threshold.LEAST_SECONDS))) == "Suspected", (
        "iterations alone do not count"
    )
    assert phase(watched(state, slowly(LONG, 90.0))) == "Detected"


def test_a_slowdown_that_was_found_late_is_judged_for_as_many_reports() -> None:
    late = watched(RecoveryState(), slowly(LONG + 20, 120.0), slowly(LONG + 24, 124.0))
    assert phase(late) == "Suspected"
    judged = LONG + 20 + reporting_threshold.LEAST_JUDGED
    assert phase(watched(late, slowly(judged - 1, 200.0))) == "Suspected"
    assert phase(watched(late, slowly(judged, 200.0))) == "Detected"


@pytest.mark.parametrize(("generation", "expected"), [(1, "Suspected"), (0, "Detected")])
def test_what_the_generation_has_settled_at_before_is_no_incident(generation: int, expected: str) -> None:
    slowest = replace(SETTLED, iteration_ns=440 * MS, generation=generation)
    state = watched(RecoveryState(levels=Levels(slowest=slowest)), at(1.8, 11, 6.0), at(1.8, LONG, 90.0))
    assert phase(state) == expected
    assert phase(watched(RecoveryState(levels=Levels(slowest=slowest)), at(1.99, 11, 6.0), at(1.99, LONG, 90.0))) == (
        "Detected"
    )


def test_a_slowdown_like_one_that_passed_is_not_reported_until_it_lasts_longer() -> None:
    known = RecoveryState(habits=Habits(spells=[Spell(size=1.8, iterations=100)]))
    state = watched(known, at(1.8, 11, 6.0), at(1.8, LONG, 90.0), at(1.8, 150, 120.0))
    assert phase(state) == "Suspected"
    assert phase(watched(state, at(1.8, 151, 120.0))) == "Detected"
    assert phase(watched(state, at(1.8, 150, reporting_threshold.MOST_SECONDS + 1))) == "Detected"
    smaller = RecoveryState(habits=Habits(spells=[Spell(size=1.4, iterations=100)]))
    assert phase(watched(smaller, at(1.8, 11, 6.0), at(1.8, 12, 6.6), at(1.8, LONG, 90.0))) == "Detected"


@pytest.mark.parametrize(("size", "expected"), [(2.6, "Detected"), (2.0, "Detected"), (1.9, "Suspected")])
def test_no_habit_hides_a_slowdown_that_costs_as_much_as_the_job(size: float, expected: str) -> None:
    known = RecoveryState(habits=Habits(spells=[Spell(size=3.0, iterations=10_000)]))
    state = watched(known, at(size, 11, 6.0), at(size, 12, 6.6), at(size, LONG - 1, 90.0))
    assert phase(state) == "Suspected"
    assert phase(watched(state, at(size, LONG, 90.0))) == expected


def test_what_the_work_of_a_rank_explains_is_not_reported() -> None:
    busy: dict[str, Any] = {"work": "InBytes", "onset": None, "iteration_ns": [250 * MS] * 16}
    looks = [slowly(11, 6.0, **busy), slowly(12, 6.6, **busy), slowly(5 * LONG, 900.0, **busy)]
    assert phase(watched(RecoveryState(), *looks)) == "Suspected"
    slow_too = {**busy, "iteration_ns": [400 * MS] * 16}
    assert phase(watched(RecoveryState(), *looks[:2], slowly(5 * LONG, 900.0, **slow_too))) == "Detected"


def test_slowdowns_that_pass_are_remembered_by_size() -> None:
    base = watched(RecoveryState(), slowly(11, 6.0)).leader
    assert base is not None

    def passed(state: RecoveryState, size: float, lasted: int) -> RecoveryState:
        slow: SlowIncident = replace(base, peak_ns=round(size * base.times.healthy_ns))
        return reporting_threshold.remember(state, slow, Look(slowly(lasted, 60.0), POLICY))

    state = passed(passed(RecoveryState(), 1.3, 20), 1.25, 30)
    assert state.habits.spells == [Spell(size=1.3, iterations=30)]
    for number in range(2 * reporting_threshold.MOST_SPELLS):
        state = passed(state, 2.0 * 1.2**number, 10)
    assert len(state.habits.spells) == reporting_threshold.MOST_SPELLS
    assert reporting_threshold.remember(state, base, Look(slowly(20, 60.0), POLICY)) == state, "its size was never seen"


def uploads(seed: int) -> list[Times]:
    """Return by upload what each rank's computation is multiplied by: all are slower, some more than others."""
    random = np.random.default_rng(seed)
    return [1 + 0.25 * random.uniform(0.6, 1.4, RANKS) for _ in range(20)]


def incidents(job: Job) -> list[int]:
    """Return the looks at which there is an incident."""
    return [look.iteration for look in job.looks if look.state.leader is not None and look.state.leader.is_incident]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("noise", "common_noise"), NOISES)
def test_unequal_uploads_are_no_incident(noise: float, common_noise: float, seed: int) -> None:
    shares = uploads(seed)

    def work(iteration: int) -> float | Times:
        return shares[iteration // 100] if iteration > 100 and iteration % 100 < 15 else 1.0

    job = Job(work, noise=noise, common_noise=common_noise, seed=seed).run(900)
    assert (job.named, incidents(job)) == ([], [])
    assert job.state.habits.spells


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("noise", "common_noise"), NOISES)
@pytest.mark.parametrize(("ranks", "stages", "procs"), [(8, 1, 1), (16, 4, 2), (16, 8, 1)])
def test_cold_caches_that_fade_unequally_are_no_incident(
    ranks: int, stages: int, procs: int, noise: float, common_noise: float, seed: int
) -> None:
    """Check data-parallel jobs and pipelines: the ranks of a node are slower alike, the nodes are not."""
    random = np.random.default_rng(seed)
    epochs = [np.repeat(0.6 * random.uniform(0.5, 1.5, ranks // procs), procs) for _ in range(6)]

    def work(iteration: int) -> float | Times:
        left = 1 - iteration % 200 / 30
        return 1 + left * epochs[iteration // 200] if iteration >= 200 and left > 0 else 1.0

    job = Job(work, ranks=ranks, stages=stages, procs=procs, noise=noise, common_noise=common_noise, seed=seed).run(
        1150
    )
    assert (job.named, incidents(job)) == ([], [])


def alternating(low: float, high: float, since: int) -> Callable[[int], float]:
    """Return by iteration how long all ranks compute: images are small and large in turn, five iterations each."""
    return lambda iteration: (low, high)[iteration // 5 % 2] if iteration > since else 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_what_all_ranks_gain_alike_is_no_incident_though_it_never_settles(seed: int) -> None:
    job = Job(alternating(1.3, 1.7, 150), seed=seed).run(400)
    assert any(look.state.leader is not None for look in job.looks)
    assert incidents(job) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rhythm_that_costs_as_much_as_the_job_is_an_incident(seed: int) -> None:
    assert incidents(Job(alternating(2.5, 3.3, 150), seed=seed).run(400))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_network_that_is_slow_for_all_ranks_is_an_incident_whatever_they_compute(seed: int) -> None:
    """Check transfers that take four times as long while the size of the images varies."""
    work = alternating(0.95, 1.05, 0)
    assert incidents(Job(work, lambda iteration: 4.0 if iteration > 150 else 1.0, seed=seed).run(400))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("since", [303, 350])
def test_a_straggler_beside_uploads_is_named(since: int, seed: int) -> None:
    """Check a rank that becomes slow within an upload and between two: its excess lies outside of their scatter."""
    shares = uploads(seed)

    def work(iteration: int) -> float | Times:
        own = only(5, 1.5) if iteration > since else np.ones(RANKS)
        return own * shares[iteration // 100] if iteration > 100 and iteration % 100 < 15 else own

    job = Job(work, seed=seed).run(since + 60)
    assert [rank for rank, _ in job.named] == [5]
    ((_, iteration),) = job.named
    assert iteration <= since + 24
