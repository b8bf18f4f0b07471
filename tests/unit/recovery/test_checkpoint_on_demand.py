"""A planned restart waits for a checkpoint where one can be had, and never for long."""

from __future__ import annotations

import pytest

from falcon_core.recovery.checkpoint_on_demand import AGAIN_SECONDS, URGENT_SECONDS, Demand, wait, wanted
from falcon_core.times import SAVE_SECONDS
from falcon_core.wire.saves.checkpoint import Held

RANKS = 2


def holding(step: int, *, in_folder: bool = True, listens: bool = True) -> list[Held]:
    return [Held(rank, step, 0, 1, in_folder=in_folder, listens=listens) for rank in range(RANKS)]


def asked(at: float = 100.0) -> Demand:
    state, waits = wait(Demand(number=4), holding(20), RANKS, generation=3, now=at)
    assert waits
    return state


def test_a_demand_is_numbered_and_belongs_to_its_generation() -> None:
    state = asked()
    assert (state.number, state.before, wanted(state, 3), wanted(state, 4)) == (5, 20, 5, 0)


@pytest.mark.parametrize(
    "held",
    [
        [],
        holding(20, listens=False),
        holding(20, in_folder=False),
        holding(20)[:1],
        [*holding(20)[:1], *holding(20, listens=False)[1:]],
    ],
)
def test_nobody_is_asked_who_would_not_answer(held: list[Held]) -> None:
    assert wait(Demand(), held, RANKS, generation=3, now=0.0) == (Demand(), False)


def test_it_waits_for_a_newer_step_that_is_in_the_folder_of_all() -> None:
    state = asked()
    for held in (holding(20), holding(23, in_folder=False), [*holding(23)[:1], *holding(20)[1:]], []):
        state, waits = wait(state, held, RANKS, generation=3, now=101.0)
        assert (waits, wanted(state, 3)) == (True, 5)
    state, waits = wait(state, holding(23), RANKS, generation=3, now=102.0)
    assert (waits, state.saved, wanted(state, 3)) == (False, 23, 5)
    assert wait(state, [], RANKS, generation=3, now=103.0) == (state, False), "once answered, it stays so"


@pytest.mark.parametrize(("urgent", "most"), [(False, SAVE_SECONDS), (True, URGENT_SECONDS)])
def test_it_never_waits_for_long(urgent: bool, most: float) -> None:
    state = asked()
    state, waits = wait(state, holding(20), RANKS, generation=3, now=100.0 + most, urgent=urgent)
    assert waits
    state, waits = wait(state, holding(20), RANKS, generation=3, now=100.1 + most, urgent=urgent)
    assert (waits, state.given_up, wanted(state, 3)) == (False, True, 0)


def test_a_later_restart_of_the_same_generation_asks_anew() -> None:
    state, _ = wait(asked(), holding(23), RANKS, generation=3, now=102.0)
    again, waits = wait(state, holding(90), RANKS, generation=3, now=101.0 + AGAIN_SECONDS)
    assert (waits, again.number, again.before, again.saved) == (True, 6, 90, 0)
