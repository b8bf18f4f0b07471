"""How many healthy nodes a day count as slow because their work stayed for long, and when a slow node does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.model import Evidence
from falcon_core.recovery import Look
from falcon_core.recovery.history import node_fault
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import Habits, RecoveryState
from falcon_core.wire.reporting.messages import Work
from tests.unit.recovery.incidents import located, named, stay
from tests.unit.recovery.seen import NOW, POLICY, STRAGGLER, replace, seen

DAY = node_fault.REMEMBERED_SECONDS
UNIT = 1000  # iterations: so long that ``LEAST_ITERATIONS`` never decides
DONE = 10**12  # iterations of the job at each look: only differences count
OBS = seen(ranks={number: {**fields, "iterations": DONE} for number, fields in STRAGGLER.items()})
# Of each kind of length: a drawing, and the chance that a length is at least so many units.
LENGTHS: dict[str, tuple[Callable[[random.Random], float], Callable[[float], float]]] = {
    "exponential": (lambda rng: rng.expovariate(1.0), lambda units: math.exp(-units)),
    "Pareto 1.5": (lambda rng: rng.paretovariate(1.5), lambda units: min(1.0, units**-1.5)),
    "Pareto 1": (lambda rng: rng.paretovariate(1.0), lambda units: min(1.0, 1.0 / units)),
}


def slow_for(iterations: int, number: int, began_at: float, work: Work) -> SlowIncident:
    """Return the slowdown of a replica that has been slow for so long."""
    slow = located(culprit=replace(named(located()), replica=number, node=f"node-{number}", work=work))
    return replace(slow, onset=replace(slow.onset, iteration=DONE - iterations + 1, at=began_at))


def judged(state: RecoveryState, slow: SlowIncident, now: float) -> tuple[Evidence, int]:
    """Return the evidence against the slow replica's node, and after how many iterations it suffices; 0: not known."""
    return node_fault.evidence_against(state, slow, named(slow), Look(replace(OBS, now=now), POLICY))


def moves(kind: str, stays: int, a_day: int, seed: int, work: Work = "Hidden") -> Iterator[tuple[RecoveryState, int]]:
    """Yield what is known when each stay of a job begins, and the iterations that would make it the node's.

    Work moves to another healthy node after each stay, ``a_day`` times a day, and is handed over at once.
    """
    rng, state = random.Random(seed), RecoveryState()
    for number in range(stays):
        began_at, ends_at = (NOW + moment * DAY / a_day for moment in (number, number + 1))
        yield state, judged(state, slow_for(1, number, began_at, work), began_at)[1]
        length = max(1, round(UNIT * LENGTHS[kind][0](rng)))
        state = node_fault.passed(state, slow_for(length, number, began_at, work), replace(OBS, now=ends_at))


