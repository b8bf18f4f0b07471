"""Loss accumulation and the moment at which the next strategy is worth its price."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from falcon_core.planning.errors import InvalidInputError
from falcon_core.planning.ski_rental import (
    HALF_DAYS,
    Candidate,
    Choice,
    Loss,
    accumulate,
    due,
    faded,
    learn,
    next_strategy,
    wait_or_drop,
)

IGNORE, REPLACE = Candidate(name="Ignore", overhead_seconds=0.0), Candidate(name="ReplaceNode", overhead_seconds=13.0)


def after(iterations: int, *, slow_ns: float = 600e6, loss: Loss | None = None) -> Loss:
    start = loss or Loss(generation=1, counted_iterations=100)
    return accumulate(start, generation=1, iterations=iterations, slow_ns=slow_ns, healthy_ns=200e6)


def test_every_slow_iteration_counts_once() -> None:
    loss = after(105)
    assert loss.seconds == pytest.approx(5 * 0.4)
    again = after(105, loss=loss)
    assert again.seconds == loss.seconds
    assert after(103, loss=loss).seconds == loss.seconds, "an older report adds nothing"


def test_fast_iterations_neither_add_nor_pay_back() -> None:
    loss = after(110)
    assert after(150, slow_ns=100e6, loss=loss).seconds == loss.seconds


def test_the_loss_survives_a_new_generation() -> None:
    loss = accumulate(after(110), generation=2, iterations=5, slow_ns=600e6, healthy_ns=200e6)
    assert loss.seconds == pytest.approx((10 + 5) * 0.4)


def test_the_ladder_in_the_order_of_overheads() -> None:
    assert next_strategy([REPLACE, IGNORE], []) == IGNORE
    assert next_strategy([REPLACE, IGNORE], ["Ignore"]) == REPLACE
    assert next_strategy([REPLACE, IGNORE], ["Ignore", "ReplaceNode"]) is None


def test_a_strategy_is_due_when_its_price_is_reached() -> None:
    assert not due(REPLACE, Loss(seconds=12.99))
    assert due(REPLACE, Loss(seconds=13.0))


def test_a_price_rises_when_two_measurements_agree_and_falls_at_once() -> None:
    assert [learn(seen, 13.0) for seen in ([8.0], [600.0], [600.0, 620.0], [8.0, 12.0, 9.0])] == [8.0, 13.0, 600.0, 9.0]


@given(usual=st.lists(st.floats(10.0, 30.0), min_size=1, max_size=12), at=st.integers(0, 12), event=st.floats(0, 1e5))
def test_one_event_does_not_spoil_the_price(usual: list[float], at: int, event: float) -> None:
    """Check a restart of half an hour, or of no time, among restarts that take 10 s to 30 s."""
    seen = [*usual[:at], event, *usual[at:]]
    prices = [learn(seen[:count], 13.0) for count in range(1, len(seen) + 1)]
    assert all(min(10.0, event) <= price <= 30.0 for price in prices)


@given(seen=st.lists(st.floats(0.0, 1e5), min_size=1, max_size=8), more=st.lists(st.floats(0.0, 1e5), max_size=8))
def test_longer_restarts_never_make_the_price_lower(seen: list[float], more: list[float]) -> None:
    longer = [seconds + extra for seconds, extra in zip(seen, [*more, *[0.0] * len(seen)], strict=False)]
    assert learn(longer, 13.0) >= learn(seen, 13.0)


def test_an_action_that_removes_a_tenth_saves_a_tenth_of_what_is_left() -> None:
    partial = Candidate(name="SwapNodes", overhead_seconds=100.0, removed_share=0.1)
    assert not due(partial, Loss(seconds=1000.0), savable_seconds=999.0)
    assert due(partial, Loss(seconds=1000.0), savable_seconds=1000.0)


@given(
    drop=st.floats(0.0, 50.0),
    rejoin=st.floats(0.0, 200.0),
    speed=st.floats(0.05, 1.0),
    end=st.floats(1.0, 500.0),
    spare=st.floats(1.0, 1000.0),
)
@example(drop=1.0, rejoin=98.0, speed=0.99, end=100.0, spare=1000.0)
def test_with_a_known_end_waiting_or_dropping_costs_at_most_twice_the_best(
    drop: float, rejoin: float, speed: float, end: float, spare: float
) -> None:
    """Check any end, and a spare that may come before it: it joins only where that pays."""
    step, until = 0.1, min(end, spare)

    def cost(dropped_at: float) -> float:
        if dropped_at >= until:
            return until
        slower = (1 - speed) * max(0.0, until - dropped_at - drop)
        after = min(rejoin, (1 - speed) * (end - until))
        return min(until, dropped_at + drop) + slower + after

    times = [step * count for count in range(int(until / step) + 1)]
    dropped_at = next(
        (
            time
            for time in times
            if wait_or_drop(
                time, drop_seconds=drop, rejoin_seconds=rejoin, speed_without=speed, seconds_left=end - time
            )
            is Choice.DROP
        ),
        until,
    )
    assert cost(dropped_at) <= 2 * min(until, cost(0.0)) + 2 * step


@given(duration=st.floats(0.1, 1000.0), excess=st.floats(0.01, 1.0), price=st.floats(0.1, 100.0))
def test_never_more_than_twice_the_clairvoyants_cost(duration: float, excess: float, price: float) -> None:
    """Check any length: the cost is at most twice the better of enduring and acting at once, with a step of slack."""
    step, lost, paid, elapsed = 0.1, Loss(), 0.0, 0.0
    while elapsed < duration:
        elapsed += step
        lost = accumulate(
            lost,
            generation=1,
            iterations=lost.counted_iterations + 1,
            slow_ns=(step + step * excess) * 1e9,
            healthy_ns=step * 1e9,
        )
        if due(Candidate(name="act", overhead_seconds=price), lost):
            paid = price
            break
    best = min(duration * excess, price)
    assert lost.seconds + paid <= 2 * best + 2 * step * excess + 1e-6


@given(seconds=st.floats(0.0, 1e5), guess=st.floats(1.0, 100.0), days=st.integers(0, 400))
def test_a_measurement_counts_half_after_each_week(seconds: float, guess: float, days: int) -> None:
    now, later = (faded(seconds, guess, age) for age in (days, days + HALF_DAYS))
    assert later - guess == pytest.approx((now - guess) / 2, abs=1e-6)
    assert faded(seconds, guess, 0) == pytest.approx(seconds)


def test_a_measurement_of_the_future_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="-1 days"):
        faded(10.0, 13.0, -1)
