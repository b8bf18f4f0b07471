"""What standbys cost while they are made is no rank's slowness; what is slow afterwards is."""

from __future__ import annotations

from typing import Any

from falcon_core.recovery import mitigation_ladder
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.standby_interference import MOST_SECONDS
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS
from tests.unit.recovery.seen import POLICY, STRAGGLER, seen


def slow(iterations: int = 100, **fields: Any) -> Observation:
    return seen(ranks={rank: {**of, "iterations": iterations} for rank, of in STRAGGLER.items()}, **fields)


def named(state: RecoveryState) -> list[int]:
    return [culprit.rank for culprit in state.culprits]


def after(state: RecoveryState, *looks: Observation) -> RecoveryState:
    for obs in looks:
        state = mitigation_ladder.step(state, Look(obs, POLICY)).state
    return state


def twice(obs: Observation) -> tuple[Observation, Observation]:
    return obs, obs  # an onset makes a suspicion, and the look after that a name


def test_a_rank_that_is_slow_while_standbys_are_made_is_not_named() -> None:
    assert named(after(RecoveryState(), *twice(slow()))) == [2], "or this test shows nothing"
    assert after(RecoveryState(), *twice(slow(standbys_made=True))).leader is None


def test_the_iterations_of_that_time_are_not_judged_later_either() -> None:
    state = after(RecoveryState(), slow(100, standbys_made=True))
    state = after(state, *twice(slow(100 + RECENT_ITERATIONS - 1)))
    assert state.leader is None
    state = after(state, *twice(slow(100 + RECENT_ITERATIONS)))
    assert named(state) == [2], "it is slow without the standbys, too"


def test_a_new_generation_is_judged_from_its_first_iteration() -> None:
    state = after(RecoveryState(), slow(100, standbys_made=True))
    assert named(after(state, *twice(slow(20, generation=2)))) == [2]


def test_what_is_known_of_an_open_incident_stays() -> None:
    before = after(RecoveryState(), *twice(slow()))
    during = after(before, slow(110, standbys_made=True))
    assert during.leader == before.leader


def test_a_standby_that_is_never_ready_hides_nothing_for_ever() -> None:
    late = slow(standbys_made=True, running_seconds=MOST_SECONDS + 1)
    assert named(after(RecoveryState(), *twice(late))) == [2]
