"""Find the period of a stream of calls in which single calls differ from cycle to cycle.

Such a call has a size that depends on the data, or comes only now and then, so that no exact run is long.

At the true lag L the calls that do not recur are *substitutions*: call t differs from t − L and from t + L, which equal
each other. A lag that only fits a part of the cycle (a layer) breaks in another way: either the two neighbours differ,
or the breaks lie at the same places of a longer cycle. A lag is accepted on three conditions: it recurs mostly, its
breaks are neither of these, and they are so many that a longer cycle would have shown itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from numpy.fft import fft, ifft
from numpy.random import default_rng

from falcon_core.signals.calls.stream import Flags, Floats, Ints
from falcon_core.stats.binomial import chance_of_at_least
from falcon_core.stats.order import counts_of

Complexes = npt.NDArray[np.complex128]

_NEWEST = 16_384  # calls that are looked at
_LEAST_CYCLES = 8
_LEAST_SAME = 0.8  # share of the calls that recur
_LEAST_BREAKS = 24
_LEAST_SUBSTITUTIONS = 0.75  # share of the breaks
_LEAST_OF_ONE_KIND = 0.9
_CANDIDATES = 24
_ABOUT_BEST = 0.08
_PROJECTIONS = 6
_CHANCE = 1e-4  # that breaks without order look like those of a longer cycle
_DEVIATIONS = 3.0  # by which a lag must recur better than one that it is a multiple of
_SEED = 20_070


def noisy_lag(tokens: Ints, is_iteration: Callable[[int], bool]) -> int | None:
    """Find the smallest lag whose breaks are without order; None where there is none, or too few calls.

    Where a lag could be an iteration's, and its cycles are all of one kind, what breaks them regularly is extra.
    """
    tokens = tokens[-_NEWEST:]
    if tokens.shape[0] < _LEAST_BREAKS + _LEAST_CYCLES:
        return None
    shares = {lag: 1.0 - _share(_same(tokens, lag)) for lag in _candidates(tokens)}
    lags = {lag: share for lag, share in shares.items() if share <= 1 - _LEAST_SAME}
    differing = min(shares.values(), default=0.0) / 2  # a call that differs breaks twice
    for lag in lags:
        alike = is_iteration(lag) and _are_of_one_kind(tokens, lag, differing)
        if alike or _breaks_without_order(tokens, lag, lags):
            enough = int((~_same(tokens, lag)).sum()) >= _LEAST_BREAKS
            return lag if enough and not _recurs_as_well(lags, lag, tokens.shape[0]) else None
    return None


def _breaks_without_order(tokens: Ints, lag: int, lags: Iterable[int]) -> bool:
    """Check that most breaks are substitutions, and that they are not those of a longer lag's cycle."""
    if _substituted(tokens, lag) < _LEAST_SUBSTITUTIONS:
        return False
    breaks = ~_same(tokens, lag)
    return not any(_has_order(breaks, longer) for longer in lags if longer > lag)


def _recurs_as_well(shares: Mapping[int, float], lag: int, count: int) -> bool:
    """Check whether a shorter lag that divides this lag recurs about as well; ``shares``: of breaks, by lag."""
    by_chance = _DEVIATIONS * math.sqrt(max(shares[lag], 1 / count) / count)
    return any(lag % part == 0 and shares[part] <= shares[lag] + by_chance for part in shares if part < lag)


def _share(flags: Flags) -> float:
    """Return the share of flags that are set, at a fifth of the cost of their mean: [n], n > 0."""
    count = int(np.count_nonzero(flags))
    return count / len(flags)


def _same(tokens: Ints, lag: int) -> Flags:
    same: Flags = tokens[lag:] == tokens[:-lag]
    return same


