"""Slow though the job hardly is: a rank whose computation has grown is named, and is not taken for less than it costs.

Each case is a job whose iterations wait for something else most of the time, so that its agents report no onset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from falcon_core.model import Evidence
from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.detail_requests import wanted_detail
from falcon_core.recovery.diagnosis import slow_without_onset
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.state import Levels, RecoveryState, Suspicions
from tests.seeds import seeds
from tests.unit.recovery.diagnosis.test_slow_from_start import opened
from tests.unit.recovery.seen import replace
from tests.unit.recovery.series import Job, Times, only

RANKS = 16
ONSET = 400
LATEST = 160  # iterations from the onset to the name: eight reports
NEVER = 1e6  # seconds: a price that no loss reaches
NOISES = [(0.015, 0.0), (0.04, 0.05)]


def others(iteration: int) -> float:
    """Return how long the rest of a pipeline of variable lengths takes: 1.3 to 1.6 of a rank's own computation."""
    return 1.3 + 0.3 * float(np.random.default_rng(iteration).random())


def slow(factor: float, rank: int = 5, until: int = 1 << 30) -> Callable[[int], Times]:
    return lambda iteration: only(rank, factor if ONSET < iteration <= until else 1.0, RANKS)


def job(work: Callable[[int], float | Times], **fields: float) -> Job:
    return Job(work, **{"ranks": RANKS, "price_seconds": NEVER, "least": others, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("noise", "common_noise"), NOISES)
@pytest.mark.parametrize("stages", [1, 4])
def test_a_slow_rank_that_costs_less_than_an_onset_is_named(
    stages: int, noise: float, common_noise: float, seed: int
) -> None:
    played = job(slow(1.5), stages=stages, noise=noise, common_noise=common_noise, seed=seed).run(900)
    ((rank, iteration),) = played.named
    assert rank == 5
    assert ONSET + 112 <= iteration <= ONSET + LATEST
    found = opened(played)
    assert found.onset.unreported
    assert ONSET <= found.onset.iteration <= ONSET + 24
    assert found.culprit is not None
    assert found.culprit.slowdown == pytest.approx(1.5, rel=0.1)
    assert found.node_fault.evidence is Evidence.WAS_HEALTHY_HERE
    lost = found.times.slow_ns / found.times.healthy_ns - 1
    assert 0.02 < lost < 0.10
    assert found.loss.seconds == pytest.approx(500 * 0.34 * 0.05, rel=0.6), "what the job loses, not what the rank does"


class PartlyHidden(Job):
    """A job in which the calls of some ranks do not show how much work they have."""

    hidden: frozenset[int] = frozenset()

    def observation(self) -> Observation:
        obs = super().observation()
        ranks = [
            replace(rank, sent=replace(rank.sent, work="Hidden")) if rank.rank in self.hidden else rank
            for rank in obs.ranks
        ]
        return replace(obs, ranks=ranks)


@pytest.mark.parametrize(("hidden", "named"), [({5}, [5]), (range(7), [5]), (range(8), [])])
def test_a_ranks_work_is_known_where_that_of_most_of_its_peers_is(hidden: Iterable[int], named: list[int]) -> None:
    played = PartlyHidden(slow(1.5), ranks=RANKS, price_seconds=NEVER, least=others)
    played.hidden = frozenset(hidden)
    assert [rank for rank, _ in played.run(ONSET + LATEST).named] == named


def test_its_node_is_replaced_when_the_loss_has_paid_for_it() -> None:
    played = job(slow(1.5), price_seconds=6.0, pod_seconds=lambda _: 5.0, spares=4).run(1600)  # type: ignore[arg-type]
    ((replicas, iteration),) = played.switched
    assert replicas == [5]
    assert iteration > ONSET + 300
    assert [closed.outcome for closed in played.closed] == ["Helped"]


@pytest.mark.parametrize("seed", seeds(3))
def test_relief_is_the_ranks_own_computation(seed: int) -> None:
    played = job(slow(1.5, until=700), seed=seed).run(690)
    assert played.state.leader is not None, "though the job's iterations are as good as well"
    assert played.run(60).state.leader is None
    assert [closed.outcome for closed in played.closed] == ["Relieved"]


def moving(iteration: int) -> Times:
    """Return work that is hot at another rank each 90 iterations."""
    return only(iteration // 90 % RANKS, 1.4, RANKS)


def drifting(iteration: int) -> Times:
    """Return unequal work, of which each rank's share wanders by itself."""
    phases = np.arange(RANKS)
    return 1 + 0.15 * np.sin(iteration / 150 + phases)


def many(iteration: int) -> Times:
    """Return the work of a job in which each node's first rank has more to do from some day on."""
    return np.where((np.arange(RANKS) % 4 == 0) & (iteration > ONSET), 1.4, 1.0)


HEALTHY: dict[str, tuple[Callable[[int], float | Times], dict[str, object]]] = {
    "constant": (lambda iteration: 1.0, {}),
    "a spell": (slow(1.5, until=ONSET + 90), {}),
    "below the factor": (slow(1.15), {}),
    "no rank waits for it": (slow(1.4), {"least": lambda iteration: 2.0}),
    "work that moves": (moving, {}),
    "work that cannot be seen": (slow(1.5), {"shown": "Hidden"}),
    "shares that wander": (drifting, {}),
    "each node's first rank": (many, {"procs": 4}),
    "groups of two": (slow(1.5), {"stages": 8}),
}


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("noise", "common_noise"), NOISES)
@pytest.mark.parametrize("name", HEALTHY)
def test_nobody_is_named_where_that_proves_nothing(name: str, noise: float, common_noise: float, seed: int) -> None:
    work, fields = HEALTHY[name]
    played = job(work, **{"noise": noise, "common_noise": common_noise, "seed": seed, **fields}).run(900)  # type: ignore[arg-type]
    assert (played.named, played.state.incidents) == ([], 0)


def test_the_detail_of_a_suspect_is_asked_for_before_it_is_named() -> None:
    played = job(slow(1.5)).run(ONSET + 60)
    assert played.state.suspicions.grown is not None
    assert list(played.state.suspicions.grown.compute_ns) == [5]
    assert wanted_detail(played.state, Look(played.observation(), played.policy)) == []
    certain = RecoveryState(
        suspicions=Suspicions(
            grown=mitigation_ladder.replace(played.state.suspicions.grown, reports=slow_without_onset.REPORTS)
        ),
        levels=Levels(healthy_ns=played.state.levels.healthy_ns),
    )
    assert wanted_detail(certain, Look(played.observation(), played.policy)) == [5]


def test_a_generation_forgets_the_suspects_of_the_one_before() -> None:
    played = job(slow(1.5)).run(ONSET + 60)
    found = slow_without_onset.look(
        played.state, Look(mitigation_ladder.replace(played.observation(), generation=2), played.policy)
    ).suspicions.grown
    assert found is not None
    assert (found.generation, found.reports) == (2, 1)
