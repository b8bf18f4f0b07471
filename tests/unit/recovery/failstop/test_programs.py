"""Failures that the program is at fault for, or may be: by its words, its end, and where it happens."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.failstop.faults import others_may_follow, rank_fault
from falcon_core.recovery.model.actions import GiveUp, Restart
from falcon_core.recovery.model.events import StopClosed
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.state import Awaiting, RecoveryState
from tests.unit.recovery.failstop.test_restart_ladder import FRESH, patiently, step
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

PEER_GONE = "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.3]:27189 (train.py:75 in main)"
VALUE_ERROR = "ValueError: bad shape (train.py:40 in step)"
NO_MODULE = "ModuleNotFoundError: No module named 'apex' (train.py:3 in <module>)"


def test_a_rank_with_an_error_of_its_own_precedes_ranks_that_lost_it() -> None:
    first = {**ended(exit_code=1, at=NOW - 0.5), "last_words": PEER_GONE}
    own = {**ended(exit_code=1, at=NOW - 0.1), "last_words": VALUE_ERROR}
    obs = seen(ranks={0: first, 1: own, 2: first})
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    assert (fault.rank, fault.error, fault.symptom) == (1, "ValueError", False)
    assert fault.text == f"exited with code 1: {VALUE_ERROR}"


def test_words_that_are_not_understood_precede_a_peers_end() -> None:
    peer = {**ended(exit_code=1, at=NOW - 0.5), "last_words": PEER_GONE}
    own = {**ended(exit_code=1, at=NOW - 0.1), "last_words": "the third device speaks in tongues"}
    obs = seen(ranks={0: peer, 1: own})
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    assert (fault.rank, fault.symptom) == (1, True)


def untrained(**ranks: dict[str, Any]) -> Observation:
    obs = seen(ranks={int(name[1:]): fields for name, fields in ranks.items()})
    return replace(obs, ranks=[replace(rank, sent=replace(rank.sent, iterations=0)) for rank in obs.ranks])


def test_an_error_of_the_program_on_two_nodes_is_mended_by_no_restart() -> None:
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    taken = step(untrained(r0=failed, r2=failed))
    state = taken.state
    assert state.stop is None
    assert state.attempts == []
    closed, given_up = taken.in_order()
    assert isinstance(closed, StopClosed)
    assert isinstance(given_up, GiveUp)
    assert "No module named 'apex' (train.py:3" in given_up.message
    assert "no restart mends that" in given_up.message


def test_a_failure_at_the_start_waits_for_the_other_nodes() -> None:
    """They started together: the node that reads its files fastest fails first, in each generation."""
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    taken = step(untrained(r1=failed))
    state = taken.state
    assert taken.is_empty
    assert state.stop is None
    taken = step(replace(untrained(r1=failed, r2=failed), now=NOW + 2), state)
    assert isinstance(taken.in_order()[-1], GiveUp)
    assert state.attempts == []
    alone = replace(untrained(r1=failed), now=NOW + restart_ladder.OTHERS_SECONDS)
    taken = step(alone, state)
    acted = taken.state
    assert taken.in_order() == [Restart()]
    assert acted.awaiting is None
    taken = step(replace(alone, generation=alone.generation + 1), replace(acted, awaiting=state.awaiting))
    again = taken.state
    assert taken.is_empty, "each generation has its own wait"
    assert again.awaiting is not None
    assert again.awaiting.since == alone.now


def test_a_failure_at_the_start_waits_for_nobody_who_has_ended_or_is_lost() -> None:
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    other = {**ended(exit_code=1), "last_words": PEER_GONE}
    taken = step(untrained(r0=other, r1=failed, r2=other))
    assert taken.in_order() == [Restart()]
    lost = [replace(member, alive=False) if member.replica != 1 else member for member in untrained().members]
    alone = replace(untrained(r1=failed), members=lost)
    assert not others_may_follow(alone, one_fault(untrained(r1=failed)), shipped_judge())


def one_fault(obs: Observation) -> Fault:
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    return fault


def long_after(obs: Observation) -> RecoveryState:
    """Return the state in which the other nodes have been waited for in vain."""
    return RecoveryState(awaiting=Awaiting(generation=obs.generation, since=NOW - restart_ladder.OTHERS_SECONDS))


def test_on_one_node_alone_it_may_be_the_nodes() -> None:
    failed = {**ended(exit_code=1), "last_words": NO_MODULE}
    taken = step(untrained(r1=failed), long_after(untrained()))
    state = taken.state
    assert taken.in_order() == [Restart()]
    assert state.attempts[0].error == "ModuleNotFoundError"
    state = replace(state, awaiting=long_after(untrained()).awaiting)
    taken = patiently(untrained(r1=failed), state)
    again = taken.state
    assert taken.in_order() == [Restart()], "the same node again"
    taken = step(untrained(r2=failed), state)
    assert isinstance(taken.in_order()[-1], GiveUp), "another node has it, too"
    assert again.stop is not None


def test_after_iterations_the_programs_error_may_be_the_datas() -> None:
    failed = {**ended(exit_code=1), "last_words": VALUE_ERROR}
    taken = step(seen(ranks={0: failed, 1: failed}))
    assert taken.in_order() == [Restart()]


def test_a_rank_that_ended_well_is_whom_the_others_lost() -> None:
    lost = {**ended(exit_code=1, at=NOW - 0.2), "last_words": PEER_GONE}
    obs = seen(ranks={0: lost, 1: ended(exit_code=0, at=NOW - 0.4), 2: lost})
    fault = rank_fault(Look(obs, POLICY))
    assert fault is not None
    assert (fault.rank, fault.text) == (1, "ended with exit code 0 while other ranks trained")
    own = {**lost, "last_words": VALUE_ERROR}
    obs = seen(ranks={0: lost, 1: ended(exit_code=0, at=NOW - 0.4), 2: own})
    fault = rank_fault(Look(obs, POLICY))
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
        taken = patiently(obs, replace(state, stop=None))
        state = taken.state
        assert taken.in_order() == [Restart()]
    taken = step(obs, replace(state, stop=None))
    assert [type(action) for action in taken.in_order()] == [StopClosed, GiveUp]
