"""Predict the time of an iteration from its bytes, so that a long batch is no slowdown.

Where sizes depend on the data, so does the work, and the time with it: time ≈ base + slope · bytes. The detector judges
the time that an iteration of the usual bytes would have taken, time · (usual / expected). A slow device takes longer by
the same factor whatever the batch, so the factor remains.

The slope is the median of the slopes of pairs (Theil 1950): half of the pairs may be anything. Samples are ordered by
bytes, and each of the lower half is paired with that of the upper half at the same place.

Only a rank correlation (Spearman 1904) of bytes and times that chance does not make shows a slope; until then it is 0,
and times stay as they are. This finds more slopes than a count of rising pairs: with 32 samples and a correlation of
0.75, it finds four of five, and the count one of seven.

An iteration's bytes may be those of its calls, or of the calls that come next after each of them (``segmenter``). Those
that leave less of the time unexplained are used.

Old sizes show the slope as well as the newest do, and better where the newest are all alike. So the newest sample of
each size is kept.

Nothing is known of sizes far from all those that were learned (longer sequences from now on, a larger batch). They are
no basis for a judgement. If they continue, their times are learned, and are then expected.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import chain

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import Floats
from falcon_core.signals.iterations.segmenter import Sizes
from falcon_core.stats.order import median_of

SAMPLES = 32  # iteration times that are collected first
# Samples of a rank's own computation after which it is judged. Where iterations are timed on the device, there is one
# sample in many iterations. Computation follows the bytes closely: a correlation of 0.95 is shown by so few in 24 cases
# of 25. Where it is not shown, times stay as they are, with the scatter of their bytes.
LEAST_SAMPLES = 16
_CLASSES = 32  # of sizes, each an eighth of a doubling wide; of more, those that came last
_CLASSES_A_DOUBLING = 8
_CLASS_SAMPLES = 32
_EVERY = 8  # samples from one estimate to the next
_RECONSIDERED = 64  # samples until the other bytes are looked at again
_CLEARLY = 0.7  # of what is unexplained
# Of a rank correlation's hyperbolic arctangent, whose variance without a slope is 1.06 / (n − 3) (Fieller, Hartley and
# Pearson 1957): chance reaches this once in 10 000 times with 16 samples, more rarely with more.
_DEVIATIONS = 4.0
_VARIANCE = 1.06
_MARGIN = 0.5  # of the range of sizes that were learned: sizes farther outside are not known
_LEAST_MARGIN = 0.1  # of the size
_LEAST_SHARE = 0.1  # of the usual time: no iteration is expected to take less, however few its bytes


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """The time's relative growth with each byte beyond the usual number."""

    per_byte: float  # 0 where the time does not depend on bytes
    usual: float  # bytes
    by_next: bool = False  # bytes of the calls that come next


