"""Loss accumulation and the moment at which the next strategy is worth its price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.planning.ski_rental import Candidate, Loss, accumulate, due, learn, next_strategy

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


def test_the_first_measurement_replaces_the_guess() -> None:
    assert learn(None, 8.0) == 8.0
    assert learn(8.0, 12.0) == 10.0


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
