"""What the ladder may cost at most beside a clairvoyant, a known end, and a lost replica without a spare."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError
from falcon_core.planning.ski_rental import (
    Candidate,
    Choice,
    Loss,
    due,
    ladder_bound,
    next_strategy,
    savable,
    wait_or_drop,
)

replace = msgspec.structs.replace
STEP = 0.01  # seconds of an iteration: the loss is looked at once in each


@st.composite
def ladders(draw: st.DrawFn) -> tuple[list[Candidate], dict[frozenset[str], float], float]:
    """Draw prices, the loss per second after each set of actions, and the length of the slowdown.

    More actions never make the job slower.
    """
    prices = draw(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=3))
    names = [f"S{index}" for index in range(len(prices))]
    effects = draw(st.lists(st.floats(0.0, 1.0), min_size=len(names), max_size=len(names)))
    excess = draw(st.floats(0.1, 3.0))
    rates = {}
    for size in range(len(names) + 1):
        for taken in itertools.combinations(range(len(names)), size):
            rates[frozenset(names[index] for index in taken)] = excess * math.prod(effects[index] for index in taken)
    candidates = [Candidate(name=name, overhead_seconds=price) for name, price in zip(names, prices, strict=True)]
    return candidates, rates, draw(st.floats(0.1, 10.0))


def climb(candidates: list[Candidate], rates: dict[frozenset[str], float], lasts: float, decay: float = 0.0) -> float:
    """Return the ladder's cost: Algorithm 1 with the module's own decisions. ``decay``: of the loss, per second."""
    loss, paid, applied = 0.0, 0.0, frozenset[str]()
    for step in range(round(lasts / STEP)):
        while (found := next_strategy(candidates, applied)) is not None and due(found, Loss(seconds=loss)):
            paid, applied = paid + found.overhead_seconds, applied | {found.name}
        loss += rates[applied] * math.exp(-decay * step * STEP) * STEP
    return loss + paid


@settings(deadline=None, derandomize=True, max_examples=80)
@given(ladders())
def test_the_whole_ladder_keeps_its_bound(case: tuple[list[Candidate], dict[frozenset[str], float], float]) -> None:
    candidates, rates, lasts = case
    price = {candidate.name: candidate.overhead_seconds for candidate in candidates}
    lasts = round(lasts / STEP) * STEP
    clairvoyant = min(sum(price[name] for name in taken) + rate * lasts for taken, rate in rates.items())
    bound = ladder_bound(price.values())
    slack = bound * rates[frozenset()] * STEP
    assert climb(candidates, rates, lasts) <= bound * clairvoyant + slack + 1e-9


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ladders(), st.lists(st.floats(0.2, 1.0), min_size=3, max_size=3), st.floats(0.0, 2.0))
def test_the_whole_ladder_keeps_its_bound_whatever_was_predicted_and_while_the_loss_decays(
    case: tuple[list[Candidate], dict[frozenset[str], float], float], shares: list[float], decay: float
) -> None:
    candidates, rates, lasts = case
    early = [replace(candidate, due_share=share) for candidate, share in zip(candidates, shares, strict=False)]
    price = {candidate.name: candidate.overhead_seconds for candidate in candidates}
    weights = [math.exp(-decay * step * STEP) for step in range(round(lasts / STEP))]
    left = sum(weights) * STEP
    clairvoyant = min(sum(price[name] for name in taken) + rate * left for taken, rate in rates.items())
    bound = ladder_bound(price.values(), due_share=min(share for share, _ in zip(shares, candidates, strict=False)))
    slack = bound * rates[frozenset()] * STEP
    assert climb(early, rates, lasts, decay) <= bound * clairvoyant + slack + 1e-9


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_one_action_that_is_due_early_costs_little_if_rightly_predicted_and_its_bound_if_wrongly(share: float) -> None:
    act = Candidate(name="act", overhead_seconds=1.0, due_share=share)
    rates = {frozenset[str](): 1.0, frozenset({"act"}): 0.0}
    assert climb([act], rates, 100.0) == pytest.approx(1 + share, abs=2 * STEP)  # the clairvoyant pays 1
    lasts = share + 2 * STEP  # it would have ended right after the action
    assert climb([act], rates, lasts) / lasts == pytest.approx(ladder_bound([1.0], due_share=share), rel=0.1)
    assert ladder_bound([1.0], due_share=share) == 1 + 1 / share


@pytest.mark.parametrize("share", [0.0, -0.5, 1.1, math.nan])
def test_a_share_of_the_price_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(InvalidInputError):
        ladder_bound([1.0], due_share=share)


def test_the_bounds_of_known_ladders() -> None:
    assert ladder_bound([13.0]) == 2.0
    assert ladder_bound([0.0, 13.0]) == 2.0, "ignoring is free"
    assert ladder_bound([10.0, 10.0, 10.0]) == 4.0, "equal prices: one more for each"
    assert ladder_bound([10.0, 10.0, 1000.0]) == 3.0, "the worst moment is not the last"
    assert ladder_bound([5.0, 60.0, 600.0]) == pytest.approx(1 + 665 / 600)
    assert all(ladder_bound([2.0**k for k in range(n)]) < 3 for n in range(1, 20))
    assert ladder_bound([]) == 1.0
    for price in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidInputError):
            ladder_bound([price])


def test_the_bound_of_equal_prices_is_nearly_reached() -> None:
    """Check that the bound is tight: three useless actions of the same price, and an end right after the last."""
    candidates = [Candidate(name=f"S{k}", overhead_seconds=1.0) for k in range(3)]
    rates = {
        frozenset(names): 1.0 for n in range(4) for names in itertools.combinations([c.name for c in candidates], n)
    }
    lasts = 1.0 + 2 * STEP
    assert climb(candidates, rates, lasts) / lasts == pytest.approx(4.0, rel=0.05)


@settings(deadline=None, derandomize=True)
@given(prices=st.lists(st.floats(0.5, 5.0), min_size=1, max_size=8), lasts=st.floats(0.1, 20.0))
def test_a_price_that_moves_costs_its_spread(prices: list[float], lasts: float) -> None:
    """Check an action that ends the loss; its price changes each second, as a spare's does, unforeseeably."""
    loss, paid = 0.0, 0.0
    for index in range(round(lasts / STEP)):
        act = Candidate(name="act", overhead_seconds=prices[int(index * STEP) % len(prices)], spare_seconds=0.5)
        if due(act, Loss(seconds=loss)):
            paid = act.overhead_seconds
            break
        loss += STEP
    clairvoyant = min(round(lasts / STEP) * STEP, min(prices))
    assert loss + paid <= 2 * max(prices) / min(prices) * clairvoyant + 2 * STEP


