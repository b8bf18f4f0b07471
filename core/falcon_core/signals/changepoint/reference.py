"""Learn the healthy level of a series and its noise: the reference for changes (FALCON §4.2, verification).

All levels are logarithms. Noise has several faces, and a change must exceed each of them:

- its size, and how much of it the next sample inherits (a neighbour on a shared machine lasts). Both are measured
  against a level that follows the series. The longer the noise lasts, the more slowly this level follows: a level that
  is as fast as the noise takes the noise along, and what is left looks small and short;
- how far the level wanders by itself over tens of samples (drift, load that moves between experts);
- how often single samples are long (garbage collection, stalls): several in a row may be chance.
"""

from __future__ import annotations

import copy
import functools
import math

import numpy as np

from falcon_core.signals.calls.stream import Floats
from falcon_core.stats.lasting_noise import mean_variance
from falcon_core.stats.order import median_of

NOISE_FLOOR = 0.01
DEVIATIONS = 5.0  # of a median, by which a change must exceed noise
MEAN_SAMPLES = 1000  # up to here a level is the mean of all samples, and then of the newest by and by
_SLOW_RATE = 1 / MEAN_SAMPLES
_NOISE_RATE = 1 / 100
_CORRELATION_RATE = 1 / 300
_NOISE_PRIOR = 0.05
_NOISE_PRIOR_SAMPLES = 4
_OUTLIER_DEVIATIONS = 5.0
_LOCAL_RATE = 1 / 16
_CORRELATION_PRIOR = 0.5
_MOST_CORRELATION = 0.98
_TYPICAL_DEVIATIONS = 2.0  # bound of a deviation in the correlation: two outliers in a row prove little
_LOCAL_TIMES = 6.0  # times as long as noise lasts: then the local level takes a tenth of the noise along
_NOISE_TIMES = 20.0  # times as long as noise lasts, within which its size and its correlation are measured
_TO_DEVIATION = 1.25  # √(π/2): a mean absolute deviation, or a median's error, against a mean's standard deviation
_KNOWN_SAMPLES = 128  # of which a warm-up has fewer
_LEAST_OF_FEW = 0.75  # of the error of five, that of 64: what noise of a correlation of 0.95 has
_WANDER_RATE = 1 / 200
_WANDER_DEVIATIONS = 3.0
_LONG = (0.05, 0.1, 0.2, 0.4, 0.8)  # how far above the level a sample is called long
_LONG_BLOCK = 16  # samples after which the shares are brought up to date
_LONG_PRIOR = 0.02  # share of long samples
_LONG_CHANCE = 1e-7  # that as many of a window are long


