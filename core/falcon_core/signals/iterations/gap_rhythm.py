"""Find at which distance the gaps between alike calls recur: where calls leave a choice, gaps show the iteration.

Two searches complete each other. *Autocorrelation* of the gaps' logarithms finds any order of gaps, at any distance,
where it is most of what the gaps do (``recurring_lag``). *Folding* finds a single longer gap among many equal ones,
which is a small part of what they do (``longer_gap``): gaps are laid one cycle over the other, and at the true distance
one place of the cycle stands out from the others by far more than chance allows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.fft import irfft, rfft

from falcon_core.signals.calls.stream import Flags, Floats, Ints
from falcon_core.stats.order import median_of, tenths_of

FEWEST_GAPS = 7
LONGEST_FOLDED = 128  # gaps: those of 32 layers, two calls forward and two backward each
_MOST_GAPS = 16_384  # the newest ones, whose recurrence is looked at
_REPETITIONS = 3
_GAP_RECURRENCE = 0.5  # autocorrelation of gaps below which they have no period
_CHANCE_DEVIATIONS = 3.5  # of the autocorrelation of noise, 1/√n
_GAP_BEST_SHARE = 0.9  # the smallest lag whose autocorrelation reaches this share of the best one
_GAP_PART_SHARE = 0.75  # the same for a third of that lag or less: a disturbance that comes back every so many cycles
HALVES_RATIO = 4.0  # of the halves' mean squares, between and within: more is no chance
_FEW_GAPS = 48
_UNEVEN_GAPS = 2.5  # ratio of the 90th to the 10th percentile
_LONG_GAP = 1.5  # a gap that stands out, against the shortest
LONG_GAPS_TIME = 0.3  # share of the cycle's time in gaps that stand out

_FOLDED = 4_096  # gaps that are folded at most, the first ones: what begins later is no part of the job's cycle
_FOLDS = 4  # cycles that are laid one over the other at least
_BOUND = math.log(1.5)  # of a gap's deviation from the usual one: a single stall must not pass for a rhythm
_LEAST_LOG = math.log(1.1)  # by which the longer gap exceeds the others
_SURE_LOG = math.log(1.2)  # the same where nothing else is as likely
_NOISE_FLOOR = 0.01  # of the logarithms
_TO_DEVIATION = 1.4826  # from the median of absolute deviations to the standard deviation of normal noise
_SIGNIFICANT = 6.0  # standard errors: 2 000 pairs of a lag and a place are looked at
_CERTAIN = 10.0  # from here on twice the lag, and half of it, stand out by three standard errors less
_LEAST_LONG = 0.65  # share of cycles in which the gap exceeds half its mean rise; at half of the true lag, 0.6 may
_LEAST_LONG_ALONE = 0.8  # the same where twice the lag is not looked at
_LEAST_OFTEN = 0.5  # the same where it is not certain; single stalls that meet in a place are rarer
_PARTS = 8  # the cycles of the first of so many parts must have the longer gap, too,
_FIRST_RISE = 1 / 3  # at this share of its usual rise at least
_SEEN = 7.5  # standard errors: one in fifteen such gaps stands out by less than _SIGNIFICANT
_SEEN_LOG = math.log(1.3)  # a gap that exceeds the others by as much is seen in ``calls_needed``
_SEEN_CALLS = 3 * LONGEST_FOLDED


class LongerGap(NamedTuple):
    """A gap that is longer than the others, once in ``lag`` gaps."""

    lag: int
    sure: bool  # the lag is, and no other explains it
    from_first: bool  # it has been longer from the first gaps on


def longer_gap(gaps_ns: Ints, longest: int = LONGEST_FOLDED) -> LongerGap | None:
    """Find the lag, ``longest`` at most, at which one gap of the cycle is longer than the others: [n], ns.

    None where no lag stands out from noise.
    """
    if gaps_ns.shape[0] < 2 * _FOLDS or longest < 2:
        return None
    logs, noise = _deviations(gaps_ns[:_FOLDED])
    longest = min(longest, logs.shape[0] // _FOLDS)
    if np.count_nonzero(logs > _LEAST_LOG / 2) < _LEAST_LONG * (logs.shape[0] // longest):
        return None  # the usual case
    lags = range(2, longest + 1)
    scores = np.array([_score(logs, lag) for lag in lags]) / noise
    if scores.max() < _SIGNIFICANT:
        return None
    best = int(scores.argmax())
    lag = lags[best]
    # The noise of all gaps is taken from few of them; that of the gaps besides the longer one counts as well.
    noise = max(1.0, _rest(logs, lag) / noise)
    long_share = _long_share(logs, lag)
    if scores[best] < _SIGNIFICANT * noise or long_share < _LEAST_OFTEN:
        return None
    from_first = _comes_from_first(logs, lag)
    large = scores[best] >= _CERTAIN * noise and _rises(logs, lag).mean() >= _SURE_LOG
    # Too few gaps have come to look at twice the lag, at which every second of these gaps would be long.
    least_share = _LEAST_LONG if 2 * lag <= longest else _LEAST_LONG_ALONE
    return LongerGap(
        lag, bool(from_first and large and long_share >= least_share and _is_the_only(logs, lag)), from_first
    )


def every_second(gaps_ns: Ints) -> LongerGap | None:
    """Find whether every second gap is longer, which ``longer_gap`` cannot: no gap is the usual one then. [n], ns."""
    lag, _ = recurrence(gaps_ns)
    if lag != 2:
        return None
    logs = np.log(gaps_ns.astype(np.float64))
    return LongerGap(lag, sure=True, from_first=_comes_from_first(logs, lag))


def calls_needed(gaps_ns: Ints) -> int:
    """Return the number of calls in which a longer gap would have been seen, given the noise of these, ns: [n]."""
    return min(max(_SEEN_CALLS, math.ceil(_folds_needed(gaps_ns) * LONGEST_FOLDED / 2)), _FOLDED)


def cycles_needed(gaps_ns: Ints, longest: int) -> int:
    """Return the number of cycles in which a longer gap, once in ``longest`` at most, would have been seen.

    ``gaps_ns``: from one cycle to the next, ns: [n]. 1 where no number of cycles is asked about.
    """
    if longest < 2:
        return 1
    return min(max(_FOLDS, math.ceil(_folds_needed(gaps_ns))) * longest + 1, _FOLDED)


def _folds_needed(gaps_ns: Ints) -> float:
    """Return the number of folds at which a longer gap stands out from the noise of these, ns: [n]."""
    _, noise = _deviations(gaps_ns[:_FOLDED])
    return (_SEEN * noise / _SEEN_LOG) ** 2


def _deviations(gaps_ns: Ints) -> tuple[Floats, float]:
    """Return the bounded deviations of the gaps' logarithms from the usual one, [n], and their noise."""
    logs = np.log(gaps_ns.astype(np.float64))
    logs -= median_of(logs)
    noise = max(_TO_DEVIATION * median_of(np.abs(logs)), _NOISE_FLOOR)
    return np.clip(logs, -_BOUND, _BOUND), noise


