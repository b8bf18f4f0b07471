"""Detect change points in a series as samples arrive (Adams & MacKay 2007; FALCON §4.2 and appendix 9.1).

The method is Bayesian online change-point detection (BOCD). The run length r is the number of samples since the last
change. With a constant hazard H and a Student-t predictive (from the normal-inverse-gamma posterior of the samples in
the run), each sample updates the posterior P(r):

    growth  P(r + 1) ∝ P(r) · predictive_r(x) · (1 − H)
    change  P(0)     ∝ Σ_r P(r) · predictive_r(x) · H

P(r = 0) equals the hazard whatever the data are, so the statistic is the mass of *short* run lengths, P(r ≤ w). The
number of run lengths held is bounded: the cost of a sample does not depend on the history.
"""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import Floats, Ints


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """Normal-inverse-gamma prior of a run: mean, its weight in samples, and the spread (shape, rate)."""

    mean: float = 0.0
    weight: float = 1.0
    shape: float = 1.0
    rate: float = 1.0


LONGEST_RUN = 2048  # runs of twice this length count as this one, and forget what is older
_MASS, _MEAN, _RATE, _POWER = range(4)  # rows of the state, one column a run length
_NORM, _EXPONENT, _GAIN, _GROWTH = range(4)  # rows of the table, one column a run length


@functools.lru_cache(maxsize=8)
def _table(prior: Prior, lengths: int) -> Floats:
    """Return the values that depend only on the run length: [4, ``lengths``]; shared by all with the same prior.

    ``norm`` is the logarithm of the Student-t's factor without its rate, ``exponent`` that of the rate, ``gain`` the
    share of a deviation by which the mean follows, ``growth`` the share of a deviation's square that the rate takes up.
    """
    weights = prior.weight + np.arange(lengths)
    shapes = prior.shape + 0.5 * np.arange(lengths)
    norms = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in shapes.tolist()])
    norms += 0.5 * np.log(weights / (weights + 1.0))
    table: Floats = np.stack((norms, shapes + 0.5, 1.0 / (weights + 1.0), 0.5 * weights / (weights + 1.0)))
    return table


class RunLengthPosterior:
    """P(r) after each sample: ``lengths`` ascending, ``masses`` sum to 1.

    ``hazard`` is the probability of a change at a sample. When more than ``most`` run lengths are held, those with the
    least mass are dropped; 0 keeps all (the exact recursion, whose cost grows with the history).
    """

    # The oldest run stands first and a new one is appended: a sample updates all of them in place, and nothing moves.
    # ``power`` is shape · log(rate): the exponent of one sample is the shape of the next, so one logarithm does.

    def __init__(self, prior: Prior, *, hazard: float, most: int = 64) -> None:
        self._prior = prior
        self._hazard = hazard
        self._most = most
        self._count = 1
        capacity = most + 1 if most > 0 else 64
        self._state: Floats = np.zeros((4, capacity))
        self._lengths: Ints = np.zeros(capacity, dtype=np.int64)
        self._fresh = np.array((hazard, prior.mean, prior.rate, prior.shape * math.log(prior.rate)))
        self._state[:, 0] = (1.0, *self._fresh[1:])
        self._table = _table(prior, 2 * LONGEST_RUN + 1)

    @property
    def lengths(self) -> Ints:
        """Return the run lengths held, ascending: [n]. Valid until the next update."""
        return self._lengths[: self._count][::-1]

    @property
    def masses(self) -> Floats:
        """Return the probabilities of ``lengths``: [n]. Valid until the next update."""
        return self._state[_MASS, : self._count][::-1]

    @property
    def most_probable(self) -> int:
        """Return the run length with the greatest mass."""
        return int(self._lengths[int(self._state[_MASS, : self._count].argmax())])

    def short(self, width: int) -> float:
        """Return P(r ≤ ``width``)."""
        newest = slice(max(0, self._count - width - 1), self._count)  # distinct: no more can be as short
        total = 0.0
        for length, mass in zip(self._lengths[newest].tolist(), self._state[_MASS, newest].tolist(), strict=True):
            total += mass if length <= width else 0.0
        return total

    def update(self, sample: float) -> Floats:
        """Take one sample and return its log predictive densities for the run lengths held before: [n], as ``lengths``.

        The densities lack a common constant. The largest is 0, so that a far outlier does not make all underflow.
        """
        count = self._count
        if count == self._lengths.shape[0]:
            self._make_room()
        # In place throughout: this runs for each iteration of each rank.
        lengths = self._lengths[:count]
        norm, exponent, gain, growth = self._table.take(lengths, axis=1)
        masses, means, rates, powers = self._state[:, :count]
        # The density of the sample follows from the parameters before it: the last update left ``powers`` for that.
        density: Floats = powers + norm
        deviations = sample - means
        gain *= deviations
        means += gain
        deviations *= deviations
        deviations *= growth
        rates += deviations
        np.log(rates, out=powers)
        powers *= exponent
        density -= powers
        density -= density[density.argmax()]
        likelihood = np.exp(density)
        likelihood *= (1.0 - self._hazard) / float(likelihood.dot(masses))
        masses *= likelihood
        lengths += 1
        # Each sample may be the first of a new run, of which the prior alone is known.
        self._state[:, count] = self._fresh
        self._lengths[count] = 0
        self._count = count + 1
        # Keep the number of run lengths bounded: fold the longest ones, and drop the least likely.
        if self._most > 0:
            if self._lengths[0] == 2 * LONGEST_RUN:
                self._fold()
            if self._count > self._most:
                self._prune()
        return density[::-1]

    def _make_room(self) -> None:
        """Add columns and a longer table, where run lengths have no bound."""
        self._state = np.concatenate((self._state, np.zeros_like(self._state)), axis=1)
        self._lengths = np.concatenate((self._lengths, np.zeros_like(self._lengths)))
        if self._lengths.shape[0] > self._table.shape[1]:
            self._table = _table(self._prior, self._lengths.shape[0])

    def _fold(self) -> None:
        """Make the longest runs one of LONGEST_RUN, with the parameters of the heaviest and its variance."""
        state, count = self._state, self._count
        long = int(np.count_nonzero(self._lengths[:count] >= LONGEST_RUN))
        heaviest = int(state[_MASS, :long].argmax())
        mass = float(state[_MASS, :long].sum())
        shape = self._prior.shape + 0.5 * LONGEST_RUN
        rate = float(state[_RATE, heaviest]) * shape / (self._prior.shape + 0.5 * float(self._lengths[heaviest]))
        state[:, 0] = mass, state[_MEAN, heaviest], rate, shape * math.log(rate)
        self._lengths[0] = LONGEST_RUN
        self._keep(np.concatenate((np.zeros(1, dtype=np.int64), np.arange(long, count))))

    def _prune(self) -> None:
        """Keep three quarters of ``most``, so that not every sample needs a new choice."""
        wanted = 3 * self._most // 4
        masses = self._state[_MASS, : self._count]
        kept = np.sort(np.argpartition(masses, -wanted)[-wanted:])
        kept[-1] = self._count - 1  # the hypothesis of a change stands whatever its mass
        self._keep(kept)
        self._state[_MASS, :wanted] /= self._state[_MASS, :wanted].sum()

    def _keep(self, columns: Ints) -> None:
        self._count = columns.shape[0]
        self._state[:, : self._count] = self._state[:, columns]
        self._lengths[: self._count] = self._lengths[columns]
