"""Set-up calls that ranks have tried again in place: when they are told, and when they are not."""

from __future__ import annotations

from typing import Any

from falcon_core.errors.judge import shipped_judge
from falcon_core.recovery import Look, machine
from falcon_core.recovery.failstop import setup_retries
from falcon_core.recovery.failstop.faults import rank_fault
from falcon_core.recovery.failstop.setup_retries import APART_SECONDS, ERROR_CLASS, GATHER_SECONDS
from falcon_core.recovery.model.events import Event, RetriesClosed
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.stored import Place
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

CALLED = {"last_call_unix_ns": int(NOW * 1e9), "silent_seconds": 0.1}
ONCE = {1: {"retries": 1, **CALLED}}


def at(seconds: float, ranks: dict[int, dict[str, Any]], **fields: Any) -> Observation:
    """Return what is seen so many seconds after the first look."""
    return seen(ranks=ranks, now=NOW + seconds, **fields)


def told(*looks: Observation, state: RecoveryState | None = None) -> tuple[RecoveryState, list[list[Event]]]:
    """Return the state after these looks, and the events of each of them."""
    state = RecoveryState() if state is None else state
    found = []
    for obs in looks:
        taken = setup_retries.step(state, Look(obs, POLICY))
        state = taken.state
        assert taken.commands == []
        found.append(taken.events)
    return state, found


def test_ranks_that_went_on_are_told_once_and_together() -> None:
    both = {0: {"retries": 2, **CALLED}, **ONCE}
    state, (first, second, third, fourth) = told(
        at(0, ONCE), at(2, both), at(GATHER_SECONDS + 1, both), at(GATHER_SECONDS + 2, both)
    )
    assert (first, second, third) == ([], [], []), "rank 0 has just joined them"
    (closed,) = fourth
    assert isinstance(closed, RetriesClosed)
    incident = closed.incident
    assert (incident.id, incident.retries, incident.ranks, incident.at) == ("gpt2-1", 3, 2, NOW + 2)
    assert incident.places[1] == Place(rank=1, pod_name="gpt2-1", node="node-1")
    assert state.incidents == 1
    assert told(at(90, both), state=state)[1] == [[]]


def test_nothing_is_told_before_the_rank_has_called_again() -> None:
    waiting = {1: {"retries": 1, "last_call_unix_ns": None}}
    earlier = {1: {"retries": 1, "last_call_unix_ns": int(NOW * 1e9), "silent_seconds": 60.0}}
    for ranks in (waiting, earlier):
        assert told(at(0, ranks), at(30, ranks))[1] == [[], []]


def test_a_failure_speaks_for_its_retries_itself() -> None:
    failed = {1: {"retries": 2, "comm_error": 6, **ended(exit_code=1)}}
    fault = rank_fault(Look(seen(ranks=failed), POLICY))
    assert fault is not None
    assert fault.signs == (
        "rank 1 had tried set-up calls 2 times again in place;"
        " NCCL had reported to rank 1: ncclRemoteError (RemoteError)"
    )
    taken = machine.step(RecoveryState(), Look(at(0, failed), POLICY))
    state = taken.state
    assert state.stop is not None
    assert not any(isinstance(action, RetriesClosed) for action in taken.events)
    assert told(at(0, ONCE), at(30, ONCE), state=state)[1] == [[], []], "told when the failure is over"
    assert len(told(at(0, ONCE), at(30, ONCE), state=replace(state, stop=None))[1][1]) == 1


def test_the_whole_machine_tells_it() -> None:
    state = machine.step(RecoveryState(), Look(at(0, ONCE), POLICY)).state
    assert state.is_well
    taken = machine.step(state, Look(at(GATHER_SECONDS, ONCE), POLICY))
    assert [type(action) for action in taken.in_order()] == [RetriesClosed]


def test_however_often_ranks_try_again_incidents_are_apart() -> None:
    state, _ = told(at(0, ONCE), at(GATHER_SECONDS, ONCE))
    more = {1: {"retries": 5, **CALLED}}
    looks = [at(GATHER_SECONDS + seconds, more) for seconds in (1, 30, APART_SECONDS - 1, APART_SECONDS)]
    _, events = told(*looks, state=state)
    assert events[:3] == [[], [], []]
    (closed,) = events[3]
    assert isinstance(closed, RetriesClosed)
    assert closed.incident.retries == 4


def test_another_generation_counts_anew() -> None:
    state, _ = told(at(0, ONCE), at(GATHER_SECONDS, ONCE))
    _, events = told(at(100, ONCE, generation=2), at(100 + GATHER_SECONDS, ONCE, generation=2), state=state)
    assert [len(made) for made in events] == [0, 1]


def test_a_count_that_falls_is_an_agents_that_began_again() -> None:
    state, _ = told(at(0, {1: {"retries": 3, **CALLED}}), at(GATHER_SECONDS, {1: {"retries": 3, **CALLED}}))
    assert told(at(90, ONCE), at(120, ONCE), state=state)[1] == [[], []]


def test_its_class_is_in_the_table() -> None:
    assert shipped_judge().get(ERROR_CLASS) is not None