def _folded(logs: Floats, lag: int) -> Floats:
    """Lay cycles one over the other: [n] → [cycles, lag]."""
    return logs[: logs.shape[0] // lag * lag].reshape(-1, lag)


def _score(logs: Floats, lag: int) -> float:
    """Return by how much one place of the cycle exceeds the mean of the others, times √cycles; 0 if too little."""
    folded = _folded(logs, lag)
    sums = folded.sum(axis=0)
    cycles = folded.shape[0]
    highest = float(sums.max())
    rise = (highest - (float(sums.sum()) - highest) / (lag - 1)) / cycles
    return rise * math.sqrt(cycles) if rise >= _LEAST_LOG else 0.0


def _rest(logs: Floats, lag: int) -> float:
    """Return the standard deviation of all places of the cycle but the longest."""
    folded = _folded(logs, lag)
    return float(np.delete(folded, int(folded.sum(axis=0).argmax()), axis=1).std())


def _is_the_only(logs: Floats, lag: int) -> bool:
    """Check that one place of the cycle alone stands out: of several in a row, lags near the true one fit as well."""
    means = np.sort(_folded(logs, lag).mean(axis=0))
    return lag == 2 or bool(means[-2] - means[0] < (means[-1] - means[0]) / 2)


def _long_share(logs: Floats, lag: int) -> float:
    """Return the share of cycles in which the longest place is long."""
    rises = _rises(logs, lag)
    return int(np.count_nonzero(rises >= rises.mean() / 2)) / len(rises)


def _comes_from_first(logs: Floats, lag: int) -> bool:
    """Check that the longest place of the cycle is long from the first cycles on."""
    rises = _rises(logs, lag)
    first = rises[: max(2 * _FOLDS, rises.shape[0] // _PARTS)]
    return bool(first.mean() >= _FIRST_RISE * rises.mean())


def _rises(logs: Floats, lag: int) -> Floats:
    """Return by how much the longest place of the cycle exceeds the mean of the others: [cycles]."""
    folded = _folded(logs, lag)
    sums = folded.sum(axis=0)
    place = int(sums.argmax())
    others = (float(sums.sum()) - float(sums[place])) / (lag - 1) / folded.shape[0]
    rises: Floats = folded[:, place] - others
    return rises


def gap_period(gaps_ns: Ints, least_time: float = LONG_GAPS_TIME) -> int | None:
    """Find the lag at which gaps between equal calls recur: 1 where none stands out, None if there are too few.

    ``least_time``: the least share of the time in gaps that stand out, if they are computation and not a stall.
    """
    lag, plain = recurrence(gaps_ns)
    return lag if lag is None or lag == 1 or are_long(phases(gaps_ns, lag), least_time) else plain


def recurrence(gaps_ns: Ints) -> tuple[int | None, int | None]:
    """Find the lag at which gaps recur, and what is to be said where that lag is refused: [n], ns.

    Both are 1 where no order shows, and None where there are too few gaps to see it.
    """
    gaps_ns = gaps_ns[-_MOST_GAPS:]
    count = gaps_ns.shape[0]
    if count < FEWEST_GAPS:
        return None, None
    # By logarithms: a factor between gaps counts, not their difference in time.
    logs = np.log(gaps_ns.astype(np.float64))
    low, high = tenths_of(logs)
    if count < _FEW_GAPS and high - low > np.log(_UNEVEN_GAPS):
        plain: int | None = None  # more than one kind of gap, and too few to see their order
    else:
        plain = 1
    # Find the lag by autocorrelation. By FFT it takes one pass for all lags; a loop over lags would be quadratic.
    logs -= logs.mean()
    power = float(logs @ logs)
    longest = count // _REPETITIONS
    if power <= 0 or longest < 2:
        return plain, plain
    # Padded to twice the length: otherwise the end of the series would correlate with its beginning.
    size = 1 << (2 * count - 1).bit_length()
    spectrum = rfft(logs, size)
    covariance = irfft(spectrum * spectrum.conj(), size)[: longest + 1]
    lags = np.arange(longest + 1)
    recurs = covariance * count / ((count - lags) * power)
    # Random gaps correlate by chance, the more so the fewer pairs a lag has.
    by_chance = _CHANCE_DEVIATIONS / np.sqrt(count - lags)
    recurs[recurs < np.maximum(by_chance, _GAP_RECURRENCE)] = 0.0
    # Where neighbouring gaps are alike, those a few places apart are, too.
    recurs[1 : 1 + _first(recurs[1:] == 0.0)] = 0.0
    best = float(recurs[2:].max())
    if best == 0.0:
        return plain, plain
    lag = _nearly_best(recurs, best)
    if lag is None:
        return None, None
    # The lag found may be a multiple of the true one.
    parts = [part for part in range(2, lag // _REPETITIONS + 1) if lag % part == 0]
    half = lag // 2
    if lag % 2 == 0 and half > 1 and not _halves_differ(logs, lag):
        parts.append(half)
    lag = next((part for part in parts if recurs[part] >= _GAP_PART_SHARE * best), lag)
    return lag, plain


def _nearly_best(recurrence: Floats, best: float) -> int | None:
    """Return the first lag that recurs nearly as well as the ``best``, since multiples of the period recur as well.

    None where gaps recur better and better up to the longest lag that can be seen yet: [lags].
    """
    near = recurrence >= _GAP_BEST_SHARE * best
    lag = 2 + int(near[2:].argmax())
    # Where neighbouring gaps are alike, so are the lags around the period: the best of these lags is the period.
    alike = _first(~near[lag:])
    if lag + alike == len(recurrence):
        return None
    return lag + int(recurrence[lag : lag + alike].argmax())


def _first(flags: Flags) -> int:
    """Return the index of the first that is set, or the number of flags where none is."""
    return int(flags.argmax()) if flags.any() else flags.shape[0]


def _halves_differ(logs: Floats, lag: int) -> bool:
    """Check whether the halves of the cycle differ by more than they scatter: logarithms of gaps, [n].

    Noise alone makes twice the true cycle recur better than the cycle in some streams. The halves' differences have a
    mean of 0 at each place then, and the mean squares differ by chance alone (Fisher's ratio of variances).
    """
    whole = logs.shape[0] // lag * lag
    halves = logs[:whole].reshape(-1, 2, lag // 2)
    differences = halves[:, 0] - halves[:, 1]
    count = differences.shape[0]
    between = count * float((differences.mean(axis=0) ** 2).sum())
    within = float(differences.var(axis=0, ddof=1).sum())
    return bool(between > HALVES_RATIO * within)


def phases(gaps_ns: Ints, lag: int) -> Floats:
    """Return the median gap at each position of the cycle: [n] → [lag]."""
    whole = gaps_ns.shape[0] // lag * lag
    medians: Floats = np.median(gaps_ns[:whole].reshape(-1, lag), axis=0)
    return medians


def are_long(medians_ns: Floats, least_time: float) -> bool:
    """Check that the gaps that stand out among these, ns, take that share of the time or more."""
    long = medians_ns > _LONG_GAP * medians_ns.min()
    return bool(medians_ns[long].sum() >= least_time * medians_ns.sum())


def longest_gap_phase(gaps_ns: Ints, lag: int) -> int:
    """Return the position (0 … lag − 1) of the cycle's longest gap."""
    return int(np.argmax(phases(gaps_ns, lag)))
