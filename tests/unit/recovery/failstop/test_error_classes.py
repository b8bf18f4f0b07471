"""The ladder by what a failure's last words mean: which node is left, what does not count, what no restart mends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.errors.judge import ErrorRules, job_judge
from falcon_core.errors.table import JobRule
from falcon_core.model import Severity
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.failstop.faults import rank_fault
from falcon_core.recovery.model.actions import GiveUp, Replace, Restart
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look, NodeTrouble, Observation, Spares
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.repairs import repair_table
from falcon_core.recovery.repairs.by_class import TRANSIENT_SECONDS
from falcon_core.recovery.repairs.repair import Failure
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered (train.py:75 in main)"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered (train.py:75 in main)"
STALE = "OSError: [Errno 116] Stale file handle: '/data/latest' (train.py:20 in load)"
PEER_GONE = "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.3]:27189 (train.py:75 in main)"
MODEL_TOO_LARGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (model.py:31 in forward)"
SPARE = Spares(pool="spares", available=True)
NO_SPARE = Spares(pool="spares", available=False, message="all taken")
FRESH = RecoveryState()


def failed(words: str, *, rank: int = 1, generation: int = 1, spares: Spares = SPARE, now: float = NOW) -> Observation:
    """Return a look at a job in which one rank said these words, and the others lost it."""
    other: dict[str, Any] = {**ended(exit_code=1, at=NOW - 0.5), "last_words": PEER_GONE}
    own: dict[str, Any] = {**ended(exit_code=1, at=NOW - 0.1), "last_words": words}
    obs = seen(ranks={number: own if number == rank else other for number in range(3)}, generation=generation)
    return replace(obs, spares=spares, now=now)


def fault_of(obs: Observation) -> Fault:
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    return fault


def patiently(obs: Observation, state: RecoveryState) -> Step:
    """Look, and look again when the restart is held back no longer."""
    taken = restart_ladder.step(state, Look(obs, POLICY))
    state = taken.state
    if state.stop is None or state.stop.acts_at is None:
        return taken
    return restart_ladder.step(state, Look(replace(obs, now=state.stop.acts_at), POLICY))


def test_a_bad_gpu_is_left_at_once() -> None:
    obs = failed(ECC)
    assert (fault_of(obs).rank, fault_of(obs).error_class, fault_of(obs).severity) == (1, "EccError", Severity.SEV1)
    taken = restart_ladder.step(FRESH, Look(obs, POLICY))
    state = taken.state
    (action,) = taken.in_order()
    assert isinstance(action, Replace)
    assert (action.replica, action.lost, action.node_not_ready) == (1, False, False), "its launcher still answers"
    assert state.attempts[0].kind == "Replace"


def test_without_a_spare_a_bad_gpu_is_tried_again() -> None:
    taken = restart_ladder.step(FRESH, Look(failed(ECC, spares=NO_SPARE), POLICY))
    assert taken.in_order() == [Restart()]


def test_a_job_that_calls_its_gpus_bad_does_not_empty_the_pool() -> None:
    state, moves = FRESH, 0
    for generation in range(1, 10):
        obs = failed(ECC, rank=generation % 3, generation=generation)
        taken = patiently(obs, replace(state, stop=None))
        state = taken.state
        moves += any(isinstance(action, Replace) for action in taken.commands)
    assert moves == POLICY.restarts


def test_an_error_that_may_be_the_programs_moves_when_it_comes_back_on_the_same_node() -> None:
    taken = restart_ladder.step(FRESH, Look(failed(ILLEGAL), POLICY))
    state = taken.state
    assert taken.in_order() == [Restart()]
    taken = patiently(failed(ILLEGAL, generation=2), state)
    assert [type(action) for action in taken.in_order()] == [Replace]
    taken = patiently(failed(ILLEGAL, rank=2, generation=2), state)
    assert taken.in_order() == [Restart()], "on another node it is the program's"


def test_a_file_server_that_is_away_for_minutes_fails_no_job() -> None:
    state, obs, now, restarts = FRESH, failed(STALE), NOW, 0
    while now < NOW + 300:
        taken = restart_ladder.step(replace(state, stop=None), Look(replace(obs, now=now), POLICY))
        state = taken.state
        if state.stop is not None and state.stop.acts_at is not None:
            now = state.stop.acts_at
            taken = restart_ladder.step(state, Look(replace(obs, now=now), POLICY))
            state = taken.state
        assert taken.in_order() == [Restart()]
        restarts += 1
        now += 1.0
    assert POLICY.restarts < restarts <= 12, "it backs off"


def test_a_storage_that_stays_away_fails_the_job_at_last() -> None:
    state, now, verdicts = FRESH, NOW, []
    for _ in range(60):
        taken = restart_ladder.step(replace(state, stop=None), Look(failed(STALE, now=now), POLICY))
        state = taken.state
        if state.stop is not None and state.stop.acts_at is not None:
            now = state.stop.acts_at
            taken = restart_ladder.step(state, Look(failed(STALE, now=now), POLICY))
            state = taken.state
        verdicts.append(type(taken.in_order()[-1]))
        now += 1.0
        if verdicts[-1] is GiveUp:
            break
    assert verdicts[-1] is GiveUp
    assert TRANSIENT_SECONDS < now - NOW < 2 * TRANSIENT_SECONDS


@pytest.mark.parametrize("words", [MODEL_TOO_LARGE, "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"])
def test_a_model_that_does_not_fit_fails_at_once_and_says_what_helps(words: str) -> None:
    obs = seen(ranks={number: {**ended(exit_code=1), "last_words": words} for number in range(3)})
    obs = replace(obs, ranks=[replace(rank, sent=replace(rank.sent, iterations=0)) for rank in obs.ranks])
    taken = restart_ladder.step(FRESH, Look(obs, POLICY))
    assert isinstance(taken.in_order()[-1], GiveUp)
    assert "smaller batch" in taken.in_order()[-1].message


def test_what_ranks_of_several_nodes_say_points_at_no_node() -> None:
    """Two GPUs do not break in one second; a program that prints such words does it everywhere."""
    obs = seen(ranks={number: {**ended(exit_code=1), "last_words": ECC} for number in (0, 2)})
    assert fault_of(obs).severity is Severity.SEV2
    taken = restart_ladder.step(FRESH, Look(obs, POLICY))
    assert taken.in_order() == [Restart()]


def test_a_job_says_what_its_own_exit_codes_mean() -> None:
    rules = msgspec.convert(
        [{"exitCodes": [42], "class": "StorageUnavailable"}, {"exitCodes": [43], "severity": "SEV1", "domain": "Node"}],
        tuple[JobRule, ...],
    )
    policy = replace(POLICY, judge=job_judge(ErrorRules(rules=rules)))
    ends = {1: {**ended(exit_code=42), "last_words": "bye"}}
    taken = restart_ladder.step(FRESH, Look(replace(seen(ranks=ends), spares=SPARE), policy))
    state = taken.state
    assert (taken.in_order(), state.attempts[0].kind) == ([Restart()], "Transient")
    ends = {1: {**ended(exit_code=43), "last_words": "bye"}}
    taken = restart_ladder.step(FRESH, Look(replace(seen(ranks=ends), spares=SPARE), policy))
    state = taken.state
    (action,) = taken.in_order()
    assert isinstance(action, Replace)
    assert state.stop is not None
    assert (state.stop.fault.error_class, state.stop.fault.text) == ("JobRule1", "exited with code 43: bye")


GPU_LOST = NodeTrouble(error_class="GpuLost", text="GpuLost (condition GpuXid: Xid 79)", grave=True, slows=True)
KILLED: dict[str, Any] = {"process": "Ended", "signal": 9, "ended_at": NOW - 0.1}


def troubled(obs: Observation, replica: int, trouble: NodeTrouble = GPU_LOST) -> Observation:
    members = [replace(each, trouble=trouble) if each.replica == replica else each for each in obs.members]
    return replace(obs, members=members)


def test_a_node_that_reports_a_lost_gpu_is_left_at_the_first_failure_whatever_the_process_said() -> None:
    taken = restart_ladder.step(FRESH, Look(troubled(replace(seen(ranks={1: KILLED}), spares=SPARE), 1), POLICY))
    state = taken.state
    (action,) = taken.in_order()
    assert isinstance(action, Replace)
    assert (action.replica, action.lost, action.node_not_ready) == (1, False, False)
    assert action.reason == "killed by SIGKILL (node node-1 reports GpuLost (condition GpuXid: Xid 79))"
    assert state.stop is not None
    assert (state.stop.fault.severity, state.stop.fault.error_class) == (Severity.SEV1, "GpuLost")
    assert state.attempts == [], "the platform says so: the job's budget is for its own word"


def test_while_training_goes_on_a_node_in_trouble_is_kept() -> None:
    obs = troubled(replace(seen(), spares=SPARE), 1)
    assert restart_ladder.step(FRESH, Look(obs, POLICY)) == Step(FRESH)


def test_a_restart_that_comes_anyway_leaves_the_nodes_in_trouble() -> None:
    obs = troubled(seen(ranks={1: KILLED}), 2)
    ready = replace(obs, spares=Spares(pool="spares", available=True, ready=1))
    (action,) = restart_ladder.step(FRESH, Look(ready, POLICY)).in_order()
    assert action == Restart(), "the spare is kept for the failure itself"
    ready = replace(obs, spares=Spares(pool="spares", available=True, ready=2))
    taken = restart_ladder.step(FRESH, Look(ready, POLICY))
    state = taken.state
    (action,) = taken.in_order()
    assert isinstance(action, Replace)
    assert (action.replica, action.reason) == (2, "its node reports GpuLost (condition GpuXid: Xid 79)")
    assert state.stop is not None
    assert [(step.what, step.node) for step in state.stop.done] == [("Replace", "node-2")]


def test_without_a_spare_or_where_the_program_is_at_fault_a_node_in_trouble_is_not_left() -> None:
    taken = restart_ladder.step(FRESH, Look(troubled(replace(seen(ranks={1: KILLED}), spares=NO_SPARE), 1), POLICY))
    assert taken.in_order() == [Restart()]
    missing = {**ended(exit_code=1), "last_words": "ModuleNotFoundError: No module named 'x' (train.py:1 in <module>)"}
    taken = restart_ladder.step(FRESH, Look(troubled(replace(seen(ranks={1: missing}), spares=SPARE), 1), POLICY))
    assert taken.in_order() == [Restart()]
    flapping = NodeTrouble(error_class="LinkFlapping", text="LinkFlapping", grave=False, slows=False)
    taken = restart_ladder.step(
        FRESH, Look(troubled(replace(seen(ranks={1: KILLED}), spares=SPARE), 1, flapping), POLICY)
    )
    assert taken.in_order() == [Restart()]


NO_DRIVER = "RuntimeError: Found no NVIDIA driver on your system. (train.py:12 in <module>)"


def test_an_image_without_a_driver_is_no_lost_gpu() -> None:
    """The first look sees one node alone; it waits until the others have come as far."""
    one = seen(ranks={1: {**ended(exit_code=1), "last_words": NO_DRIVER}})
    one = replace(one, ranks=[replace(rank, sent=replace(rank.sent, iterations=0)) for rank in one.ranks])
    taken = restart_ladder.step(FRESH, Look(one, POLICY))
    state = taken.state
    assert (taken.in_order(), state.stop) == ([], None)
    all_of_them = seen(ranks={number: {**ended(exit_code=1), "last_words": NO_DRIVER} for number in range(3)})
    taken = restart_ladder.step(state, Look(replace(all_of_them, now=NOW + 2), POLICY))
    assert taken.in_order() == [Restart()]
    late = replace(one, now=NOW + restart_ladder.OTHERS_SECONDS)
    (action,) = restart_ladder.step(state, Look(late, POLICY)).in_order()
    assert isinstance(action, Replace), "on one node alone it is that node's"


def test_a_class_of_a_newer_release_means_nothing() -> None:
    fault = replace(fault_of(failed(ECC)), error_class="QuantumError")
    failure = Failure(look=Look(failed(ECC), POLICY), fault=fault, attempts=[])
    assert repair_table.by_class_alone(failure) is None