def _candidates(tokens: Ints) -> list[int]:
    """Find the lags at which most calls recur, about, ascending.

    Each token becomes a random point on the unit circle; equal ones add up in the autocorrelation, others cancel.
    """
    count = tokens.shape[0]
    longest = count // _LEAST_CYCLES
    if longest < 2:
        return []
    values, places = np.unique(tokens, return_inverse=True)
    size = 1 << (2 * count - 1).bit_length()
    # The autocorrelation by FFT compares all lags at once; trying each lag would take quadratic time.
    power = np.square(np.abs(fft(_points(values.shape[0])[:, places], size))).sum(axis=0)
    recurrence: Floats = ifft(power).real[: longest + 1] / (_PROJECTIONS * (count - np.arange(longest + 1)))
    # Lags 0 and 1 match trivially.
    recurrence[:2] = -1.0
    best = np.argsort(recurrence)[-_CANDIDATES:]
    shortest = np.flatnonzero(recurrence >= recurrence.max() - _ABOUT_BEST)[:_CANDIDATES]
    lags = np.union1d(best, shortest)  # multiples of the true lag are many, and as good
    return [int(lag) for lag in lags[recurrence[lags] > 0]]


@functools.lru_cache(maxsize=4)
def _points(count: int) -> Complexes:
    """Return random points on the unit circle: [projections, count]."""
    points: Complexes = np.exp(2j * np.pi * default_rng(_SEED).random((_PROJECTIONS, count)))
    points.setflags(write=False)
    return points


@functools.lru_cache(maxsize=4)
def _names(count: int) -> Ints:
    """Return random numbers that stand for tokens: [count]."""
    names: Ints = default_rng(_SEED).integers(1, 1 << 40, count)
    names.setflags(write=False)
    return names


def _substituted(tokens: Ints, lag: int) -> float:
    """Return the share of the breaks that substitutions explain; a call that differs breaks before it and after it."""
    before, middle, after = tokens[: -2 * lag], tokens[lag:-lag], tokens[2 * lag :]
    left, right = before != middle, middle != after
    alone = left & right & (before == after)
    breaks = (int(left.sum()) + int(right.sum())) / 2
    return 2 * int(alone.sum()) / breaks if breaks else 0.0


def _are_of_one_kind(tokens: Ints, lag: int, differing: float) -> bool:
    """Check that as many stretches of ``lag`` calls hold the same tokens as single calls that differ allow."""
    sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(_names(int(tokens.max()) + 1)[tokens])))
    _, counts = counts_of(sums[lag:] - sums[:-lag])
    return bool(counts.max() >= _LEAST_OF_ONE_KIND * (1 - differing) ** lag * (tokens.shape[0] - lag + 1))


def _has_order(breaks: Flags, longer: int) -> bool:
    """Check whether breaks return at the same place of a longer cycle more often than those without order would."""
    cycles = breaks.shape[0] // longer
    if cycles < 3:
        return False
    folded = breaks[: cycles * longer].reshape(cycles, longer).sum(axis=0)
    share = float(breaks.mean())
    return chance_of_at_least(int(folded.max()), cycles, share) * longer < _CHANCE


def repeats_from(tokens: Ints, lag: int) -> int:
    """Find the call from which on most calls recur at this lag; its index."""
    width = max(lag, 32)
    first = int(tokens.shape[0])
    while first - lag > 0:
        begin = max(first - width, lag)
        if begin >= first or (tokens[begin:first] == tokens[begin - lag : first - lag]).mean() < _LEAST_SAME - 0.1:
            break
        first = begin
    return max(first - lag, 0)


def usual_cycle(tokens: Ints, lag: int) -> Ints:
    """Return the most frequent token at each place of the cycle, from the first call on: [n] → [lag]."""
    whole = tokens[: tokens.shape[0] // lag * lag].reshape(-1, lag)[-64:]
    cycle = np.empty(lag, dtype=np.int64)
    for place in range(lag):
        values, counts = np.unique(whole[:, place], return_counts=True)
        cycle[place] = values[int(counts.argmax())]
    return cycle
