"""Bayesian online change-point detection (Adams & MacKay 2007; FALCON §4.2 and appendix 9.1).

The run length r is the number of samples since the last change. With a constant hazard H and a Student-t predictive
(from the normal-inverse-gamma posterior of the samples in the run), each sample updates the posterior P(r):

    growth  P(r + 1) ∝ P(r) · predictive_r(x) · (1 − H)
    change  P(0)     ∝ Σ_r P(r) · predictive_r(x) · H

P(r = 0) equals the hazard whatever the data say, so the statistic is the mass of *short* run lengths, P(r ≤ w). The
number of run lengths held is bounded: the cost of a sample does not depend on the history.
"""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np

from falcon_core.signals.calls import Floats, Ints


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """Normal-inverse-gamma prior of a run: mean, its weight in samples, and the spread (shape, rate)."""

    mean: float = 0.0
    weight: float = 1.0
    shape: float = 1.0
    rate: float = 1.0


LONGEST_RUN = 4096  # longer runs count as this one, and forget what is older
_MASS, _MEAN, _RATE, _LOG_RATE = range(4)  # rows of the state, one column a run length
_NORM, _SHAPE, _EXPONENT, _GAIN, _GROWTH = range(5)  # rows of the table, one column a run length


@functools.lru_cache(maxsize=8)
def _table(prior: Prior, lengths: int) -> Floats:
    """What depends on the run length alone: [5, ``lengths``]; shared by all that have the same prior.

    ``norm`` is the logarithm of the Student-t's factor without its rate, ``gain`` the share of a deviation by which the
    mean follows, ``growth`` the share of a deviation's square that the rate takes up.
    """
    weights = prior.weight + np.arange(lengths)
    shapes = prior.shape + 0.5 * np.arange(lengths)
    norms = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in shapes.tolist()])
    norms += 0.5 * np.log(weights / (weights + 1.0))
    table: Floats = np.stack((norms, shapes, shapes + 0.5, 1.0 / (weights + 1.0), 0.5 * weights / (weights + 1.0)))
    return table


class RunLengthPosterior:
    """P(r) after each sample: ``lengths`` ascending, ``masses`` sum to 1.

    ``hazard`` is the probability of a change at a sample. When more than ``most`` run lengths are held, those with the
    least mass are dropped; 0 keeps all (the exact recursion, whose cost grows with the history).
    """

    def __init__(self, prior: Prior, *, hazard: float, most: int = 64) -> None:
        self._prior = prior
        self._hazard = hazard
        self._most = most
        self._count = 1
        capacity = most + 1 if most > 0 else 64
        self._state: Floats = np.zeros((4, capacity))
        self._lengths: Ints = np.zeros(capacity, dtype=np.int64)
        self._fresh = (hazard, prior.mean, prior.rate, math.log(prior.rate))
        self._state[:, 0] = (1.0, *self._fresh[1:])
        self._table = _table(prior, LONGEST_RUN + 1)

    @property
    def lengths(self) -> Ints:
        """Run lengths held, ascending: [n]. Valid until the next update."""
        return self._lengths[: self._count]

    @property
    def masses(self) -> Floats:
        """Their probabilities: [n]. Valid until the next update."""
        return self._state[_MASS, : self._count]

    @property
    def most_probable(self) -> int:
        """The run length with the greatest mass."""
        return int(self._lengths[int(self._state[_MASS, : self._count].argmax())])

    def short(self, width: int) -> float:
        """P(r ≤ ``width``)."""
        count = min(width + 1, self._count)  # ascending and distinct: no more can be as short
        total = 0.0
        for length, mass in zip(self._lengths[:count].tolist(), self._state[_MASS, :count].tolist(), strict=True):
            total += mass if length <= width else 0.0
        return total

    def update(self, sample: float) -> Floats:
        """Take one sample; returns its log predictive densities for the run lengths held before: [n].

        They lack a common constant; the largest is 0, so that far outliers do not underflow all at once.
        """
        count = self._count
        self._make_room(count)
        norm, shape, exponent, gain, growth = self._table.take(self._lengths[:count], axis=1)
        masses, means, rates, logs = self._state[:, :count]
        deviations = sample - means
        new_means = deviations * gain
        new_means += means
        deviations *= deviations
        deviations *= growth
        deviations += rates
        new_logs = np.log(deviations)
        density: Floats = shape * logs
        density += norm
        density -= exponent * new_logs
        density -= density[density.argmax()]
        likelihood = np.exp(density)
        state = self._state
        state[_MASS, 1 : count + 1] = likelihood * masses * ((1.0 - self._hazard) / float(likelihood.dot(masses)))
        state[_MEAN, 1 : count + 1] = new_means
        state[_RATE, 1 : count + 1] = deviations
        state[_LOG_RATE, 1 : count + 1] = new_logs
        state[:, 0] = self._fresh
        self._lengths[1 : count + 1] = self._lengths[:count] + 1
        self._count = count + 1
        if self._most > 0:
            self._bound(count)
        return density

    def _make_room(self, count: int) -> None:
        """One more column; without a bound on the run lengths, a longer table, too."""
        if count < self._lengths.shape[0]:
            return
        self._state = np.concatenate((self._state, np.zeros_like(self._state)), axis=1)
        self._lengths = np.concatenate((self._lengths, np.zeros_like(self._lengths)))
        if self._lengths.shape[0] > self._table.shape[1]:
            self._table = _table(self._prior, self._lengths.shape[0])

    def _bound(self, last: int) -> None:
        """Keep the longest run within the table, and no more run lengths than wanted."""
        if self._lengths[last] > LONGEST_RUN:
            shape = self._table[_SHAPE, LONGEST_RUN]
            self._lengths[last] = LONGEST_RUN
            self._state[_RATE, last] *= shape / (shape + 0.5)
            self._state[_LOG_RATE, last] = math.log(self._state[_RATE, last])
            if self._lengths[last - 1] == LONGEST_RUN:  # two of them are one hypothesis now
                heavier = last if self._state[_MASS, last] >= self._state[_MASS, last - 1] else last - 1
                both = float(self._state[_MASS, last - 1 : last + 1].sum())
                self._state[:, last - 1] = self._state[:, heavier]
                self._state[_MASS, last - 1] = both
                self._count -= 1
        if self._count > self._most:
            self._prune()

    def _prune(self) -> None:
        """Keep three quarters of ``most``, so that the choice is not made anew at each sample."""
        wanted = 3 * self._most // 4
        kept = np.sort(np.argpartition(self.masses, -wanted)[-wanted:])
        kept[0] = 0  # the hypothesis of a change stands whatever its mass
        self._state[:, :wanted] = self._state[:, kept]
        self._lengths[:wanted] = self._lengths[kept]
        self._state[_MASS, :wanted] /= self._state[_MASS, :wanted].sum()
        self._count = wanted
