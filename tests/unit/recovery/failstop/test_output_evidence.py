"""What ranks print while they run: why a process ended, and which rank has failed though its process lives."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Cause, Severity
from falcon_core.recovery.detail_requests import wanted_detail
from falcon_core.recovery.failstop import hangs, restart_ladder
from falcon_core.recovery.failstop.faults import raised_fault, rank_fault
from falcon_core.recovery.idle import is_quiet
from falcon_core.recovery.model.actions import Replace, Restart
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look, Observation, Spares
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.signals.job.stacks import PROGRAM_ENDED
from falcon_core.times import ANSWERED_SECONDS, IDLE_SECONDS, RAISED_SECONDS
from falcon_core.wire.launcher.printed import Printed
from falcon_core.wire.reporting.messages import CommSignals
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

ECC = "CUDA error: uncorrectable ECC error encountered"
BAD = "ValueError: bad shape (train.py:40 in step)"
PEER_GONE = "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.3]:27189 (train.py:75 in main)"
FLOOD = "step 3012 loss 2.3"
DEADLINE_SECONDS = 10.0
SHUTDOWN = ["_shutdown (threading.py:1583)"]
WAITING = ["all_reduce (distributed_c10d.py:2501)", "main (train.py:75)", "<module> (train.py:80)"]
FRESH = RecoveryState()


def ns(seconds: float) -> int:
    return int(seconds * 1e9)


def at(seconds: float, text: str = BAD, *, raised: bool = True) -> Printed:
    """Return what was printed at this time (unix seconds)."""
    return Printed(ns(seconds), text, "", raised)


def silent(seconds: float, **changes: Any) -> dict[str, Any]:
    """Return a rank that is inside a call, and has not returned from one for so long."""
    return {
        "stalled": seconds > DEADLINE_SECONDS,
        "silent_seconds": seconds,
        "quiet_seconds": seconds,
        "last_call_unix_ns": ns(NOW - seconds),
        "hang_deadline_ns": ns(DEADLINE_SECONDS),
        "comms": [CommSignals(comm=7, size=3, place=0, entered=41, finished=40)],
        "stack": WAITING,
        **changes,
    }


def standing(seconds: float = 20.0, **one: Any) -> Observation:
    """Return a job in which ranks 0 and 2 wait for rank 1, which left its program; ``one``: its fields."""
    own = {
        "comms": [CommSignals(comm=7, size=3, place=1, entered=40, finished=40)],
        "stack": SHUTDOWN,
        "printed": [at(NOW - seconds + 0.01)],
    }
    return seen(ranks={0: silent(seconds - 0.5), 1: silent(seconds, **{**own, **one}), 2: silent(seconds - 0.5)})


def fault_of(obs: Observation) -> Fault | None:
    return raised_fault(Look(obs, POLICY))


def test_a_rank_that_raised_and_does_not_end_has_failed() -> None:
    fault = fault_of(standing())
    assert fault is not None
    assert (fault.rank, fault.node, fault.cause, fault.severity) == (1, "node-1", Cause.PROCESS_FAILED, Severity.SEV2)
    assert fault.text == f"raised an error and does not end: {BAD}"
    assert fault.error_class == "ProgramError"
    taken = restart_ladder.step(FRESH, Look(standing(), POLICY))
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert state.stop is not None
    assert state.stop.since == pytest.approx(NOW - 20, abs=0.1)


def test_a_rank_whose_program_is_over_and_whose_process_stays_has_failed_whatever_it_printed() -> None:
    fault = fault_of(standing(stack=[PROGRAM_ENDED], printed=[], alone=False))
    assert fault is not None
    assert (fault.rank, fault.cause, fault.symptom) == (1, Cause.PROCESS_FAILED, False)
    assert fault.text == "ended its program while other ranks trained, and its process does not end"
    fault = fault_of(standing(stack=[PROGRAM_ENDED]))
    assert fault is not None
    assert fault.text == f"raised an error and does not end: {BAD}"
    assert fault_of(standing(2.0, stack=[PROGRAM_ENDED], printed=[])) is None, "the others still move"
    at_the_end = standing(stack=[PROGRAM_ENDED], printed=[])
    done = replace(at_the_end, ranks=[replace(rank, sent=replace(rank.sent, comms=[])) for rank in at_the_end.ranks])
    assert fault_of(done) is None, "no rank waits for it: training is over"


def test_no_rank_has_failed_before_its_time() -> None:
    """Their deadlines may be minutes: reports that the operator has asked for say that no rank moves."""
    assert fault_of(standing(RAISED_SECONDS)) is None
    assert fault_of(standing(RAISED_SECONDS + 0.6)) is not None


def test_without_a_stack_and_for_a_line_of_hardware_the_deadline_counts() -> None:
    late = DEADLINE_SECONDS + ANSWERED_SECONDS
    for own in ({"stack": []}, {"printed": [at(NOW - late + 0.2, ECC, raised=False)]}):
        assert fault_of(standing(late - 0.1, **own)) is None
        assert fault_of(standing(late + 0.1, **own)) is not None


def test_the_ranks_are_asked_once_one_has_printed_an_error_and_made_no_call_that_is_known() -> None:
    def wanted(obs: Observation) -> list[int]:
        return wanted_detail(FRESH, Look(obs, POLICY))

    assert wanted(standing(2.0)) == [0, 1, 2]
    assert not is_quiet(FRESH, standing(2.0))
    assert wanted(standing(0.5)) == [], "its report may be on its way"
    assert wanted(standing(2.0, printed=[])) == []
    assert wanted(standing(2.0, printed=[at(NOW - 3)])) == [], "it has made a call since"
    assert wanted(standing(2.0, printed=[at(NOW - 1, "loss is nan", raised=False)])) == []


@pytest.mark.parametrize(
    "own",
    [
        {"silent_seconds": 0.1, "quiet_seconds": 0.1, "last_call_unix_ns": ns(NOW - 0.1), "stalled": False},
        {"last_call_unix_ns": ns(NOW - 15), "silent_seconds": 15.0},
        {"stack": ["upload (train.py:55)", "main (train.py:75)"]},
        {"stack": ["<module> (train.py:90)"]},
        {"printed": []},
        {"printed": [at(NOW - 19, FLOOD, raised=False)]},
        {"printed": [at(NOW - 19, "OSError: [Errno 116] Stale file handle: '/data/latest'", raised=False)]},
        {"printed": [at(NOW - 1)]},
        {"last_call_unix_ns": None, "stalled": False, "hang_deadline_ns": None, "quiet_seconds": 0.0},
        {"alone": False},
        {"fresh": False},
    ],
    ids=[
        "it goes on making calls",
        "it made a call since",
        "it is in a function of its program",
        "it is in its script",
        "it said nothing",
        "no error",
        "an error that it may have survived",
        "a moment ago",
        "before its first call",
        "one process of several ranks",
        "an old report",
    ],
)
def test_a_printed_error_is_no_failure_by_itself(own: dict[str, Any]) -> None:
    obs = standing(**own)
    assert fault_of(obs) is None
    assert restart_ladder.step(FRESH, Look(obs, POLICY)) == Step(FRESH)


def test_while_any_rank_moves_no_error_is_a_failure() -> None:
    obs = standing()
    moving = [
        replace(rank, stalled=False, silent_seconds=0.1, quiet_seconds=0.1) if rank.rank == 0 else rank
        for rank in obs.ranks
    ]
    assert fault_of(replace(obs, ranks=moving)) is None


def test_where_nobody_waits_each_rank_may_save_by_itself() -> None:
    obs = standing()
    rest = [
        replace(rank, sent=replace(rank.sent, comms=[CommSignals(comm=7, size=3, place=0, entered=40, finished=40)]))
        for rank in obs.ranks
    ]
    assert fault_of(replace(obs, ranks=rest)) is None


def test_after_others_have_ended_well_an_error_is_a_failure_of_the_rank_that_runs_on() -> None:
    obs = standing()
    rest = [
        replace(rank, sent=replace(rank.sent, comms=[CommSignals(comm=7, size=3, place=0, entered=40, finished=40)]))
        if rank.rank == 1
        else replace(rank, process="Ended", exit_code=0)
        for rank in obs.ranks
    ]
    fault = fault_of(replace(obs, ranks=rest))
    assert fault is not None
    assert fault.rank == 1


def test_without_a_stack_of_its_own_it_counts_where_others_show_theirs() -> None:
    """An interpreter that is torn down answers no more; one that never answered shows nothing."""
    obs = standing(stack=[])
    assert fault_of(obs) is not None
    nobody = [replace(rank, sent=replace(rank.sent, stack=[])) for rank in obs.ranks]
    assert fault_of(replace(obs, ranks=nobody)) is None


def test_the_program_that_tears_its_communicators_down_has_failed() -> None:
    assert fault_of(standing(stack=["destroy_process_group (distributed_c10d.py:2100)", "main (train.py:90)"]))


def test_a_line_of_broken_hardware_counts_wherever_the_rank_stands() -> None:
    """Nothing is raised: the rank waits for its device for ever."""
    said = [at(NOW - 19, ECC, raised=False)]
    obs = replace(standing(stack=WAITING, printed=said), spares=Spares(pool="spares", available=True))
    fault = fault_of(obs)
    assert fault is not None
    assert (fault.error_class, fault.severity) == ("EccError", Severity.SEV1)
    taken = restart_ladder.step(FRESH, Look(obs, POLICY))
    assert [type(action) for action in taken.in_order()] == [Replace]


def test_the_first_cause_among_ranks_that_raised() -> None:
    obs = standing()
    peers = silent(19.0, stack=SHUTDOWN, printed=[at(NOW - 18.9, PEER_GONE)])
    changed = standing(20.0).ranks
    earlier = seen(ranks={0: peers, 1: {}, 2: peers}).ranks
    both = replace(obs, ranks=[earlier[0], changed[1], earlier[2]])
    fault = fault_of(both)
    assert fault is not None
    assert fault.rank == 1


def test_mode_observe_does_nothing_and_shows_it_at_once() -> None:
    policy = replace(POLICY, enforce=False)
    obs = standing(DEADLINE_SECONDS + 2)
    assert raised_fault(Look(obs, policy)) is None
    assert DEADLINE_SECONDS + 2 < IDLE_SECONDS
    taken = restart_ladder.step(FRESH, Look(obs, policy))
    state = taken.state
    assert taken.is_empty
    state = hangs.step(state, Look(obs, policy)).state
    assert state.hang is not None
    assert state.hang.said == {1: BAD}
    quiet = standing(DEADLINE_SECONDS + 2, printed=[])
    assert hangs.step(FRESH, Look(quiet, policy)).state.hang is None


def test_a_hang_cites_what_silent_ranks_have_said_since_their_calls() -> None:
    obs = standing(IDLE_SECONDS + 5, stack=["retry (train.py:9)", "main (train.py:75)"], cpu_fraction=0.0)
    state = hangs.step(FRESH, Look(obs, POLICY)).state
    assert state.hang is not None
    assert state.hang.said == {1: BAD}


def failed(**changes: Any) -> Observation:
    """Return a job whose rank 1 has ended, and whose last call returned ten seconds ago."""
    end = {**ended(exit_code=1), "last_call_unix_ns": ns(NOW - 10), "last_words": FLOOD}
    return seen(ranks={1: {**end, **changes}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"printed": [at(NOW - 1)]}, BAD),
        ({"printed": [at(NOW - 2, PEER_GONE), at(NOW - 1)]}, BAD),
        ({"printed": [at(NOW - 1, PEER_GONE)]}, PEER_GONE),
        ({"printed": [at(NOW - 11)]}, FLOOD),
        ({"printed": [at(NOW - 1)], "last_words": ""}, BAD),
        ({"printed": [at(NOW - 1, "KeyError: 'x' (a.py:1 in f)")], "last_words": BAD}, BAD),
        ({"printed": [at(NOW - 1)], "last_words": PEER_GONE}, BAD),
        ({"printed": [at(NOW - 9)], "last_call_unix_ns": None}, BAD),
        ({"printed": [at(NOW - 900)], "last_call_unix_ns": None}, FLOOD),
        ({"printed": []}, FLOOD),
    ],
    ids=[
        "hidden by a flood",
        "the cause, not its consequence",
        "a consequence says more than a flood",
        "it was survived",
        "no last words",
        "what was raised last ended it",
        "the own error, not the lost peer",
        "no call is known",
        "long before the end",
        "nothing printed",
    ],
)
def test_why_a_process_ended(changes: dict[str, Any], words: str) -> None:
    obs = failed(**changes)
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    assert fault.text == f"exited with code 1: {words}"
