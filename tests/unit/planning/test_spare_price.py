"""The price of the spare that a slow node takes: against a simulated pool, and what it must never do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.capacity.spare_price import (
    MOST_BACK_SECONDS,
    PRIOR_BACK_SECONDS,
    back_seconds,
    loss_rate,
    price,
)
from falcon_core.planning.errors import InvalidInputError

DAY = 86_400.0
spares = st.integers(0, 50)
rates = st.floats(0, 1e-2)
times = st.floats(0, 30 * DAY)


@pytest.mark.parametrize(("count", "per_hour", "hours"), [(1, 0.2, 1.2), (2, 0.5, 2.0), (3, 2.0, 1.0)])
def test_the_price_is_the_time_that_a_job_waits_because_the_spare_was_taken(
    count: int, per_hour: float, hours: float
) -> None:
    """Check against random losses and returns: the ``count``-th loss finds no spare, and waits for the return."""
    rng = np.random.default_rng(7)
    back = rng.exponential(hours, 200_000)
    loss = rng.exponential(1 / per_hour, (200_000, count)).sum(axis=1)
    waits = np.maximum(0.0, back - loss)
    found = price(count, losses_per_second=per_hour / 3600, back_seconds=hours * 3600)
    five_sigma = 5 * float(waits.std()) / np.sqrt(waits.size) * 3600
    assert found == pytest.approx(float(waits.mean()) * 3600, abs=five_sigma)


@settings(deadline=None, derandomize=True)
@given(spares, rates, times)
def test_the_price_is_never_negative_nor_more_than_the_whole_time(count: int, rate: float, back: float) -> None:
    assert 0 <= price(count, losses_per_second=rate, back_seconds=back) <= back


@settings(deadline=None, derandomize=True)
@given(spares, rates, times)
def test_more_spares_never_cost_more(count: int, rate: float, back: float) -> None:
    more = price(count + 1, losses_per_second=rate, back_seconds=back)
    assert more <= price(count, losses_per_second=rate, back_seconds=back)


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 50), rates, rates, times, times)
def test_more_failures_and_later_returns_never_cost_less(
    count: int, rate: float, more: float, back: float, later: float
) -> None:
    low = price(count, losses_per_second=rate, back_seconds=back)
    high = price(count, losses_per_second=rate + more, back_seconds=back + later)
    assert high >= low * (1 - 1e-9)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 50), st.floats(0, 1e9), st.floats(0, 1e9))
def test_nodes_that_stay_away_raise_the_time_up_to_a_bound(returned: int, away: float, more: float) -> None:
    seconds = back_seconds(returned=returned, away_seconds=away)
    assert seconds <= back_seconds(returned=returned, away_seconds=away + more) <= MOST_BACK_SECONDS
    assert back_seconds(returned=returned + 1, away_seconds=away) <= seconds


def test_without_failures_or_with_plenty_of_spares_it_is_nothing() -> None:
    assert price(1, losses_per_second=0.0, back_seconds=DAY) == 0
    assert price(50, losses_per_second=1 / DAY, back_seconds=3600.0) < 1e-9


def test_a_small_job_that_has_seen_no_failure_hardly_pays_for_its_last_spare() -> None:
    rate = loss_rate(lost=0, node_seconds=0.0, nodes=3)
    assert price(1, losses_per_second=rate, back_seconds=back_seconds(returned=0, away_seconds=0.0)) < 5
    thousand = loss_rate(lost=0, node_seconds=0.0, nodes=1000)
    assert price(1, losses_per_second=thousand, back_seconds=PRIOR_BACK_SECONDS) > 300


def test_what_is_measured_outweighs_the_prior() -> None:
    rate = loss_rate(lost=100, node_seconds=1000 * DAY, nodes=10)
    assert rate == pytest.approx(100 / (1000 * DAY) * 10, rel=0.15)
    assert loss_rate(lost=5, node_seconds=DAY, nodes=0) == 0
    assert back_seconds(returned=99, away_seconds=99 * DAY) == pytest.approx(DAY, rel=0.02)
    assert back_seconds(returned=0, away_seconds=DAY / 2) > DAY / 2, "nodes that do not come back count as well"


@pytest.mark.parametrize(
    ("count", "rate", "back"),
    [(-1, 0.1, 1.0), (1, -0.1, 1.0), (1, 0.1, -1.0), (1, float("nan"), 1.0), (1, 0.1, float("inf"))],
)
def test_impossible_input_is_refused(count: int, rate: float, back: float) -> None:
    with pytest.raises(InvalidInputError):
        price(count, losses_per_second=rate, back_seconds=back)
    with pytest.raises(InvalidInputError):
        loss_rate(lost=-1, node_seconds=0.0, nodes=1)
    with pytest.raises(InvalidInputError):
        back_seconds(returned=0, away_seconds=-1.0)
