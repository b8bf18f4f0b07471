"""Slow from the first iteration: named against its peers alone, and no rank is named whose work differs by nature.

Each case is a series through the agents' own detectors, which take a slow start for health.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.detail_requests import wanted_detail
from falcon_core.recovery.diagnosis import slow_from_start
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import Levels, RecoveryState, Suspicions
from falcon_core.recovery.model.suspects import SinceStart
from falcon_core.signals.changepoint.generation_level import Level
from tests.seeds import seeds
from tests.unit.recovery.seen import MS, replace
from tests.unit.recovery.series import LOOK_ITERATIONS, Job, Times, only

RANKS = 16
NEVER = 1e6  # seconds: a price that no loss reaches
LATEST = 160  # iterations: warm-up, five reports, and a period that is found first
NOISES = [(0.015, 0.0), (0.04, 0.05)]


def job(work: Callable[[int], float | Times], **fields: float) -> Job:
    return Job(work, **{"ranks": RANKS, "price_seconds": NEVER, **fields})  # type: ignore[arg-type]


def of(ranks: dict[int, float]) -> Times:
    """Return the work of a job in which some ranks compute longer."""
    work = np.ones(RANKS)
    for rank, factor in ranks.items():
        work[rank] = factor
    return work


def opened(played: Job) -> SlowIncident:
    assert played.state.leader is not None
    return played.state.leader


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("noise", "common_noise"), NOISES)
@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("factor", [1.4, 1.9])
def test_a_rank_that_was_slow_from_the_first_iteration_is_named(
    factor: float, stages: int, noise: float, common_noise: float, seed: int
) -> None:
    work = only(5, factor, RANKS)
    played = job(lambda iteration: work, stages=stages, noise=noise, common_noise=common_noise, seed=seed).run(400)
    ((rank, iteration),) = played.named
    assert rank == 5
    assert iteration <= LATEST
    slow = opened(played)
    assert (slow.onset.from_start, slow.onset.generation, slow.onset.iteration) == (True, 1, 1)
    assert slow.culprit is not None
    assert slow.culprit.healthy_compute_ns is None
    assert slow.culprit.slowdown == pytest.approx(factor, rel=0.1)
    assert slow.times.healthy_ns == pytest.approx(250 * MS, rel=0.12)
    assert slow.loss.seconds == pytest.approx(400 * 0.2 * (factor - 1), rel=0.35), "since the first iteration"


@pytest.mark.parametrize("seed", seeds(3))
def test_the_ranks_of_a_slow_node_are_named_together(seed: int) -> None:
    work = of({6: 1.6, 7: 1.5})
    played = job(lambda iteration: work, procs=2, seed=seed).run(200)
    assert [rank for rank, _ in played.named] == [6]
    culprit = opened(played).culprit
    assert culprit is not None
    assert (culprit.replica, culprit.node, culprit.also) == (3, "node-3", [7])


@pytest.mark.parametrize("seed", seeds(3))
def test_the_heaviest_stage_decides_whether_a_slow_rank_costs_anything(seed: int) -> None:
    heavy = dict.fromkeys(range(12, 16), 1.5)
    hidden, shown = of({**heavy, 0: 1.4}), of({**heavy, 0: 2.2})
    assert job(lambda iteration: hidden, stages=4, seed=seed).run(300).named == []
    played = job(lambda iteration: shown, stages=4, seed=seed).run(300)
    assert [rank for rank, _ in played.named] == [0]
    assert opened(played).times.healthy_ns == pytest.approx(350 * MS, rel=0.1), "as long as the heaviest stage"


def by_nature(iteration: int) -> Times:
    """Return unequal shares of the work, such as embedding tables that differ in size."""
    return np.exp(0.15 * np.random.default_rng(3).standard_normal(RANKS))


def warm_up(iteration: int) -> Times:
    """Return a warm-up in which one rank takes twice as long as the others: it compiles for all."""
    return only(3, 1 + 1.0 * np.exp(-iteration / 20), RANKS)


def moving(iteration: int) -> Times:
    """Return work that is hot at one rank from the beginning, and at another rank after a while."""
    return only(3 if iteration <= 90 else 11, 1.5, RANKS)


def many(iteration: int) -> Times:
    """Return the work of a job in which each node's first rank does more."""
    return np.where(np.arange(RANKS) % 4 == 0, 1.4, 1.0)


HEALTHY: dict[str, tuple[Callable[[int], float | Times], dict[str, float]]] = {
    "constant": (lambda iteration: 1.0, {}),
    "busy first rank": (lambda iteration: only(0, 1.15, RANKS), {}),
    "heavy last stage": (lambda iteration: of(dict.fromkeys(range(12, 16), 1.4)), {"stages": 4}),
    "half of the ranks": (lambda iteration: of(dict.fromkeys(range(8), 1.9)), {"procs": 8}),
    "each node's first rank": (many, {"procs": 4}),
    "shares that differ by nature": (by_nature, {}),
    "warm-up": (warm_up, {}),
    "work that moves": (moving, {}),
    "groups of two": (lambda iteration: only(5, 1.4, RANKS), {"stages": 8}),
}


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("noise", "common_noise"), NOISES)
@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_named_where_peers_prove_nothing(name: str, noise: float, common_noise: float, seed: int) -> None:
    work, fields = HEALTHY[name]
    played = job(work, noise=noise, common_noise=common_noise, seed=seed, **fields).run(600)
    assert (played.named, played.state.incidents) == ([], 0)
    assert played.state.leader is None


