"""Bayesian online change-point detection (Adams & MacKay 2007; FALCON §4.2 and appendix 9.1).

The run length r is the number of samples since the last change. With a constant hazard H and a Student-t predictive
(from the normal-inverse-gamma posterior of the samples in the run), each sample updates the posterior P(r):

    growth  P(r + 1) ∝ P(r) · predictive_r(x) · (1 − H)
    change  P(0)     ∝ Σ_r P(r) · predictive_r(x) · H

P(r = 0) equals the hazard whatever the data say, so the statistic is the mass of *short* run lengths, P(r ≤ w). The
number of run lengths held is bounded: the cost of a sample does not depend on the history.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from falcon_core.signals.calls import Floats


class Prior(msgspec.Struct, frozen=True, kw_only=True):
    """Normal-inverse-gamma prior of a run: mean, its weight in samples, and the spread (shape, rate)."""

    mean: float = 0.0
    weight: float = 1.0
    shape: float = 1.0
    rate: float = 1.0


_TABLED_LENGTHS = 16  # run lengths below it have an exact normaliser, longer ones Stirling's series


class RunLengthPosterior:
    """P(r) after each sample: ``lengths`` ascending, ``masses`` sum to 1.

    ``hazard`` is the probability of a change at a sample. When more than ``most`` run lengths are held, those with the
    least mass are dropped; 0 keeps all (the exact recursion, whose cost grows with the history).
    """

    def __init__(self, prior: Prior, *, hazard: float, most: int = 64) -> None:
        self._prior = prior
        self._hazard = hazard
        self._most = most
        self.lengths = np.zeros(1, dtype=np.int64)
        self.masses: Floats = np.ones(1)
        self._means: Floats = np.array([prior.mean])
        self._rates: Floats = np.array([prior.rate])
        shapes = [prior.shape + 0.5 * length for length in range(_TABLED_LENGTHS)]
        self._short_norms: Floats = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in shapes])

    def update(self, sample: float) -> None:
        """Take one sample."""
        prior = self._prior
        weights: Floats = prior.weight + self.lengths.astype(np.float64)
        deviations = sample - self._means
        growths = deviations * deviations / (weights + 1.0)
        joint: Floats = self.masses * np.exp(self._log_predictive(weights, growths))
        joint *= (1.0 - self._hazard) / joint.sum()
        self.masses = np.concatenate(((self._hazard,), joint))
        self._means = np.concatenate(((prior.mean,), self._means + deviations / (weights + 1.0)))
        self._rates = np.concatenate(((prior.rate,), self._rates + 0.5 * weights * growths))
        self.lengths = np.concatenate(((0,), self.lengths + 1))
        if 0 < self._most < self.masses.shape[0]:
            self._prune()

    def _log_predictive(self, weights: Floats, growths: Floats) -> Floats:
        """Student-t with 2·shape degrees of freedom and squared scale rate·(weight + 1)/(shape·weight), but a constant.

        ``growths`` are deviation²/(weight + 1). The largest is 0: far outliers must not underflow all at once.
        """
        shapes = self._prior.shape + 0.5 * self.lengths
        norms = 0.5 * np.log(shapes) - 0.125 / shapes + 1.0 / (192.0 * shapes**3)
        short = int(np.searchsorted(self.lengths, _TABLED_LENGTHS))
        norms[:short] = self._short_norms[self.lengths[:short]]
        log_density: Floats = (
            norms
            - 0.5 * np.log(self._rates * (weights + 1.0) / weights)
            - (shapes + 0.5) * np.log1p(0.5 * weights * growths / self._rates)
        )
        log_density -= log_density.max()
        return log_density

    def _prune(self) -> None:
        """Keep three quarters of ``most``, so that the choice is not made anew at each sample."""
        kept = np.sort(np.argpartition(self.masses, -(3 * self._most // 4))[-(3 * self._most // 4) :])
        if kept[0] != 0:  # the hypothesis of a change stands whatever its mass
            kept[0] = 0
        self.masses = self.masses[kept] / self.masses[kept].sum()
        self._means, self._rates, self.lengths = self._means[kept], self._rates[kept], self.lengths[kept]

    def short(self, width: int) -> float:
        """P(r ≤ ``width``)."""
        return float(self.masses[: int(np.searchsorted(self.lengths, width, side="right"))].sum())