class ExpectedTime:
    """The expected time of iterations by their bytes, learned from healthy ones."""

    def __init__(self, known: Slope | None = None, *, least: int = SAMPLES) -> None:
        """Begin with a ``known`` slope, or learn it from ``least`` samples at first."""
        self._least = least
        self.slope = known
        self.usual: float | None = None if known is None else known.usual  # bytes, for good: levels are of that many
        self._newest = 0  # iteration that was learned
        self._samples: dict[
            int, deque[tuple[int, int, int]]
        ] = {}  # sizes and time, by class; that of the newest comes last
        self._count = 0
        self._since = 0
        self._range: tuple[int, int] | None = None  # of the sizes that were learned

    def knows(self, sizes: Sizes) -> bool:
        """Check whether times of about these sizes were learned, so that another one can be judged."""
        if self.slope is None or self._range is None:
            return self.slope is not None
        low, high = self._range
        margin = max(_MARGIN * (high - low), _LEAST_MARGIN * high)
        return low - margin <= sizes.calls <= high + margin

    def learn(self, number: int, sizes: Sizes, time_ns: int) -> None:
        """Learn from a healthy iteration; each counts once, and numbers ascend."""
        if number <= self._newest:
            return
        self._newest = number
        size = sizes.calls
        # Samples are kept by size class, so that rare sizes are not pushed out by frequent ones.
        place = round(_CLASSES_A_DOUBLING * math.log2(max(1, size)))
        alike = self._samples.pop(place, None) or deque(maxlen=_CLASS_SAMPLES)
        alike.append((*sizes, time_ns))
        self._samples[place] = alike
        # The class that was used longest ago goes: each use moves a class to the end.
        if len(self._samples) > _CLASSES:
            del self._samples[next(iter(self._samples))]
        self._count += 1
        low, high = self._range or (size, size)
        self._range = min(low, size), max(high, size)
        self._since += 1
        if self._count >= self._least and self._since >= _EVERY:
            self._since = 0
            self._estimate()

    def corrected_ns(self, sizes: Sizes | None, time_ns: int) -> int:
        """Return the time that the usual number of bytes would have taken [ns]; None: bytes do not vary."""
        return time_ns if sizes is None else round(time_ns / self.load(sizes))

    def load(self, sizes: Sizes) -> float:
        """Return the time that these bytes explain ÷ that of the usual bytes; 1 where times do not depend on bytes."""
        slope = self.slope
        if slope is None or slope.per_byte == 0.0:
            return 1.0
        more = (sizes.next_calls if slope.by_next else sizes.calls) - slope.usual
        return max(_LEAST_SHARE, 1.0 + slope.per_byte * more)

    def _estimate(self) -> None:
        """Set the slope from the samples; the bytes that were taken before are left for clearly better ones alone."""
        samples = np.array(list(chain.from_iterable(self._samples.values())), dtype=np.float64)
        known = self.slope
        by_next = known is not None and known.by_next
        slope, unexplained = self._fit(samples, by_next=by_next)
        if known is None or known.per_byte == 0.0 or slope.per_byte == 0.0 or self._count % _RECONSIDERED == 0:
            other, left = self._fit(samples, by_next=not by_next)
            if other.per_byte > 0.0 and (slope.per_byte == 0.0 or left < _CLEARLY * unexplained):
                slope = other
        self.slope, self.usual = slope, slope.usual

    def _fit(self, samples: Floats, *, by_next: bool) -> tuple[Slope, float]:
        """Return the slope of samples ([n, 3]: both sizes, time), and the share of the time that it leaves unexplained.

        A slope that was found is followed from then on, whether or not it could still be chance.
        """
        samples = samples[np.argsort(samples[:, int(by_next)], kind="stable")]
        sizes, times = samples[:, int(by_next)], samples[:, 2]
        known = self.slope
        usual = median_of(sizes) if self.usual is None else self.usual
        # Pair each small sample with one of the larger half: the median of these slopes withstands outliers.
        half = sizes.shape[0] // 2
        run, rise = sizes[-half:] - sizes[:half], times[-half:] - times[:half]
        rise, run = rise[run > 0], run[run > 0]
        slope = 0.0
        found = known is not None and known.per_byte > 0.0 and known.by_next == by_next
        # By chance any two columns show some slope; a new one must be significant.
        if run.shape[0] and (found or _rise_together(sizes, times)):
            slope = max(0.0, median_of(rise / run))
        expected = times - slope * (sizes - usual)
        level = max(1.0, median_of(expected))
        unexplained = median_of(np.abs(expected - level)) / level
        return Slope(per_byte=slope / level, usual=usual, by_next=by_next), unexplained


def _rise_together(sizes: Floats, times: Floats) -> bool:
    """Check whether times are longer where sizes are larger, more clearly than by chance: [n], [n], n > 4."""
    by_size, by_time = _centred_ranks(sizes), _centred_ranks(times)
    power = math.sqrt(float(by_size @ by_size) * float(by_time @ by_time))
    if power == 0.0:
        return False
    correlation = min(max(0.0, float(by_size @ by_time) / power), 1.0 - 1e-9)
    return math.atanh(correlation) >= _DEVIATIONS * math.sqrt(_VARIANCE / (sizes.shape[0] - 3))


def _centred_ranks(values: Floats) -> Floats:
    """Return the values' ranks less their mean; equal values share the mean of their ranks: [n] → [n]."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2)[places] - (values.shape[0] + 1) / 2
    return ranks
