"""A program that has ended with an exception, and whose process lives on: known at once, acted on when it has ended."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from falcon_core.model import Cause
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.idle import is_quiet
from falcon_core.recovery.model.actions import Restart
from falcon_core.recovery.model.failure import StopIncident
from falcon_core.recovery.model.observation import Look, Observation, training
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.times import RAISED_SECONDS
from falcon_core.wire.launcher.printed import Printed
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

BAD = "ValueError: bad shape (train.py:40 in step)"
PEER_GONE = "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.3]:27189 (train.py:75 in main)"
FRESH = RecoveryState()


def uncaught(text: str = BAD, at: float = NOW - 0.1) -> dict[str, Any]:
    """Return a rank whose program ended with an exception at this time (unix seconds)."""
    last_call_ns = int((at - 0.2) * 1e9)
    printed = [Printed(int(at * 1e9), text, "", True)]
    return {"uncaught_at": at, "printed": printed, "last_call_unix_ns": last_call_ns, "silent_seconds": 0.3}


def look(
    ranks: dict[int, dict[str, Any]], state: RecoveryState = FRESH, *, after: float = 0.0, policy: Policy = POLICY
) -> Step:
    return restart_ladder.step(state, Look(seen(ranks=ranks, now=NOW + after), policy))


def incident(state: RecoveryState) -> StopIncident:
    assert state.stop is not None
    return state.stop


def test_it_is_an_incident_at_once_and_the_restart_comes_with_the_end_of_the_process() -> None:
    taken = look({1: uncaught()})
    state = taken.state
    stop = incident(state)
    assert taken.is_empty
    assert (stop.fault.rank, stop.fault.cause, stop.undecided) == (1, Cause.PROCESS_FAILED, True)
    assert stop.fault.text == f"raised an uncaught error: {BAD}"
    assert stop.since == pytest.approx(NOW - 0.1)
    assert state.attempts == []
    gone = {**uncaught(), **ended(exit_code=1, at=NOW + 0.5), "last_words": BAD}
    taken = look({1: gone}, state, after=0.6)
    state = taken.state
    stop = incident(state)
    assert taken.in_order() == [Restart()]
    assert (stop.undecided, stop.recurrences, stop.since) == (False, 0, pytest.approx(NOW - 0.1))
    assert stop.fault.text == f"exited with code 1: {BAD}"
    assert len(state.attempts) == 1


@pytest.mark.parametrize(("number", "name"), [(signal.SIGABRT, "SIGABRT"), (signal.SIGSEGV, "SIGSEGV")])
def test_a_crash_while_it_cleans_up_is_the_form_of_the_end_and_no_crash_of_the_program(number: int, name: str) -> None:
    gone = {**uncaught(), **ended(signal=number, at=NOW + 0.2), "last_words": BAD}
    peer = {**ended(exit_code=1, at=NOW + 0.1), "last_words": PEER_GONE}
    fault = incident(look({0: peer, 1: gone}, after=0.3).state).fault
    assert (fault.rank, fault.cause, fault.error_class) == (1, Cause.PROCESS_FAILED, "ProgramError")
    assert fault.text == f"raised an uncaught error, and crashed with {name} while it cleaned up: {BAD}"
    assert fault.error == "ValueError"


def test_a_crash_without_an_uncaught_error_is_one() -> None:
    gone = {**uncaught(), "uncaught_at": None, **ended(signal=signal.SIGABRT, at=NOW + 0.2), "last_words": BAD}
    assert incident(look({1: gone}, after=0.3).state).fault.cause is Cause.PROCESS_CRASHED


def test_a_process_that_does_not_end_is_not_waited_for_long() -> None:
    state = look({1: uncaught()}).state
    taken = look({1: uncaught()}, state, after=RAISED_SECONDS - 0.1)
    state = taken.state
    assert taken.is_empty
    taken = look({1: uncaught()}, state, after=RAISED_SECONDS)
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert not incident(state).undecided
    assert incident(state).fault.text == f"raised an error and does not end: {BAD}"


def test_the_first_cause_is_the_one_whose_process_has_yet_to_end() -> None:
    """Its communicators are closed when it cleans up: peers that lose their connection may end before it."""
    peer = {**ended(exit_code=1, at=NOW + 0.2), "last_words": PEER_GONE}
    taken = look({0: peer, 1: uncaught()}, after=0.3)
    state = taken.state
    assert taken.is_empty
    assert incident(state).fault.rank == 1


def test_what_a_peer_says_while_it_is_waited_for_may_be_the_cause() -> None:
    state = look({0: uncaught(PEER_GONE)}).state
    assert incident(state).fault.rank == 0
    killed = ended(signal=9, at=NOW - 0.3)
    taken = look({0: uncaught(PEER_GONE), 1: killed}, state, after=0.2)
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert (incident(state).fault.rank, incident(state).recurrences) == (1, 0)


def test_a_job_with_such_a_rank_neither_trains_nor_is_quiet() -> None:
    obs: Observation = seen(ranks={1: uncaught()})
    assert not training(obs, seen_before=True)
    assert not is_quiet(FRESH, obs)
    assert training(seen(), seen_before=True)


def test_a_failure_of_the_next_generation_is_a_recurrence() -> None:
    state = look({1: ended(exit_code=1)}).state
    again = seen(ranks={1: {**uncaught(), "iterations": 0}}, generation=2)
    taken = restart_ladder.step(state, Look(again, POLICY))
    state = taken.state
    assert (taken.in_order(), incident(state).recurrences, incident(state).undecided) == ([], 1, True)
    gone = seen(ranks={1: {**ended(exit_code=1), "iterations": 0}}, generation=2, now=NOW + 1)
    state = restart_ladder.step(state, Look(gone, POLICY)).state
    assert (incident(state).recurrences, incident(state).undecided) == (1, False)


def test_where_falcon_only_observes_a_process_that_lives_is_left_alone() -> None:
    observe = replace(POLICY, enforce=False)
    assert look({1: uncaught()}, policy=observe) == Step(FRESH)
