"""The ladder for fail-stop: who failed first, what is done, how often."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.model import Cause, Severity
from falcon_core.recovery import failstop, machine
from falcon_core.recovery.faults import others_may_follow, rank_fault
from falcon_core.recovery.observation import (
    Action,
    GiveUp,
    Observation,
    Recreate,
    Replace,
    Restart,
    SlowClosed,
    StopClosed,
)
from falcon_core.recovery.state import Attempt, Awaiting, Fault, RecoveryState, StopIncident
from falcon_core.recovery.strategies.restart_processes import SERIES_SECONDS, back_off_seconds, recent, verdict
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen
from tests.unit.recovery.test_failslow import located

FRESH = RecoveryState()


def step(obs: Observation, state: RecoveryState = FRESH) -> tuple[RecoveryState, list[Action]]:
    return failstop.step(state, obs, POLICY)


def patiently(obs: Observation, state: RecoveryState) -> tuple[RecoveryState, list[Action]]:
    """Look, and look again when the restart is held back no longer."""
    state, actions = step(obs, state)
    if state.stop is None or state.stop.acts_at is None:
        return state, actions
    assert actions == []
    return step(replace(obs, now=state.stop.acts_at), state)


def incident(state: RecoveryState) -> StopIncident:
    assert state.stop is not None
    return state.stop


def test_nothing_is_wrong() -> None:
    assert step(seen()) == (FRESH, [])


def test_a_killed_rank_precedes_ranks_that_broke_off_whatever_the_clocks_say() -> None:
    obs = seen(ranks={0: ended(exit_code=1, at=NOW - 0.5), 1: ended(signal=9, at=NOW - 0.1)})
    fault = rank_fault(obs, shipped_judge())
    assert fault is not None
    assert (fault.rank, fault.cause, fault.node) == (1, Cause.PROCESS_KILLED, "node-1")


def test_of_two_alike_the_earlier() -> None:
    obs = seen(ranks={0: ended(exit_code=1, at=NOW - 0.1), 2: ended(exit_code=1, at=NOW - 0.3)})
    fault = rank_fault(obs, shipped_judge())
    assert fault is not None
    assert fault.rank == 2


def test_a_failure_restarts_the_processes_and_opens_an_incident() -> None:
    state, actions = step(seen(ranks={1: ended(signal=9)}))
    assert actions == [Restart()]
    assert incident(state).id == "gpt2-1"
    assert (incident(state).fault.rank, incident(state).fault.severity) == (1, Severity.SEV2)
    assert [attempt.node for attempt in state.attempts] == ["node-1"]


def test_a_report_that_comes_late_shows_who_failed_first() -> None:
    state, _ = step(seen(ranks={0: ended(exit_code=1, at=NOW - 0.2)}))
    stopping = seen(
        ranks={0: ended(exit_code=1, at=NOW - 0.2), 2: ended(signal=11, at=NOW - 0.3)}, running=False, generation=2
    )
    state, actions = step(stopping, state)
    assert actions == []
    assert (incident(state).fault.rank, incident(state).fault.cause) == (2, Cause.PROCESS_CRASHED)


def test_what_we_stopped_ourselves_is_no_failure() -> None:
    state, _ = step(seen(ranks={0: ended(exit_code=1)}))
    stopping = seen(ranks={0: ended(exit_code=1), 1: ended(signal=15, at=NOW + 1)}, running=False, generation=2)
    assert incident(step(stopping, state)[0]).fault.rank == 0


def test_a_silent_member_turns_a_broken_collective_into_a_lost_node() -> None:
    state, _ = step(seen(ranks={0: ended(exit_code=1)}))
    state, actions = step(
        seen({2: {"alive": False, "acknowledged": False}}, {0: {}}, running=False, generation=2), state
    )
    (action,) = actions
    assert isinstance(action, Replace)
    assert (action.replica, action.lost, action.node_not_ready) == (2, True, False)
    assert (incident(state).fault.cause, incident(state).id) == (Cause.NODE_LOST, "gpt2-1")


def test_pods_that_are_gone() -> None:
    assert step(seen({1: {"pod": "Ended"}}))[1] == [Recreate(1, True)]
    assert step(seen({1: {"pod": "Gone", "node_usable": False}}))[1] == [Recreate(1, False)]
    (action,) = step(seen({1: {"pod": "Gone", "node_ready": False}}))[1]
    assert isinstance(action, Replace)
    assert action.node_not_ready


def test_a_container_that_was_killed_for_memory_as_a_whole_is_out_of_memory() -> None:
    """Check cgroup v2's group kill: nobody is left to report the rank's end, and the pod has to be made anew."""
    ended_pod = {"pod": "Ended", "out_of_memory": True, "pod_message": "OOMKilled 137"}
    state, actions = step(seen({1: ended_pod}))
    assert actions == [Recreate(1, True)]
    assert (incident(state).fault.cause, incident(state).fault.pod_name) == (Cause.OUT_OF_MEMORY, "gpt2-1")
    assert "memory" in incident(state).fault.text
    (action,) = step(seen({1: {**ended_pod, "node_ready": False}}))[1]
    assert isinstance(action, Replace), "a node that is gone is lost, whatever its pod said last"


def test_a_process_that_cannot_be_killed_costs_the_node() -> None:
    (action,) = step(seen({1: {"stuck": True}}, running=False, generation=2))[1]
    assert isinstance(action, Replace)
    assert action.lost


@pytest.mark.parametrize(("silent_seconds", "expected"), [(19.0, []), (21.0, [Recreate(1, True)])])
def test_a_launcher_whose_agent_is_gone_is_not_waited_for_for_ever(
    silent_seconds: float, expected: list[Action]
) -> None:
    obs = seen(
        {1: {"alive": False, "acknowledged": False, "unacknowledged_seconds": silent_seconds}},
        {0: ended(signal=9)},
        running=False,
        generation=2,
    )
    assert step(obs)[1] == expected


def test_a_command_that_cannot_be_started() -> None:
    state, actions = step(seen({0: {"start_error": "execvp python: No such file"}}, {0: {"process": "Unknown"}}))
    assert actions == [Restart()]
    assert "No such file" in incident(state).fault.text


def test_an_incident_closes_when_iterations_are_seen() -> None:
    state, _ = step(seen(ranks={1: ended(signal=9, at=NOW - 1)}))
    starting = seen(ranks={0: {"iterations": 0, "iteration_ns": []}, 1: {"process": "Unknown"}}, generation=2)
    assert step(starting, state) == (state, [])
    silent = {number: {"iterations": 0, "iteration_ns": []} for number in range(3)}
    assert step(seen(ranks=silent, generation=2, running_seconds=3.0), state)[1] == []
    moving = {number: {"iterations": 4, "iteration_ns": [250_000_000] * 4} for number in range(3)}
    done, (closed,) = step(seen(ranks=moving, generation=2, running_seconds=3.0, now=NOW + 6), state)
    assert done.stop is None
    assert isinstance(closed, StopClosed)
    assert closed.seconds == pytest.approx(6.0)
    assert step(seen(ranks=silent, generation=2, running_seconds=600.0), state)[1] == [], "a checkpoint is being loaded"
    assert step(seen(ranks=silent, generation=2, running_seconds=1801.0), state)[0].stop is None


def test_a_program_whose_iterations_were_never_seen_counts_as_training_after_a_while() -> None:
    silent: dict[int, dict[str, Any]] = {number: {"iterations": 0, "iteration_ns": []} for number in range(3)}
    state, _ = step(seen(ranks={**silent, 1: {**silent[1], **ended(signal=9)}}))
    assert step(seen(ranks=silent, generation=2, running_seconds=19.0), state)[1] == []
    assert step(seen(ranks=silent, generation=2, running_seconds=21.0), state)[0].stop is None


def test_out_of_memory_is_reported_with_the_containers_count() -> None:
    killed = {**ended(signal=9), "oom_killed": True}
    state, _ = step(seen({1: {"oom_kills": 2}}, {1: killed}))
    assert incident(state).fault.text.endswith("its container counts 2 such kills in this generation")


def test_a_failure_before_that_recurs_in_the_same_incident() -> None:
    state, _ = step(seen(ranks={1: ended(signal=9)}))
    state, actions = patiently(seen(ranks={1: ended(signal=9)}, generation=2), state)
    assert actions == [Restart()]
    assert (incident(state).id, incident(state).recurrences, len(incident(state).done)) == ("gpt2-1", 1, 2)


def at(*seconds: float) -> list[Attempt]:
    return [Attempt(at=NOW - before, node="a", kind="Restart") for before in seconds]


def test_restarts_that_follow_each_other_back_off() -> None:
    assert back_off_seconds([], NOW) == 0
    assert [back_off_seconds(at(*range(count, 0, -1)), NOW) for count in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert back_off_seconds(at(SERIES_SECONDS + 1), NOW) == 0, "it ran for long"
    assert back_off_seconds(at(2 * SERIES_SECONDS, SERIES_SECONDS / 2), NOW) == 1


def test_a_restart_that_is_held_back_comes_once_and_counts_once() -> None:
    state, _ = step(seen(ranks={1: ended(signal=9)}))
    failed = seen(ranks={1: ended(signal=9)}, generation=2)
    state, actions = step(failed, state)
    assert actions == []
    assert incident(state).acts_at == NOW + 1
    for now in (NOW + 0.3, NOW + 0.9):
        state, actions = step(replace(failed, now=now), state)
        assert actions == []
    state, actions = step(replace(failed, now=NOW + 1), state)
    assert actions == [Restart()]
    assert len(state.attempts) == 2
    assert [done.generation for done in incident(state).done] == [2, 3]
    assert (incident(state).recurrences, incident(state).acts_at) == (1, None)


def test_a_lost_node_does_not_wait_for_a_back_off() -> None:
    state, _ = step(seen(ranks={1: ended(signal=9)}))
    state, _ = step(seen(ranks={1: ended(signal=9)}, generation=2), state)
    lost = seen({2: {"pod": "Gone", "node_ready": False}}, {1: ended(signal=9)}, generation=2)
    state, actions = step(lost, state)
    assert [type(action) for action in actions] == [Replace]
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
    state, actions = step(seen(ranks={1: ended(exit_code=3)}), state)
    closed, gave_up = actions
    assert isinstance(closed, StopClosed)
    assert not closed.resumed
    assert isinstance(gave_up, GiveUp)
    assert "exited with code 3" in gave_up.message
    assert "kubectl logs gpt2-1" in gave_up.message
    assert state.stop is None


def test_a_node_that_is_left_takes_its_slowdown_with_it() -> None:
    state = replace(FRESH, slow=located(rank=2))
    state, actions = machine.step(state, seen({2: {"pod": "Gone", "node_ready": False}}), POLICY)
    assert state.slow is None
    assert [type(action) for action in actions] == [Replace, SlowClosed]


def test_a_job_that_calls_its_nodes_broken_does_not_empty_the_pool() -> None:
    """Check nodes that only the job's own pods call broken, because a process survives SIGKILL.

    A NotReady node has another witness.
    """
    state = RecoveryState()
    verdicts = []
    for hit in range(6):
        obs = seen(members={1: {"stuck": True, "node": f"node-{hit}"}}, now=NOW + 3 * hit)
        state, actions = failstop.step(state, obs, POLICY)
        verdicts.append([type(action).__name__ for action in actions][-1])
        state = replace(state, stop=None)
    assert verdicts == ["Replace"] * 3 + ["GiveUp"] * 3
    obs = seen(members={1: {"stuck": True, "node": "node-9", "node_ready": False}}, now=NOW + 60)
    assert [type(action).__name__ for action in failstop.step(state, obs, POLICY)[1]] == ["Replace"]


def test_a_failure_began_when_training_stopped_and_not_when_it_was_noticed() -> None:
    silent = {"silent_seconds": 25.0, "stalled": True}
    ranks = {0: silent, 1: silent, 2: {**silent, "fresh": False}}
    state, _ = failstop.step(
        RecoveryState(), seen(members={2: {"alive": False, "node_ready": False}}, ranks=ranks), POLICY
    )
    assert state.stop is not None
    assert state.stop.since == NOW - 25


VALUE_ERROR = "ValueError: bad shape (train.py:40 in step)"
PEER_GONE = "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.3]:27189 (train.py:75 in main)"
NO_MODULE = "ModuleNotFoundError: No module named 'apex' (train.py:3 in <module>)"


def test_a_rank_with_an_error_of_its_own_precedes_ranks_that_lost_it() -> None:
    first = {**ended(exit_code=1, at=NOW - 0.5), "last_words": PEER_GONE}
    own = {**ended(exit_code=1, at=NOW - 0.1), "last_words": VALUE_ERROR}
    obs = seen(ranks={0: first, 1: own, 2: first})
    fault = rank_fault(obs, shipped_judge())
    assert fault is not None
    assert (fault.rank, fault.error, fault.symptom) == (1, "ValueError", False)
    assert fault.text == f"exited with code 1: {VALUE_ERROR}"


def test_words_that_are_not_understood_precede_a_peers_end() -> None:
    peer = {**ended(exit_code=1, at=NOW - 0.5), "last_words": PEER_GONE}
    own = {**ended(exit_code=1, at=NOW - 0.1), "last_words": "the third device speaks in tongues"}
    obs = seen(ranks={0: peer, 1: own})
    fault = rank_fault(obs, shipped_judge())
    assert fault is not None
    assert (fault.rank, fault.symptom) == (1, True)


def untrained(**ranks: dict[str, Any]) -> Observation:
    obs = seen(ranks={int(name[1:]): fields for name, fields in ranks.items()})
    return replace(obs, ranks=[replace(rank, sent=replace(rank.sent, iterations=0)) for rank in obs.ranks])


def test_an_error_of_the_program_on_two_nodes_is_mended_by_no_restart() -> None:
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    state, actions = step(untrained(r0=failed, r2=failed))
    assert state.stop is None
    assert state.attempts == []
    closed, given_up = actions
    assert isinstance(closed, StopClosed)
    assert isinstance(given_up, GiveUp)
    assert "No module named 'apex' (train.py:3" in given_up.message
    assert "no restart mends that" in given_up.message


def test_a_failure_at_the_start_waits_for_the_other_nodes() -> None:
    """They started together: the node that reads its files fastest fails first, in each generation."""
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    state, actions = step(untrained(r1=failed))
    assert actions == []
    assert state.stop is None
    _, actions = step(replace(untrained(r1=failed, r2=failed), now=NOW + 2), state)
    assert isinstance(actions[-1], GiveUp)
    assert state.attempts == []
    alone = replace(untrained(r1=failed), now=NOW + failstop.OTHERS_SECONDS)
    acted, actions = step(alone, state)
    assert actions == [Restart()]
    assert acted.awaiting is None
    again, actions = step(replace(alone, generation=alone.generation + 1), replace(acted, awaiting=state.awaiting))
    assert actions == [], "each generation has its own wait"
    assert again.awaiting is not None
    assert again.awaiting.since == alone.now


def test_a_failure_at_the_start_waits_for_nobody_who_has_ended_or_is_lost() -> None:
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    other = {**ended(exit_code=1), "last_words": PEER_GONE}
    _, actions = step(untrained(r0=other, r1=failed, r2=other))
    assert actions == [Restart()]
    lost = [replace(member, alive=False) if member.replica != 1 else member for member in untrained().members]
    alone = replace(untrained(r1=failed), members=lost)
    assert not others_may_follow(alone, one_fault(untrained(r1=failed)), shipped_judge())


def one_fault(obs: Observation) -> Fault:
    fault = rank_fault(obs, shipped_judge())
    assert fault is not None
    return fault


def long_after(obs: Observation) -> RecoveryState:
    """Return the state in which the other nodes have been waited for in vain."""
    return RecoveryState(awaiting=Awaiting(generation=obs.generation, since=NOW - failstop.OTHERS_SECONDS))


def test_on_one_node_alone_it_may_be_the_nodes() -> None:
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    state, actions = step(untrained(r1=failed), long_after(untrained()))
    assert actions == [Restart()]
    assert state.attempts[0].error == "ModuleNotFoundError"
    state = replace(state, awaiting=long_after(untrained()).awaiting)
    again, actions = patiently(untrained(r1=failed), state)
    assert actions == [Restart()], "the same node again"
    _, actions = step(untrained(r2=failed), state)
    assert isinstance(actions[-1], GiveUp), "another node has it, too"
    assert again.stop is not None


def test_after_iterations_the_programs_error_may_be_the_datas() -> None:
    failed = {**ended(exit_code=1), "last_words": VALUE_ERROR}
    _, actions = step(seen(ranks={0: failed, 1: failed}))
    assert actions == [Restart()]


def test_a_rank_that_ended_well_is_whom_the_others_lost() -> None:
    lost = {**ended(exit_code=1, at=NOW - 0.2), "last_words": PEER_GONE}
    obs = seen(ranks={0: lost, 1: ended(exit_code=0, at=NOW - 0.4), 2: lost})
    fault = rank_fault(obs, shipped_judge())
    assert fault is not None
    assert (fault.rank, fault.text) == (1, "ended with exit code 0 while other ranks trained")
    own = {**lost, "last_words": VALUE_ERROR}
    obs = seen(ranks={0: lost, 1: ended(exit_code=0, at=NOW - 0.4), 2: own})
    fault = rank_fault(obs, shipped_judge())
    assert fault is not None
    assert fault.rank == 2


@pytest.mark.parametrize(
    "end",
    [
        {**ended(exit_code=1), "last_words": VALUE_ERROR},
        {**ended(signal=9), "oom_killed": True},
        ended(exit_code=0),
    ],
    ids=["an error of its own", "out of memory", "an early end"],
)
def test_what_the_program_does_never_costs_a_node(end: dict[str, Any]) -> None:
    """Each time it is the same rank, and so the same node."""
    lost = {**ended(exit_code=1, at=NOW - 0.1), "last_words": PEER_GONE}
    state = FRESH
    obs = seen(ranks={0: lost, 1: end, 2: lost})
    for _ in range(POLICY.restarts):
        state, actions = patiently(obs, replace(state, stop=None))
        assert actions == [Restart()]
    _, actions = step(obs, replace(state, stop=None))
    assert [type(action) for action in actions] == [StopClosed, GiveUp]
