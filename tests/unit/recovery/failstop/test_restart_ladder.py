"""The ladder for fail-stop: who failed first, what is done, how often."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Cause, Severity
from falcon_core.recovery import Look, machine
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.failstop.faults import rank_fault
from falcon_core.recovery.model.actions import Command, GiveUp, Recreate, Replace, Restart
from falcon_core.recovery.model.events import SlowClosed, StopClosed
from falcon_core.recovery.model.failure import Attempt, StopIncident
from falcon_core.recovery.model.observation import Observation, PodEnd
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.repairs.restart_budget import SERIES_SECONDS, back_off_seconds, recent, verdict
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

FRESH = RecoveryState()


def step(obs: Observation, state: RecoveryState = FRESH) -> Step:
    return restart_ladder.step(state, Look(obs, POLICY))


def patiently(obs: Observation, state: RecoveryState) -> Step:
    """Look, and look again when the restart is held back no longer."""
    taken = step(obs, state)
    state = taken.state
    if state.stop is None or state.stop.acts_at is None:
        return taken
    assert taken.is_empty
    return step(replace(obs, now=state.stop.acts_at), state)


def incident(state: RecoveryState) -> StopIncident:
    assert state.stop is not None
    return state.stop


def test_nothing_is_wrong() -> None:
    assert step(seen()) == Step(FRESH)


def test_a_killed_rank_precedes_ranks_that_broke_off_whatever_the_clocks_say() -> None:
    obs = seen(ranks={0: ended(exit_code=1, at=NOW - 0.5), 1: ended(signal=9, at=NOW - 0.1)})
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    assert (fault.rank, fault.cause, fault.node) == (1, Cause.PROCESS_KILLED, "node-1")


def test_of_two_alike_the_earlier() -> None:
    obs = seen(ranks={0: ended(exit_code=1, at=NOW - 0.1), 2: ended(exit_code=1, at=NOW - 0.3)})
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    assert fault.rank == 2


def test_a_failure_restarts_the_processes_and_opens_an_incident() -> None:
    taken = step(seen(ranks={1: ended(signal=9)}))
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert incident(state).id == "gpt2-1"
    assert (incident(state).fault.rank, incident(state).fault.severity) == (1, Severity.SEV2)
    assert [attempt.node for attempt in state.attempts] == ["node-1"]


def test_a_report_that_comes_late_shows_who_failed_first() -> None:
    state = step(seen(ranks={0: ended(exit_code=1, at=NOW - 0.2)})).state
    stopping = seen(
        ranks={0: ended(exit_code=1, at=NOW - 0.2), 2: ended(signal=11, at=NOW - 0.3)}, running=False, generation=2
    )
    taken = step(stopping, state)
    state = taken.state
    assert taken.is_empty
    assert (incident(state).fault.rank, incident(state).fault.cause) == (2, Cause.PROCESS_CRASHED)


def test_what_we_stopped_ourselves_is_no_failure() -> None:
    state = step(seen(ranks={0: ended(exit_code=1)})).state
    stopping = seen(ranks={0: ended(exit_code=1), 1: ended(signal=15, at=NOW + 1)}, running=False, generation=2)
    assert incident(step(stopping, state).state).fault.rank == 0


def test_a_silent_member_turns_a_broken_collective_into_a_lost_node() -> None:
    state = step(seen(ranks={0: ended(exit_code=1)})).state
    taken = step(seen({2: {"alive": False, "acknowledged": False}}, {0: {}}, running=False, generation=2), state)
    state = taken.state
    (action,) = taken.in_order()
    assert isinstance(action, Replace)
    assert (action.replica, action.lost, action.node_not_ready) == (2, True, False)
    assert (incident(state).fault.cause, incident(state).id) == (Cause.NODE_LOST, "gpt2-1")


def test_pods_that_are_gone() -> None:
    assert step(seen({1: {"pod": "Ended"}})).in_order() == [Recreate(1, True)]
    assert step(seen({1: {"pod": "Gone", "node_usable": False}})).in_order() == [Recreate(1, False)]
    (action,) = step(seen({1: {"pod": "Gone", "node_ready": False}})).in_order()
    assert isinstance(action, Replace)
    assert action.node_not_ready


def test_a_container_that_was_killed_for_memory_as_a_whole_is_out_of_memory() -> None:
    """Check cgroup v2's group kill: no process is left to report the rank's end, so the pod is created again."""
    ended_pod = {"pod": "Ended", "end": PodEnd(text="OOMKilled 137", cause=Cause.OUT_OF_MEMORY)}
    taken = step(seen({1: ended_pod}))
    state = taken.state
    assert taken.in_order() == [Recreate(1, True)]
    assert (incident(state).fault.cause, incident(state).fault.pod_name) == (Cause.OUT_OF_MEMORY, "gpt2-1")
    assert "memory" in incident(state).fault.text
    (action,) = step(seen({1: {**ended_pod, "node_ready": False}})).in_order()
    assert isinstance(action, Replace), "a node that is gone is lost, whatever its pod said last"


def test_a_process_that_cannot_be_killed_costs_the_node() -> None:
    (action,) = step(seen({1: {"stuck": True}}, running=False, generation=2)).in_order()
    assert isinstance(action, Replace)
    assert action.lost


@pytest.mark.parametrize(("silent_seconds", "expected"), [(19.0, []), (21.0, [Recreate(1, True)])])
def test_a_launcher_whose_agent_is_gone_is_not_waited_for_for_ever(
    silent_seconds: float, expected: list[Command]
) -> None:
    obs = seen(
        {1: {"alive": False, "acknowledged": False, "unacknowledged_seconds": silent_seconds}},
        {0: ended(signal=9)},
        running=False,
        generation=2,
    )
    assert step(obs).in_order() == expected


def test_a_command_that_cannot_be_started() -> None:
    taken = step(seen({0: {"start_error": "execvp python: No such file"}}, {0: {"process": "Unknown"}}))
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert "No such file" in incident(state).fault.text


def test_an_incident_closes_when_iterations_are_seen() -> None:
    state = step(seen(ranks={1: ended(signal=9, at=NOW - 1)})).state
    starting = seen(ranks={0: {"iterations": 0, "iteration_ns": []}, 1: {"process": "Unknown"}}, generation=2)
    assert step(starting, state) == Step(state)
    silent = {number: {"iterations": 0, "iteration_ns": []} for number in range(3)}
    assert step(seen(ranks=silent, generation=2, running_seconds=3.0), state).is_empty
    moving = {number: {"iterations": 4, "iteration_ns": [250_000_000] * 4} for number in range(3)}
    taken = step(seen(ranks=moving, generation=2, running_seconds=3.0, now=NOW + 6), state)
    done = taken.state
    (closed,) = taken.in_order()
    assert done.stop is None
    assert isinstance(closed, StopClosed)
    assert closed.seconds == pytest.approx(6.0)
    assert step(seen(ranks=silent, generation=2, running_seconds=600.0), state).is_empty, "a checkpoint is being loaded"
    assert step(seen(ranks=silent, generation=2, running_seconds=1801.0), state).state.stop is None


def test_a_program_whose_iterations_were_never_seen_counts_as_training_after_a_while() -> None:
    silent: dict[int, dict[str, Any]] = {number: {"iterations": 0, "iteration_ns": []} for number in range(3)}
    state = step(seen(ranks={**silent, 1: {**silent[1], **ended(signal=9)}})).state
    assert step(seen(ranks=silent, generation=2, running_seconds=19.0), state).is_empty
    assert step(seen(ranks=silent, generation=2, running_seconds=21.0), state).state.stop is None


def test_out_of_memory_is_reported_with_the_containers_count() -> None:
    killed = {**ended(signal=9), "oom_killed": True}
    state = step(seen({1: {"oom_kills": 2}}, {1: killed})).state
    assert incident(state).fault.text.endswith("its container counts 2 such kills in this generation")


def test_a_failure_before_that_recurs_in_the_same_incident() -> None:
    state = step(seen(ranks={1: ended(signal=9)})).state
    taken = patiently(seen(ranks={1: ended(signal=9)}, generation=2), state)
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert (incident(state).id, incident(state).recurrences, len(incident(state).done)) == ("gpt2-1", 1, 2)


def at(*seconds: float) -> list[Attempt]:
    return [Attempt(at=NOW - before, node="a", kind="Restart") for before in seconds]


def test_restarts_that_follow_each_other_back_off() -> None:
    assert back_off_seconds([], NOW) == 0
    assert [back_off_seconds(at(*range(count, 0, -1)), NOW) for count in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert back_off_seconds(at(SERIES_SECONDS + 1), NOW) == 0, "it ran for long"
    assert back_off_seconds(at(2 * SERIES_SECONDS, SERIES_SECONDS / 2), NOW) == 1


def test_a_restart_that_is_held_back_comes_once_and_counts_once() -> None:
    state = step(seen(ranks={1: ended(signal=9)})).state
    failed = seen(ranks={1: ended(signal=9)}, generation=2)
    taken = step(failed, state)
    state = taken.state
    assert taken.is_empty
    assert incident(state).acts_at == NOW + 1
    for now in (NOW + 0.3, NOW + 0.9):
        taken = step(replace(failed, now=now), state)
        state = taken.state
        assert taken.is_empty
    taken = step(replace(failed, now=NOW + 1), state)
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert len(state.attempts) == 2
    assert [done.generation for done in incident(state).done] == [2, 3]
    assert (incident(state).recurrences, incident(state).acts_at) == (1, None)


def test_a_lost_node_does_not_wait_for_a_back_off() -> None:
    state = step(seen(ranks={1: ended(signal=9)})).state
    state = step(seen(ranks={1: ended(signal=9)}, generation=2), state).state
    lost = seen({2: {"pod": "Gone", "node_ready": False}}, {1: ended(signal=9)}, generation=2)
    taken = step(lost, state)
    state = taken.state
    assert [type(action) for action in taken.in_order()] == [Replace]
    assert incident(state).acts_at is None


def attempts(*nodes: str, kind: str = "Restart") -> list[Attempt]:
    return [Attempt(at=NOW - 10, node=node, kind=kind) for node in nodes]  # type: ignore[arg-type]


def test_the_budget() -> None:
    assert verdict(attempts("a", "b"), node="a", restarts=3, program_at_fault=False) == "Restart"
    assert verdict(attempts("a", "a", "a"), node="a", restarts=3, program_at_fault=False) == "Replace"
    assert verdict(attempts("a", "b", "a"), node="a", restarts=3, program_at_fault=False) == "GiveUp"
    assert verdict(attempts("a", "a", "a"), node="a", restarts=3, program_at_fault=True) == "GiveUp"
    once = [*attempts("a", "a", "a"), *attempts("a", kind="Replace")]
    assert verdict([*once, *attempts("s", "s")], node="s", restarts=3, program_at_fault=False) == "Restart"
    assert verdict([*once, *attempts("s", "s", "s")], node="s", restarts=3, program_at_fault=False) == "GiveUp"


def test_old_attempts_do_not_count() -> None:
    assert recent([Attempt(at=NOW - 3601, node="a", kind="Restart")], NOW, 3600) == []
    assert len(recent([Attempt(at=NOW - 3599, node="a", kind="Restart")], NOW, 3600)) == 1


def test_giving_up_says_why_and_where_to_look() -> None:
    state = replace(FRESH, attempts=attempts("node-0", "node-1", "node-2"))
    taken = step(seen(ranks={1: ended(exit_code=3)}), state)
    state = taken.state
    closed, gave_up = taken.in_order()
    assert isinstance(closed, StopClosed)
    assert not closed.resumed
    assert isinstance(gave_up, GiveUp)
    assert "exited with code 3" in gave_up.message
    assert "kubectl logs gpt2-1" in gave_up.message
    assert state.stop is None


def test_a_node_that_is_left_takes_its_slowdown_with_it() -> None:
    state = replace(FRESH, slowdowns=[located(rank=2)])
    taken = machine.step(state, Look(seen({2: {"pod": "Gone", "node_ready": False}}), POLICY))
    state = taken.state
    assert state.leader is None
    assert [type(action) for action in taken.in_order()] == [Replace, SlowClosed]


def test_a_job_that_calls_its_nodes_broken_does_not_empty_the_pool() -> None:
    """Check nodes that only the job's own pods call broken, because a process survives SIGKILL.

    A NotReady node has another witness.
    """
    state = RecoveryState()
    verdicts = []
    for hit in range(6):
        obs = seen(members={1: {"stuck": True, "node": f"node-{hit}"}}, now=NOW + 3 * hit)
        taken = restart_ladder.step(state, Look(obs, POLICY))
        state = taken.state
        verdicts.append([type(action).__name__ for action in taken.in_order()][-1])
        state = replace(state, stop=None)
    assert verdicts == ["Replace"] * 3 + ["GiveUp"] * 3
    obs = seen(members={1: {"stuck": True, "node": "node-9", "node_ready": False}}, now=NOW + 60)
    assert [type(action).__name__ for action in restart_ladder.step(state, Look(obs, POLICY)).in_order()] == ["Replace"]


def test_a_failure_began_when_training_stopped_and_not_when_it_was_noticed() -> None:
    silent = {"silent_seconds": 25.0, "stalled": True}
    ranks = {0: silent, 1: silent, 2: {**silent, "fresh": False}}
    state = restart_ladder.step(
        RecoveryState(), Look(seen(members={2: {"alive": False, "node_ready": False}}, ranks=ranks), POLICY)
    ).state
    assert state.stop is not None
    assert state.stop.since == NOW - 25
