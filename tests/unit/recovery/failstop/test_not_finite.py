"""When a number that stays NaN is answered by a restart, and from before which moment a checkpoint is sound."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Cause
from falcon_core.recovery import Look, NumberSeen, Spoilt
from falcon_core.recovery.failstop import not_finite, restart_ladder
from falcon_core.recovery.model.actions import Restart
from falcon_core.recovery.model.failure import Attempt
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.times import CLOCK_SECONDS, PRINTED_SECONDS
from tests.unit.recovery.seen import NOW, POLICY, replace, seen

LOSS = NumberSeen(rank=1, replica=1, metric="loss", iteration=41, finite_at=NOW - 20.0)
BEFORE = NOW - 20.0 - PRINTED_SECONDS - CLOCK_SECONDS


def look(policy: Any = POLICY, **fields: Any) -> Look:
    spoilt = {"numbers": [LOSS], "held_at": [BEFORE - 1, NOW - 10], **fields}
    return Look(seen(spoilt=Spoilt(**spoilt)), policy)


def test_all_ranks_are_restarted_and_the_incident_keeps_what_is_sound() -> None:
    taken = restart_ladder.step(RecoveryState(), look())
    assert taken.commands == [Restart(rewinds=True)]
    stop = taken.state.stop
    assert stop is not None
    assert (stop.fault.cause, stop.fault.rank, stop.saved_before) == (Cause.DIVERGED, 1, BEFORE)
    assert [step.what for step in stop.done] == ["Rewind"]
    assert [attempt.kind for attempt in taken.state.attempts] == ["Rewind"]


def test_of_several_numbers_the_one_that_was_finite_longest_ago_says_what_is_sound() -> None:
    earlier = replace(LOSS, rank=2, replica=2, finite_at=NOW - 50.0)
    never = replace(LOSS, rank=0, replica=0, metric="reward", finite_at=None)
    several = look(numbers=[never, LOSS, earlier], held_at=[NOW - 60.0])
    fault = not_finite.due(RecoveryState(), several)
    assert fault is not None
    assert not_finite.saved_before(several) == NOW - 50.0 - PRINTED_SECONDS - CLOCK_SECONDS
    assert fault.rank == 2


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"numbers": []}, "NoNumber"),
        ({"policy": replace(POLICY, enforce=False)}, "Observed"),
        ({"numbers": [replace(LOSS, finite_at=None)]}, "NeverFinite"),
        ({"held_at": None}, "NothingHeld"),
        ({"held_at": []}, "NothingSound"),
        ({"held_at": [BEFORE, NOW]}, "NothingSound"),
    ],
)
def test_why_nothing_is_restarted(fields: dict[str, Any], why: str) -> None:
    assert not_finite.hindrance(RecoveryState(), look(**fields)) == why
    assert restart_ladder.step(RecoveryState(), look(**fields)).commands == []


def test_a_folder_is_looked_into_where_all_that_memory_has_is_spoilt() -> None:
    assert not_finite.due(RecoveryState(), look(held_at=[NOW], copies_in_folder=True)) is not None


@pytest.mark.parametrize(("ago", "due"), [(POLICY.window_seconds - 1, False), (POLICY.window_seconds, True)])
def test_once_a_window(ago: float, due: bool) -> None:
    state = RecoveryState(attempts=[Attempt(at=NOW - ago, node="node-1", kind="Rewind")])
    assert (not_finite.due(state, look()) is not None) == due
    assert not_finite.restarted_at(state, look()) == (None if due else NOW - ago)


def test_it_takes_nothing_from_the_budget_of_restarts() -> None:
    state = RecoveryState(attempts=[Attempt(at=NOW - 900 - i, node="node-1", kind="Restart") for i in range(3)])
    assert restart_ladder.step(state, look()).commands == [Restart(rewinds=True)]


def test_a_failure_that_joins_leaves_the_choice_of_checkpoints() -> None:
    state = restart_ladder.step(RecoveryState(), look()).state
    ended = {0: {"process": "Ended", "exit_code": 1, "iterations": 0}}
    again = restart_ladder.step(state, Look(seen(ranks=ended, generation=2, now=NOW + 30), POLICY))
    assert again.state.stop is not None
    assert again.state.stop.saved_before == BEFORE
