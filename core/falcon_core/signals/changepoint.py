"""Onset and relief of a slowdown in a series of iteration times (FALCON §4.2: BOCD, then verification).

Everything is judged on logarithms, in which a slowdown is an addition and noise does not depend on the job's speed.

- *Reference*: the healthy level and the noise around it. It follows healthy samples slowly, with a delay (a slowdown
  that is not certain yet must not teach it), and stands still during a slowdown. A verified *drop* below it is the end
  of a warm-up, or of a slow start: it becomes the new reference and is no event.
- *Step*: the posterior mass of short run lengths reaches CERTAINTY; then the median of the samples since must lie
  ``verify`` above the reference, and so far that noise cannot explain it. Outliers do not move a median: spikes, pauses
  for garbage collection and checkpoint stalls pass.
- *Stairs and ramps* have no step that is large enough: a longer window is held against the reference itself.
- *Relief*: the newest samples are back within ``verify`` of the reference, and well below the slow level.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np

from falcon_core.signals.bocd import Prior, RunLengthPosterior
from falcon_core.signals.calls import Floats

CERTAINTY = 0.9  # FALCON §4.2
SHORT_RUN = 3  # w
HAZARD = 1 / 200
_PRIOR = Prior(mean=0.0, weight=0.05, shape=1.0, rate=1.0)  # of samples divided by the noise
_BASELINE_SAMPLES = 8  # until the first reference
_REMEMBERED = 64  # samples within which an onset is sought
_CANDIDATE_SAMPLES = 32  # a step that is not verified within them was none
_LONG_WINDOWS = (20, 40)  # for stairs, ramps, and steps close to the noise
_DROP_WINDOW = 8
_DELAY = (8, 40)  # samples before one may teach the reference: half of those it has seen, within these bounds
_SLOW_RATE = 1 / 1000  # of the reference, once as many samples were seen
_NOISE_RATE = 1 / 100
_NOISE_PRIOR = 0.05
_NOISE_PRIOR_SAMPLES = 4
_NOISE_FLOOR = 0.01
_OUTLIER_DEVIATIONS = 5.0
_LOCAL_RATE = 1 / 16
_CORRELATION_PRIOR = 0.5
_MOST_CORRELATION = 0.9
_DEVIATIONS = 5.0  # of a median, by which a change must exceed noise
_TO_DEVIATION = 1.25  # √(π/2): a mean absolute deviation, or a median's error, against a mean's standard deviation
_LOW_QUANTILE = 0.2  # of the slow samples, which must have risen, too: three spikes in five are no step
_LOW_RISE = 1 / 3  # of the median's rise


class Sample(NamedTuple):
    """One iteration; ``level`` is the logarithm of its time in ns."""

    number: int
    start_ns: int
    level: float


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """A verified slowdown."""

    first_iteration: int
    start_ns: int  # of the first slow iteration
    reported_iteration: int  # at whose end it was certain
    before_ns: int
    after_ns: int


class Reference:
    """The healthy level, and the noise around it: its size and how much of it the next sample inherits.

    Noise is measured against a level that follows quickly, so that a drift does not pass for noise.
    """

    def __init__(self, level: float, noise: float, samples: int) -> None:
        self.level = level
        self.noise = noise
        self.samples = samples
        self._local_level = level
        self._correlation = _CORRELATION_PRIOR
        self._last_deviation = 0.0

    @classmethod
    def of(cls, levels: Floats) -> Reference:
        """From the first samples: the median; the mean deviation without the farthest, mixed with what is usual."""
        level = float(np.median(levels))
        deviations = np.sort(np.abs(levels - level))[:-1]
        count = levels.shape[0]
        spread = _TO_DEVIATION * float(deviations.mean())
        noise = math.sqrt((count * spread**2 + _NOISE_PRIOR_SAMPLES * _NOISE_PRIOR**2) / (count + _NOISE_PRIOR_SAMPLES))
        return cls(level, noise, count)

    def learn(self, level: float) -> None:
        """Follow one healthy sample; an outlier counts as a bounded deviation."""
        self.samples += 1
        rate = max(_NOISE_RATE, 1 / self.samples)
        bound = _OUTLIER_DEVIATIONS * max(self.noise, _NOISE_FLOOR)
        self.level += _bounded(level - self.level, bound) * max(_SLOW_RATE, 1 / self.samples)
        deviation = _bounded(level - self._local_level, bound)
        self._local_level += deviation * _LOCAL_RATE
        self.noise += (_TO_DEVIATION * abs(deviation) - self.noise) * rate
        inherited = deviation * self._last_deviation / max(self.noise, _NOISE_FLOOR) ** 2
        self._correlation += (_bounded(inherited, 1.0) - self._correlation) * rate
        self._last_deviation = deviation

    def exceeds_noise(self, rise: float, samples: int) -> bool:
        """Whether a median of ``samples`` that differs by ``rise`` is more than noise.

        The reference is uncertain too, after few samples; and noise that lasts from one sample to the next (a neighbour
        on a shared machine) averages out more slowly.
        """
        correlation = min(max(self._correlation, 0.0), _MOST_CORRELATION)
        lasting = (1 + correlation) / (1 - correlation)
        variance = lasting * (1 / samples + 1 / self.samples)
        return rise >= _DEVIATIONS * _TO_DEVIATION * max(self.noise, _NOISE_FLOOR) * math.sqrt(variance)


def _bounded(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)


class ChangeDetector:
    """Finds the onset and the relief of slowdowns, one iteration at a time."""

    def __init__(self, *, verify_percent: int, consecutive: int, known: Reference | None = None) -> None:
        self.slowdown: Slowdown | None = None
        self.reference = known
        self._verify = math.log1p(verify_percent / 100)
        self._consecutive = consecutive
        self._newest: deque[Sample] = deque(maxlen=_REMEMBERED)
        self._unlearned: deque[Sample] = deque()
        self._posterior = self._fresh_posterior()
        self._candidate: int | None = None  # iteration at which a step may have begun

    @staticmethod
    def _fresh_posterior() -> RunLengthPosterior:
        return RunLengthPosterior(_PRIOR, hazard=HAZARD)

    @property
    def healthy_ns(self) -> int | None:
        """The reference; None while it is being learned."""
        return None if self.reference is None else round(math.exp(self.reference.level))

    def feed(self, number: int, start_ns: int, duration_ns: int) -> bool:
        """Take an uninterrupted iteration; True if ``slowdown`` appeared or vanished."""
        sample = Sample(number, start_ns, math.log(max(1, duration_ns)))
        self._newest.append(sample)
        reference = self.reference
        if reference is None:
            if len(self._newest) >= _BASELINE_SAMPLES:
                self.reference = Reference.of(self._levels(_BASELINE_SAMPLES))
            return False
        if self.slowdown is not None:
            return self._relieved(reference, self.slowdown)
        self._posterior.update((sample.level - reference.level) / max(reference.noise, _NOISE_FLOOR))
        if self._dropped(reference):
            return False
        rise = self._step(reference) or self._drifted(reference)
        if rise is not None:
            self._begin(reference, rise)
            return True
        self._learn(reference, sample)
        return False

    def _levels(self, count: int) -> Floats:
        return np.array([sample.level for sample in list(self._newest)[-count:]])

    def _rise(self, reference: Reference, count: int) -> float | None:
        """How far the newest ``count`` samples lie above the reference; None where that is noise or too little."""
        levels = self._levels(count) - reference.level
        rise = float(np.median(levels))
        if rise < self._verify or not reference.exceeds_noise(rise, count):
            return None
        spikes = count < _LONG_WINDOWS[0] and float(np.quantile(levels, _LOW_QUANTILE)) < _LOW_RISE * rise
        return None if spikes else rise

    def _learn(self, reference: Reference, sample: Sample) -> None:
        self._unlearned.append(sample)
        delay = min(max(reference.samples // 2, _DELAY[0]), _DELAY[1])
        while len(self._unlearned) > delay and self._candidate is None:
            reference.learn(self._unlearned.popleft().level)

    def _step(self, reference: Reference) -> float | None:
        """The rise since a step that the posterior shows and the samples verify."""
        if self._candidate is None:
            if self._posterior.short(SHORT_RUN) < CERTAINTY:
                return None
            run = int(self._posterior.lengths[int(np.argmax(self._posterior.masses))])
            self._candidate = self._newest[-min(max(run, 1), len(self._newest))].number
        since = sum(sample.number >= self._candidate for sample in self._newest)
        if since < self._consecutive:
            return None
        rise = self._rise(reference, since)
        if rise is None and (since >= _CANDIDATE_SAMPLES or self._is_over(reference, since)):
            self._candidate = None
        return rise

    def _is_over(self, reference: Reference, since: int) -> bool:
        """Whether the samples since a step lie where they lay before."""
        return float(np.median(self._levels(since))) - reference.level < self._verify / 2

    def _drifted(self, reference: Reference) -> float | None:
        """The rise of a long window above the slow-moving reference."""
        if self._newest[-1].level - reference.level < self._verify:
            return None
        for count in _LONG_WINDOWS:
            if count <= len(self._newest) and (rise := self._rise(reference, count)) is not None:
                return rise
        return None

    def _begin(self, reference: Reference, rise: float) -> None:
        """The slow samples begin where the sum of what exceeds half the rise is smallest."""
        samples = list(self._newest)
        excess = np.cumsum([sample.level - reference.level - rise / 2 for sample in samples])
        first = samples[min(int(np.argmin(np.minimum(excess, 0.0))) + 1 if excess.min() < 0 else 0, len(samples) - 1)]
        self.slowdown = Slowdown(
            first_iteration=first.number,
            start_ns=first.start_ns,
            reported_iteration=samples[-1].number,
            before_ns=round(math.exp(reference.level)),
            after_ns=round(math.exp(reference.level + rise)),
        )
        self._unlearned.clear()
        self._candidate = None

    def _relieved(self, reference: Reference, slowdown: Slowdown) -> bool:
        """Update the slow level; True when the newest samples are healthy again."""
        slow = [sample.level for sample in self._newest if sample.number >= slowdown.first_iteration]
        level = float(np.median(slow[-_LONG_WINDOWS[0] :]))
        newest = float(np.median(slow[-self._consecutive :]))
        rise = math.log(slowdown.after_ns) - reference.level
        if len(slow) > self._consecutive and newest - reference.level <= min(self._verify, rise / 2):
            self.slowdown = None
            self._forget()
            return True
        self.slowdown = msgspec.structs.replace(slowdown, after_ns=max(slowdown.before_ns, round(math.exp(level))))
        return False

    def _dropped(self, reference: Reference) -> bool:
        """A level clearly below the reference is the new reference."""
        if len(self._newest) < _DROP_WINDOW or reference.level - self._newest[-1].level < self._verify:
            return False
        drop = reference.level - float(np.median(self._levels(_DROP_WINDOW)))
        if drop < self._verify or not reference.exceeds_noise(drop, _DROP_WINDOW):
            return False
        self.reference = Reference.of(self._levels(_DROP_WINDOW))
        self._forget()
        return True

    def _forget(self) -> None:
        """Nothing before now counts for the next change."""
        self._newest.clear()
        self._unlearned.clear()
        self._candidate = None
        self._posterior = self._fresh_posterior()