@settings(deadline=None, derandomize=True)
@given(price=st.floats(0.5, 5.0), costs=st.floats(0.5, 5.0), lasts=st.floats(0.1, 20.0))
def test_a_price_that_errs_costs_at_most_its_error(price: float, costs: float, lasts: float) -> None:
    """Check an action that ends the loss and is due at one price, but costs another one."""
    act, loss, paid = Candidate(name="act", overhead_seconds=price), 0.0, 0.0
    for _ in range(round(lasts / STEP)):
        if due(act, Loss(seconds=loss)):
            paid = costs
            break
        loss += STEP
    clairvoyant = min(round(lasts / STEP) * STEP, costs)
    assert loss + paid <= (1 + max(costs / price, price / costs)) * clairvoyant + 2 * STEP


# -- a known end -------------------------------------------------------------------------------------------------------


def test_what_can_still_be_saved() -> None:
    assert savable(slow_ns=3e9, healthy_ns=1e9) == math.inf
    assert savable(slow_ns=3e9, healthy_ns=1e9, iterations_left=5) == 10.0
    assert savable(slow_ns=3e9, healthy_ns=1e9, seconds_left=9.0) == pytest.approx(6.0)
    assert savable(slow_ns=3e9, healthy_ns=1e9, iterations_left=1, seconds_left=9.0) == 2.0
    assert savable(slow_ns=1e9, healthy_ns=1e9) == 0.0
    assert savable(slow_ns=3e9, healthy_ns=1e9, iterations_left=-1) == 0.0


def test_close_to_the_end_nothing_expensive_is_done() -> None:
    replace = Candidate(name="ReplaceNode", overhead_seconds=60.0)
    assert due(replace, Loss(seconds=60.0))
    assert due(replace, Loss(seconds=60.0), savable_seconds=60.0)
    assert not due(replace, Loss(seconds=60.0), savable_seconds=59.0)
    assert not due(replace, Loss(seconds=59.0), savable_seconds=math.inf)


@settings(deadline=None, derandomize=True)
@given(price=st.floats(0.1, 5.0), run=st.floats(0.1, 20.0), share=st.floats(0.0, 1.0))
def test_a_known_end_keeps_the_factor_of_two(price: float, run: float, share: float) -> None:
    """Check a loss of 1 s per second, which ends at an unknown ``share`` of the run; the run's end is known."""
    act, loss, paid = Candidate(name="act", overhead_seconds=price), 0.0, 0.0
    slow_until = share * run
    for index in range(math.ceil(slow_until / STEP)):
        if due(act, Loss(seconds=loss), savable_seconds=run - index * STEP):
            paid = price
            break
        loss += STEP
    assert loss + paid <= 2 * min(slow_until, price) + 3 * STEP


# -- no spare ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True)
@given(
    drop=st.floats(0.1, 3.0),
    rejoin=st.floats(0.0, 3.0),
    speed=st.floats(0.2, 1.0),
    spare_after=st.floats(0.1, 30.0),
    end=st.sampled_from([math.inf, 5.0, 12.0]),
)
def test_waiting_or_dropping_costs_little_more_than_the_better_in_hindsight(
    drop: float, rejoin: float, speed: float, spare_after: float, end: float
) -> None:
    until, waited, lost = min(spare_after, end), 0.0, 0.0
    while waited < until:
        choice = wait_or_drop(
            waited, drop_seconds=drop, rejoin_seconds=rejoin, speed_without=speed, seconds_left=end - waited
        )
        if choice is Choice.DROP:
            lost = drop + rejoin + (1 - speed) * (until - waited)
            break
        waited += STEP
    best = min(until, drop + rejoin + (1 - speed) * until)
    factor = 1 + speed if end == math.inf else 2.0
    assert waited + lost <= factor * best + 3 * STEP


def test_a_job_that_cannot_run_smaller_waits() -> None:
    assert wait_or_drop(1e9, drop_seconds=1, rejoin_seconds=1, speed_without=0.0) is Choice.WAIT
    assert wait_or_drop(10, drop_seconds=4, rejoin_seconds=4, speed_without=0.75) is Choice.WAIT
    assert wait_or_drop(11, drop_seconds=4, rejoin_seconds=4, speed_without=0.75) is Choice.DROP
    with pytest.raises(InvalidSpeedError):
        wait_or_drop(1, drop_seconds=1, rejoin_seconds=1, speed_without=1.5)
    with pytest.raises(InvalidInputError):
        wait_or_drop(-1, drop_seconds=1, rejoin_seconds=1, speed_without=0.5)


# -- learned prices ----------------------------------------------------------------------------------------------------