@pytest.mark.parametrize("seed", seeds(3))
def test_there_is_one_such_incident_a_generation(seed: int) -> None:
    """Check a rank that is slow, well for a while, and slow again: the first incident stays over."""

    def work(iteration: int) -> Times:
        return only(5, 1.0 if 250 < iteration <= 300 else 1.5, RANKS)

    played = job(work, noise=0.015, seed=seed).run(400)
    found = {
        look.state.leader.id
        for look in played.looks
        if look.state.leader is not None and look.state.leader.onset.from_start
    }
    assert len(found) == 1
    assert [closed.outcome for closed in played.closed] == ["Relieved"]


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("factor", [1.2, 1.25, 1.3])
def test_near_the_threshold_an_incident_opens_once_or_never(factor: float, seed: int) -> None:
    work = only(5, factor, RANKS)
    played = job(lambda iteration: work, noise=0.04, common_noise=0.05, seed=seed).run(1200)
    assert played.state.incidents <= 1
    assert played.closed == []


@pytest.mark.parametrize("later", [120, 400])
def test_slowness_that_begins_later_is_left_to_its_onset(later: int) -> None:
    played = job(lambda iteration: only(5, 1.4, RANKS) if iteration > later else 1.0).run(later + 200)
    slow = opened(played)
    assert (slow.onset.from_start, [rank for rank, _ in played.named]) == (False, [5])
    assert abs(slow.onset.iteration - later) <= 12


# -- reports without detail, other generations -------------------------------------------------------------------------


def brief(obs: Observation) -> Observation:
    """Return the observation with the reports of healthy agents: a level, and no newest iterations."""
    return replace(obs, ranks=[replace(rank, sent=replace(rank.sent, detailed=False)) for rank in obs.ranks])


def followed(played: Job, state: RecoveryState, iterations: int) -> tuple[RecoveryState, Observation]:
    """Look at briefs alone, for so many iterations; return the state and the last observation."""
    obs = brief(played.run(LOOK_ITERATIONS).observation())
    for _ in range(iterations // LOOK_ITERATIONS):
        obs = brief(played.run(LOOK_ITERATIONS).observation())
        state = mitigation_ladder.step(state, Look(obs, played.policy)).state
    return state, obs


def test_detail_is_asked_before_a_rank_is_named() -> None:
    work = only(5, 1.4, RANKS)
    played = job(lambda iteration: work)
    state, obs = followed(played, RecoveryState(), 80)
    assert state.suspicions.since_start is not None
    assert (state.suspicions.since_start.ranks, wanted_detail(state, Look(obs, played.policy))) == ([5], []), (
        "not certain yet"
    )
    state, obs = followed(played, state, 80)
    assert state.leader is None
    assert wanted_detail(state, Look(obs, played.policy)) == [5]
    state = mitigation_ladder.step(state, Look(played.run(LOOK_ITERATIONS).observation(), played.policy)).state
    assert state.leader is not None
    assert state.leader.culprit is not None
    assert state.leader.culprit.rank == 5


def test_the_same_report_counts_once() -> None:
    played = job(lambda iteration: only(5, 1.4, RANKS)).run(100)
    obs, state = played.observation(), RecoveryState()
    for _ in range(20):
        state = mitigation_ladder.step(state, Look(obs, played.policy)).state
    assert state.suspicions.since_start == SinceStart(
        generation=1, calls=4 * RANKS, iteration=100, ranks=[5], reports=1, counted_iteration=100
    ), "twenty looks at one report"
    assert state.leader is None


def test_a_job_whose_start_is_slow_against_an_earlier_generation_is_explained_by_its_peers() -> None:
    """Check a rank below the median rule's factor: the level shows that the job is slow, the peers show why."""
    earlier = Level(iteration_ns=250 * MS, noise=0.02, iterations=400, world_size=RANKS, period_calls=4)
    played = job(lambda iteration: only(5, 1.4, RANKS))
    state = RecoveryState(levels=Levels(settled=earlier, healthy_ns=250 * MS))
    for _ in range(60):
        state = mitigation_ladder.step(state, Look(played.run(LOOK_ITERATIONS).observation(), played.policy)).state
    assert state.leader is not None
    assert state.leader.culprit is not None
    assert (state.leader.culprit.rank, state.leader.times.healthy_ns, state.incidents) == (5, 250 * MS, 1)


def test_each_generation_is_looked_at_for_itself() -> None:
    played = job(lambda iteration: only(5, 1.4, RANKS)).run(100)
    earlier = RecoveryState(suspicions=Suspicions(since_start=SinceStart(generation=1, calls=4 * RANKS)))
    second = replace(played.observation(), generation=2)
    state = slow_from_start.look(earlier, Look(second, played.policy))
    assert state.suspicions.since_start is not None
    assert (state.suspicions.since_start.generation, state.suspicions.since_start.ranks) == (2, [5])
    assert slow_from_start.look(earlier, Look(played.observation(), played.policy)) is earlier, "over in the first one"


def test_the_first_look_waits_for_every_rank() -> None:
    played = job(lambda iteration: only(5, 1.4, RANKS)).run(100)
    obs = played.observation()
    late = replace(obs.ranks[5], sent=replace(obs.ranks[5].sent, iterations=0, healthy_compute_ns=None))
    missing = replace(obs, ranks=[late if rank.rank == 5 else rank for rank in obs.ranks])
    since_start = slow_from_start.look(RecoveryState(), Look(missing, played.policy)).suspicions.since_start
    assert since_start == SinceStart(generation=1, calls=4 * RANKS, settles=True)