class Reference:
    """The healthy level, and the noise around it.

    Noise is measured against a level that follows quickly, so that a drift does not pass for noise.
    """

    def __init__(self, level: float, noise: float, samples: int, *, correlation: float = _CORRELATION_PRIOR) -> None:
        self.level = level
        self.noise = noise
        self.samples = samples
        self._local_level = level
        self._correlation = correlation
        self._inherited = correlation  # mean product of neighbouring deviations, as a share of ``_typical``
        self._typical = 1.0  # mean square of bounded deviations ÷ the noise's square
        self._last_deviation = 0.0
        self._wander = 0.0
        self._long_shares = [_LONG_PRIOR] * len(_LONG)
        self._long = [0] * len(_LONG)  # in the present block

    @classmethod
    def of(cls, levels: Floats) -> Reference:
        """Estimate from the first samples, [n]: the level is their median.

        The noise is their mean deviation without the farthest sample, mixed with a usual noise.
        """
        level = median_of(levels)
        deviations = np.sort(np.abs(levels - level))[:-1]
        count = levels.shape[0]
        spread = _TO_DEVIATION * float(deviations.mean())
        noise = math.sqrt((count * spread**2 + _NOISE_PRIOR_SAMPLES * _NOISE_PRIOR**2) / (count + _NOISE_PRIOR_SAMPLES))
        return cls(level, noise, count)

    def learn(self, level: float) -> None:
        """Follow one healthy sample; an outlier counts as a bounded deviation."""
        self.samples += 1
        share = 1 / self.samples
        noise = self.noise if self.noise > NOISE_FLOOR else NOISE_FLOOR
        bound = _OUTLIER_DEVIATIONS * noise
        excess = level - self.level
        # The first samples move the level fast; from then on it follows slowly.
        slow_rate = share if share > _SLOW_RATE else _SLOW_RATE
        self.level += _bounded(excess, bound) * slow_rate
        deviation = _bounded(level - self._local_level, bound)
        # A second, faster level separates slow wandering from noise between neighbours.
        brief = 1 - self._lasting()  # share of the noise that the next sample does not inherit
        self._local_level += deviation * min(_LOCAL_RATE, brief / _LOCAL_TIMES)
        self.noise += (_TO_DEVIATION * abs(deviation) - self.noise) * max(share, min(_NOISE_RATE, brief / _NOISE_TIMES))
        typical = _bounded(deviation / noise, _TYPICAL_DEVIATIONS)
        rate = max(share, min(_CORRELATION_RATE, brief / _NOISE_TIMES))
        self._inherited += (typical * self._last_deviation - self._inherited) * rate
        self._typical += (typical * typical - self._typical) * rate
        self._correlation = self._inherited / self._typical if self._typical > 0.0 else 0.0
        self._last_deviation = typical
        rate = share if share > _WANDER_RATE else _WANDER_RATE
        self._wander += (abs(self._local_level - self.level) - self._wander) * rate
        if excess > _LONG[0]:
            for place, above in enumerate(_LONG):
                if excess > above:
                    self._long[place] += 1
        # How often healthy iterations are long by themselves (checkpoints, evaluations), counted by blocks.
        if self.samples % _LONG_BLOCK == 0:
            rate = min(_LONG_BLOCK * slow_rate, 1.0)
            self._long_shares = [
                one + (number / _LONG_BLOCK - one) * rate
                for one, number in zip(self._long_shares, self._long, strict=True)
            ]
            self._long = [0] * len(_LONG)

    def exceeds_noise(self, rise: float, samples: int) -> bool:
        """Check whether a median of ``samples`` that differs by ``rise`` is more than noise."""
        return not self.wanders(rise) and rise >= DEVIATIONS * self.error(samples)

    def error(self, samples: int) -> float:
        """Return the standard error of the distance between a median of ``samples`` and the reference.

        The reference is uncertain too, after few samples; and noise that lasts from one sample to the next averages out
        more slowly.
        """
        lasting = self._lasting()
        variance = mean_variance(samples, lasting) + mean_variance(self.samples, lasting)
        return self._single_error() * math.sqrt(variance)

    def cautious_error(self, samples: int, few: int) -> float:
        """Return the standard error of a median of many ``samples``, where too small a value would blame a rank.

        How long noise lasts is known less well than its size, and that decides by how much many samples are better than
        ``few``. So the error is at least 0.75 of theirs, and how far the level wanders comes on top.
        """
        least = max(self.error(samples), _LEAST_OF_FEW * self.error(few))
        return math.hypot(least, _TO_DEVIATION * self._wander)

    def samples_for(self, error: float, most: int) -> int:
        """Return the number of samples, ``most`` at most, whose median errs by ``error`` (> 0).

        The median is compared with a level that is certain.
        """
        variance, lasting = (error / self._single_error()) ** 2, self._lasting()
        return next((count for count in range(1, most) if mean_variance(count, lasting) <= variance), most)

    def _single_error(self) -> float:
        """Return the standard error of a median of independent samples times the square root of their number."""
        return _TO_DEVIATION * max(self.noise, NOISE_FLOOR)

    def _lasting(self) -> float:
        """Return the share of the noise that the next sample inherits, within the bounds that can be measured."""
        return min(max(self._correlation, 0.0), _MOST_CORRELATION)

    def moved(self, level: float, samples: int) -> Reference:
        """Return the same noise around another level, known from ``samples``."""
        other = copy.copy(self)  # what is learned replaces numbers and lists, and changes no list but the counts
        other.level, other.samples, other._long = level, samples, list(self._long)
        return other

    @property
    def knows_noise(self) -> bool:
        """Return whether the noise rests on more samples than a warm-up has."""
        return self.samples >= _KNOWN_SAMPLES

    def dropped(self, levels: Floats) -> Reference:
        """Return the reference of a series that is faster from now on, from its newest samples, [n].

        So few samples of lasting noise are too much alike to show it: noise that is known counts on, until others show.
        """
        other = Reference.of(levels)
        if self.knows_noise:
            other.noise = max(other.noise, self.noise)
            other._inherited = other._correlation = max(other._correlation, self._correlation)
        return other

    def without_wander(self) -> Reference:
        """Return the same level and noise where the wander that was learned was a slow degradation."""
        other = copy.copy(self)
        other._wander = 0.0
        return other

    def wanders(self, rise: float) -> bool:
        """Check whether the level moves as far by itself, without a slowdown."""
        return rise < _WANDER_DEVIATIONS * _TO_DEVIATION * self._wander

    def are_long_by_chance(self, levels: Floats, rise: float) -> bool:
        """Check whether the samples ([n], ascending) that exceed half the rise could be single long ones."""
        at = max((place for place, above in enumerate(_LONG) if above <= rise / 2), default=0)
        long = levels.shape[0] - int(levels.searchsorted(self.level + _LONG[at], side="right"))
        return chance_of(levels.shape[0], long, round(self._long_shares[at], 3)) > _LONG_CHANCE


def _bounded(value: float, bound: float) -> float:
    if value > bound:
        return bound
    return value if value > -bound else -bound


@functools.lru_cache(maxsize=4096)
def chance_of(trials: int, least: int, share: float) -> float:
    """Return P(binomial(trials, share) ≥ least)."""
    share = min(max(share, 0.001), 0.999)
    return math.fsum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(least, trials + 1))