def rates(kind: str, a_day: int, jobs: int, work: Work = "Hidden") -> tuple[float, float]:
    """Return the mean number of healthy nodes at fault, on the day on which stays are learned and on the next.

    The chance of each stay is counted in place of its outcome, which needs far fewer jobs.
    """
    chance, found = LENGTHS[kind][1], [0.0, 0.0]
    for seed in range(jobs):
        for number, (_, iterations) in enumerate(moves(kind, 2 * a_day, a_day, seed, work)):
            found[number // a_day] += chance(iterations / UNIT) / jobs if iterations else 0.0
    return found[0], found[1]


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize(("a_day", "jobs", "first_day"), [(24, 100, 0.05), (300, 20, 0.10)])
def test_healthy_nodes_are_rarely_at_fault_however_often_work_moves(
    kind: str, a_day: int, jobs: int, first_day: float
) -> None:
    learning, later = rates(kind, a_day, jobs)
    assert learning < first_day
    assert later < 0.03


@pytest.mark.parametrize("kind", LENGTHS)
def test_work_that_is_handed_over_is_known_as_such_after_many_stays(kind: str) -> None:
    """Check that the memory's limit does not leave the newest stays alone to compare with."""
    learning, later = rates(kind, 300, 20, "Fixed")
    assert learning < 0.10
    assert later < 0.03


def test_a_fixed_factor_of_three_finds_far_more_healthy_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the simulation shows what the scatter of the lengths is needed for."""
    monkeypatch.setattr(node_fault, "MOST_STAY_FACTOR", node_fault.STAY_FACTOR)
    assert rates("exponential", 300, 5)[0] > 0.10
    assert rates("Pareto 1", 300, 5)[0] > 0.80


def test_rare_stays_that_are_far_longer_than_the_others_find_more_healthy_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check what the rule cannot do: lengths of two kinds show no tail."""

    def draw(rng: random.Random) -> float:
        return (200.0 if rng.random() < 0.05 else 1.0) * rng.uniform(0.8, 1.2)

    def chance(units: float) -> float:
        return sum(
            share * min(1.0, max(0.0, (1.2 - units / scale) / 0.4)) for share, scale in ((0.95, 1.0), (0.05, 200.0))
        )

    monkeypatch.setitem(LENGTHS, "two kinds", (draw, chance))
    learning, later = rates("two kinds", 24, 40)
    assert 0.3 < learning < 0.5
    assert 0.1 < later < 0.3


# -- a slow node -----------------------------------------------------------------------------------------------------


def factors(kind: str, stays: int) -> list[float]:
    """Return after how many times the longest known stay a slow node is found, in each of 15 jobs, shortest first."""
    found = []
    for seed in range(15):
        *_, (state, iterations) = moves(kind, stays + 1, 300, seed)
        found.append(iterations / max(known.iterations for known in state.habits.stays))
    return sorted(found)


def test_the_more_is_known_of_light_tails_the_earlier_a_slow_node_is_found() -> None:
    few, many = factors("exponential", 16), factors("exponential", 300)
    assert few[7] <= node_fault.MOST_STAY_FACTOR * 1.001
    assert many[7] < 10.0
    assert many[-1] < 20.0


@given(lengths=st.lists(st.integers(1, 50_000), min_size=3, max_size=node_fault.MOST_STAYS))
def test_a_slow_node_is_found_between_three_and_sixty_times_the_longest_stay(lengths: list[int]) -> None:
    stays = [stay(10 + number, length, at=NOW - 60.0) for number, length in enumerate(lengths)]
    state = RecoveryState(habits=Habits(stays=stays))
    _, iterations = judged(state, slow_for(1, 2, NOW, "Hidden"), NOW)
    assert iterations >= max(node_fault.LEAST_ITERATIONS, node_fault.STAY_FACTOR * max(lengths))
    assert iterations <= max(node_fault.LEAST_ITERATIONS, math.ceil(node_fault.MOST_STAY_FACTOR * max(lengths)))
    # What is known when the slowdown begins is not forgotten while it lasts.
    for later in (1.0, 3 * DAY, 30 * DAY):
        for stayed, evidence in ((iterations - 1, Evidence.WORK_MAY_MOVE), (iterations, Evidence.STAYED_LONGER)):
            slow = slow_for(stayed, 2, NOW, "Hidden")
            assert judged(state, slow, NOW + later) == (evidence, iterations)


@settings(max_examples=400)
@given(
    history=st.lists(
        st.tuples(
            st.integers(1, 50) | st.integers(1, 50_000), st.sampled_from([0.0, 5.0, 9.0, 3600.0]), st.integers(10, 14)
        ),
        max_size=node_fault.MOST_STAYS,
    ),
    gap=st.sampled_from([0.0, 5.0, 60.0]),
    work=st.sampled_from(["Fixed", "InBytes"]),
)
def test_whatever_passed_before_delays_a_slow_node_by_sixty_times_the_longest_stay(
    history: list[tuple[int, float, int]], gap: float, work: Work
) -> None:
    """Check any mixture of slowdowns that were handed over and that merely passed, also again on the same nodes."""
    stays, until = [], NOW - gap
    for iterations, quiet, replica in reversed(history):
        began_at = until - 0.65 * iterations
        stays.insert(0, stay(replica, iterations, at=until, began_at=began_at))
        until = began_at - quiet
    state = RecoveryState(habits=Habits(stays=stays))
    longest = max((each.iterations for each in stays), default=0)
    enough = slow_for(math.ceil(node_fault.MOST_STAY_FACTOR * longest) + 1, 2, NOW, work)
    assert node_fault.suffices(judged(state, enough, NOW)[0], POLICY)


@given(lengths=st.lists(st.integers(1, 50_000), min_size=3, max_size=node_fault.MOST_STAYS), scale=st.integers(2, 50))
def test_a_factor_depends_on_the_scatter_of_lengths_and_not_on_their_unit(lengths: list[int], scale: int) -> None:
    longest_first = sorted(lengths, reverse=True)
    scaled = [scale * length for length in longest_first]
    assert node_fault.stay_factor(scaled) == pytest.approx(node_fault.stay_factor(longest_first))
    assert node_fault.stay_factor([longest_first[0]] * 3) == node_fault.STAY_FACTOR


def test_a_break_between_two_stays_stays_one_when_a_stay_is_dropped() -> None:
    """Check that stays before a pause do not count for work that is handed over, however many follow it."""
    state, at, iterations = RecoveryState(), NOW, 0
    for number in range(3 * node_fault.MOST_STAYS):
        began_at = at + 3600.0 if number == node_fault.MOST_STAYS else at
        at = began_at + 100.0
        length = 50_000 if number < node_fault.MOST_STAYS // 2 else UNIT + number
        state = node_fault.passed(state, slow_for(length, number, began_at, "Fixed"), replace(OBS, now=at))
        iterations = judged(state, slow_for(1, number + 1, at, "Fixed"), at)[1]
    assert 0 < iterations < 50_000


def test_where_calls_are_constant_a_slowness_of_a_day_is_its_nodes() -> None:
    *_, (state, _) = moves("Pareto 1", 21, 300, 0, "Fixed")
    began_at = NOW + 20 * DAY / 300
    slow = slow_for(1, 2, began_at, "Fixed")
    assert judged(state, slow, began_at + DAY / 2)[0] is Evidence.WORK_MAY_MOVE
    assert judged(state, slow, began_at + DAY + 1.0)[0] is Evidence.WAS_HEALTHY_HERE


@pytest.mark.parametrize("slow_ms", [650, 2000])
def test_independent_slowdowns_rarely_look_handed_over(slow_ms: int) -> None:
    """Check onsets that are 5.4 hand-overs apart in the mean, of slowdowns that hardly last: the worst case."""
    rng, at, state, found = random.Random(1), NOW, RecoveryState(), 0
    slow = located(slow_ns=slow_ms * 1_000_000)
    apart = 5.4 * node_fault.handover_seconds(slow, Look(OBS, POLICY))
    for number in range(1000):
        at += rng.expovariate(1.0 / apart)
        look = Look(replace(OBS, now=at), POLICY)
        found += node_fault.is_handed_over(state, replace(slow, onset_at=at), look)
        passed = stay(number, 5, at=at + 0.1, began_at=at)
        state = RecoveryState(habits=Habits(stays=[*state.habits.stays, passed][-node_fault.MOST_STAYS :]))
    assert 0 < found < 1000 * 0.05
