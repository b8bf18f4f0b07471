"""Prices that near the defaults as their measurements grow old."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.planning.ski_rental import HALF_DAYS
from falcon_core.recovery import Look, RecoveryState, machine
from falcon_core.recovery.cost import learned_prices
from falcon_core.recovery.mitigation.strategy_table import STRATEGY_TYPES
from falcon_core.recovery.model.state import DAY_SECONDS, Habits, with_measured
from falcon_core.recovery.strategies.strategy_type import StrategyType
from tests.unit.recovery.seen import NOW, POLICY, seen

DEFAULT = 13.0
PRICE = "ReplaceNode"
DEFAULTS = {PRICE: DEFAULT}
SECONDS = st.lists(st.floats(0.0, 1e5), min_size=1, max_size=8)


def learned(seconds: list[float]) -> RecoveryState:
    state = RecoveryState()
    for each in seconds:
        state = with_measured(state, PRICE, each, default_seconds=DEFAULT, now=NOW)
    return state


def after(state: RecoveryState, days: float) -> float:
    return learned_prices.step(state, NOW + days * DAY_SECONDS, DEFAULTS).overheads[PRICE]


def test_a_price_that_was_learned_in_an_outage_is_tried_again() -> None:
    """Check three replacements of half an hour, and then none for months: a slowdown never reaches such a price."""
    state = learned([1800.0] * 3)
    assert after(state, 0.5) == 1800.0
    assert after(state, HALF_DAYS) == DEFAULT + (1800.0 - DEFAULT) / 2
    assert after(state, 50) < 2 * DEFAULT
    assert machine.step(state, Look(seen(now=NOW + 50 * DAY_SECONDS), POLICY)).state.overheads[PRICE] < 2 * DEFAULT


def test_a_new_measurement_is_not_outvoted_by_those_of_the_outage() -> None:
    later = NOW + 60 * DAY_SECONDS
    state = with_measured(learned([1800.0] * 3), PRICE, 30.0, default_seconds=DEFAULT, now=later)
    assert state.overheads[PRICE] <= 30.0


def test_restarts_that_stay_slow_are_known_again_after_one() -> None:
    later = NOW + 60 * DAY_SECONDS
    state = learned([1800.0] * 3)
    for _ in range(3):
        state = with_measured(state, PRICE, 1800.0, default_seconds=DEFAULT, now=later)
    assert state.overheads[PRICE] == 1800.0


@given(seconds=SECONDS, days=st.lists(st.floats(0.0, 400.0), min_size=2, max_size=6))
def test_a_price_nears_the_default_and_never_leaves_the_way_to_it(seconds: list[float], days: list[float]) -> None:
    state = learned(seconds)
    prices = [after(state, day) for day in [0.0, *sorted(days)]]
    gaps = [abs(price - DEFAULT) for price in prices]
    assert all(later <= earlier + 0.01 for earlier, later in pairwise(gaps))
    low, high = min(*seconds, DEFAULT), max(*seconds, DEFAULT)
    assert all(low - 0.01 <= price <= high + 0.01 for price in prices)


@given(seconds=SECONDS)
def test_every_price_is_within_twice_the_default_after_a_bounded_time(seconds: list[float]) -> None:
    bound = HALF_DAYS * (1 + math.ceil(math.log2(max(1.0, max(seconds) / DEFAULT))))
    assert after(learned(seconds), bound + 1) <= 2 * DEFAULT


@given(seconds=SECONDS, more=st.lists(st.floats(0.0, 1e5), min_size=8, max_size=8), days=st.floats(0.0, 400.0))
def test_longer_standstills_never_make_an_aged_price_lower(
    seconds: list[float], more: list[float], days: float
) -> None:
    longer = [each + extra for each, extra in zip(seconds, more, strict=False)]
    assert after(learned(longer), days) >= after(learned(seconds), days) - 0.01


def test_the_state_changes_at_most_once_a_day() -> None:
    state = learned([1800.0] * 3)
    looks = [learned_prices.step(state, NOW + minute * 60.0, DEFAULTS) for minute in range(2 * 24 * 60 - 1)]
    assert len({look.overheads[PRICE] for look in looks}) == 2


def test_what_an_earlier_operator_stored_ages_from_the_first_look_on() -> None:
    stored = RecoveryState(overheads={PRICE: 1800.0}, habits=Habits(measured={PRICE: [1800.0] * 3}))
    state = learned_prices.step(stored, NOW, DEFAULTS)
    assert state.overheads == stored.overheads
    assert state.habits.measured_at == {PRICE: [NOW] * 3}
    assert after(state, 50) < 2 * DEFAULT


def test_a_price_without_measurements_stays() -> None:
    state = RecoveryState(overheads={PRICE: 9.0})
    assert learned_prices.step(state, NOW, DEFAULTS) is state


@pytest.mark.parametrize("facts", [each for each in STRATEGY_TYPES if each.restarts], ids=lambda facts: facts.name)
def test_the_price_of_each_strategy_that_restarts_the_ranks_ages(facts: StrategyType) -> None:
    state = RecoveryState()
    for _ in range(3):
        state = with_measured(state, facts.name, 1800.0, default_seconds=facts.default_seconds, now=NOW)
    later = machine.step(state, Look(seen(now=NOW + 50 * DAY_SECONDS), POLICY)).state
    assert later.overheads[facts.name] < 2 * max(facts.default_seconds, 60.0)
