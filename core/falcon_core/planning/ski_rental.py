"""Decide when to act on a slowdown: endure it until the loss equals the price of the next action.

This is ski-rental (FALCON §5.2, alg. 1). How long a slowdown will last cannot be known. Acting when the accumulated
loss Σ (t_slow − t_healthy) reaches the action's overhead costs at most twice what a clairvoyant would have paid. The
loss counts from the onset and is not reset by an action; strategies come in the order of their overheads, first
configured, then learned from measurement.

**A whole ladder** with overheads b_1 ≤ … ≤ b_n costs at most 1 + max_i (b_1 + … + b_i)/b_i times the clairvoyant's
best set of actions, taken at the onset, provided that no action makes the job slower. Why: let i be the last action
taken, L the loss in the end, OPT the clairvoyant's cost. If OPT takes an action that the ladder did not, or none, then
OPT ≥ L: in the first case its price exceeds the loss, in the second it loses as fast or faster all the time. If OPT
takes only actions that the ladder took as well, the last of them was taken when the loss was its price, and from then
on the ladder loses no faster than OPT: L ≤ OPT again. The prices paid are b_1 + … + b_i ≤ ρ · b_i ≤ ρ · L, as b_i was
paid when the loss had reached it. So the whole is L + ρ · L ≤ (1 + ρ) · OPT: 2 for one action, at most 1 + n for n,
and at most 3 where each price is at least twice the last. (Losses are looked at once an iteration: add one's.)
``ladder_bound`` gives the figure.

**With a prediction** (Purohit, Svitkina and Kumar, *Improving Online Algorithms via ML Predictions*, 2018) an action
may be due earlier, at a share λ_i of its price, 0 < λ ≤ λ_i ≤ 1. The ladder then costs at most 1 + ρ/λ times the
clairvoyant's, whatever was predicted, with ρ = max_i (b_1 + … + b_i)/b_i. Why: actions are still taken in the order of
their prices, each when the loss has reached the greatest λ_k · b_k of those up to it, which is at most its own price.
So an action that was not taken is dearer than the loss, and one that was taken had been taken when the loss was at most
its price. Both cases above give L ≤ OPT as before. The prices paid are b_1 + … + b_i ≤ ρ · b_i ≤ (ρ/λ) · L, as b_i was
paid when the loss had reached λ · b_i. Nothing in this needs a loss that grows evenly: L is what was lost. So it holds
for a loss that decays or grows with time, as long as any moment costs the ladder no more than the clairvoyant once it
has taken all of the clairvoyant's actions.

If the prediction is right, less is paid. Let the clairvoyant take i actions at the onset, the ladder the same ones and
no more, the last at λ · b_i: the loss until then is λ · b_i, the prices ρ · b_i, and the clairvoyant paid b_i or more.
So it is at most λ + ρ times: 1 + λ for one action. If the slowdown is rightly predicted to be short, the action is due
at its price, which the loss never reaches: the cost is the clairvoyant's own.

**A price that moves** while the slowdown lasts (a spare's, as spares come and go): against a clairvoyant who pays the
lowest price that there was, the factor for one action is at most 2 × highest ÷ lowest: 2 where it stands still.

**A price that errs**: where an action is due at p and then costs c, it costs at most 1 + max(c/p, p/c) times the
clairvoyant's best. If the loss reaches p, p + c is paid, and the best is at least the lower of both. So a price that
has faded to a default which is too low (``faded``) costs more by their ratio, once; the measurement corrects it.

**A known end** changes the rule: an action whose price exceeds all that it can still save is not taken (``due``).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError

LEARNED_FROM = 5  # newest measurements: conditions drift
LEAST_MEASURED = 3  # with fewer, the guess counts as another one
HALF_DAYS = 7  # after which a measurement counts half: a price that stops an action stops what would correct it


class Loss(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Time lost to an incident, and how far the iterations have been counted."""

    seconds: float = 0.0
    generation: int = 0
    counted_iterations: int = 0  # of that generation


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy that applies to the incident, and what it costs the job."""

    name: str
    overhead_seconds: float
    spare_seconds: float = 0.0  # of it, for the spare that it takes (``spare_price``)
    redo_seconds: float = 0.0  # of it, for the work since the last checkpoint (``restart_price``)
    due_share: float = 1.0  # λ: of the price, at which it is due; below 1 where a long rest is expected
    removed_share: float = 1.0  # of the loss: only what it removes pays for it
    rest_seconds: float = 0.0  # the rest that is expected, where ``due_share`` is below 1
    seen: int = 0  # earlier slowdowns behind that expectation
    seen_elsewhere: int = 0  # of them, in other jobs


class Priced(Protocol):
    """An action with its price, considered (``Candidate``) or taken."""

    @property
    def overhead_seconds(self) -> float: ...
    @property
    def due_share(self) -> float: ...
    @property
    def removed_share(self) -> float: ...


def accumulate(loss: Loss, *, generation: int, iterations: int, slow_ns: float, healthy_ns: float) -> Loss:
    """Count the iterations since the last call; a new generation starts from its first iteration.

    ``slow_ns`` is the typical duration of the new iterations. Iterations that were not slow add nothing.
    """
    counted = loss.counted_iterations if generation == loss.generation else 0
    fresh = max(0, iterations - counted)
    excess_seconds = max(0.0, slow_ns - healthy_ns) / 1e9
    return Loss(
        seconds=loss.seconds + fresh * excess_seconds,
        generation=generation,
        counted_iterations=max(counted, iterations),
    )


def next_strategy(candidates: Sequence[Candidate], applied: Collection[str]) -> Candidate | None:
    """Choose the cheapest strategy that has not been applied to this incident yet; None at the ladder's end.

    An action that removes half of a slowdown counts as twice as dear: it is due when half of the loss has paid for it.
    """
    left = [candidate for candidate in candidates if candidate.name not in applied]
    return min(left, key=lambda candidate: candidate.overhead_seconds / candidate.removed_share, default=None)


def due(candidate: Candidate, loss: Loss, *, savable_seconds: float = math.inf) -> bool:
    """Check whether the loss has reached the due share of the price, and the rest of the run can still repay the price.

    ``savable_seconds`` is the whole slowdown until the job's end or deadline (``savable``), of which the action saves
    its ``removed_share``. Not acting where the price is higher keeps the factor of two: what is still lost is below the
    price, and so is the best in hindsight's saving.
    """
    reached = loss.seconds >= due_seconds(candidate)
    return reached and savable_seconds * candidate.removed_share >= candidate.overhead_seconds


def due_seconds(priced: Priced) -> float:
    """Return the loss at which an action is due [s]: λ · price ÷ the share of the loss that it removes."""
    return priced.due_share * priced.overhead_seconds / priced.removed_share


def savable(
    *, slow_ns: float, healthy_ns: float, iterations_left: int | None = None, seconds_left: float | None = None
) -> float:
    """Return the most that an action can save until the job ends [s].

    This is all of the slowdown of all iterations that are left. The end is a number of iterations (a finite run), a
    time at the present pace (a deadline), or the earlier of both; without any it is infinite.
    """
    excess_ns, left = max(0.0, slow_ns - healthy_ns), math.inf
    if iterations_left is not None:
        left = max(0, iterations_left)
    if seconds_left is not None and slow_ns > 0:
        left = min(left, max(0.0, seconds_left) * 1e9 / slow_ns)
    return left * excess_ns / 1e9 if excess_ns > 0 else 0.0


def ladder_bound(overheads_seconds: Iterable[float], *, due_share: float = 1.0) -> float:
    """Return the most that the ladder may cost ÷ the clairvoyant's cost: 1 + max_i (b_1 + … + b_i)/(λ · b_i).

    ``due_share``: the least λ of its actions. Free actions cost nothing and count nothing. Raises InvalidInputError for
    a price below zero or not finite, or a λ outside 0 < λ ≤ 1.
    """
    if not 0 < due_share <= 1:
        raise InvalidInputError(f"an action that is due at {due_share} of its price")
    prices = sorted(overheads_seconds)
    if any(not 0 <= price < math.inf for price in prices):
        raise InvalidInputError("the price of an action is negative or not finite")
    total, worst = 0.0, 0.0
    for price in prices:
        total += price
        if price > 0:
            worst = max(worst, total / price)
    return 1.0 + worst / due_share


class Choice(enum.StrEnum):
    """The choice of a job that lost a replica and has no spare."""

    WAIT = "Wait"
    DROP = "Drop"


def wait_or_drop(
    stood_still_seconds: float,
    *,
    drop_seconds: float,
    rejoin_seconds: float,
    speed_without: float,
    seconds_left: float = math.inf,
) -> Choice:
    """Choose, without a spare, between standing still until one comes and running on with fewer replicas.

    ``speed_without`` is the speed with fewer replicas, as a share of full speed.

    Waiting loses a second a second; dropping loses ``drop_seconds`` at once, ``rejoin_seconds`` when the spare comes,
    and 1 − speed all the time between. The break-even is when what dropping would have trained in the time stood still
    (speed × time) equals the price of both moves: then the loss is at most 1 + speed times that of the better of the
    two in hindsight. A known end: dropping must repay its price by what it trains until then (at most twice). The spare
    joins then only if it pays: its price is at most what fewer replicas lose until the end.
    Raises InvalidSpeedError for a speed outside 0 … 1, InvalidInputError for negative times.
    """
    if not 0 <= speed_without <= 1:
        raise InvalidSpeedError(f"a speed of {speed_without} of the full one")
    if not min(stood_still_seconds, drop_seconds, rejoin_seconds, seconds_left) >= 0:
        raise InvalidInputError("a time is negative")
    price = drop_seconds + rejoin_seconds
    if math.isfinite(seconds_left):
        price = drop_seconds + min(rejoin_seconds, (1 - speed_without) * max(0.0, seconds_left - drop_seconds))
    if speed_without == 0 or seconds_left * speed_without <= price:
        return Choice.WAIT
    return Choice.DROP if stood_still_seconds * speed_without >= price else Choice.WAIT


def learn(measured_seconds: Sequence[float], guess_seconds: float) -> float:
    """Return the overhead after these measurements, the newest last: the lower median of the newest few.

    A single event, as a restart that took half an hour, does not raise the price above the guess and the other
    measurements. A first measurement below the guess is believed at once, a later one when half of them are as low.
    """
    newest = list(measured_seconds[-LEARNED_FROM:])
    known = newest if len(newest) >= LEAST_MEASURED else [guess_seconds, *newest]
    return sorted(known)[(len(known) - 1) // 2]


def faded(measured_seconds: float, guess_seconds: float, age_days: int) -> float:
    """Return what a measurement of this age counts as: it nears the guess, by half of the distance each ``HALF_DAYS``.

    Raises InvalidInputError for a negative age.
    """
    if age_days < 0:
        raise InvalidInputError(f"a measurement of {age_days} days")
    return guess_seconds + (measured_seconds - guess_seconds) * math.pow(0.5, age_days / HALF_DAYS)
