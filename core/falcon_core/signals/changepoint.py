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
_REFERENCE_WINDOW = 20  # for stairs and ramps
_DROP_WINDOW = 8
_DELAY = 8  # samples before one may teach the reference
_SLOW_RATE = 1 / 1000  # of the reference, once as many samples were seen
_NOISE_RATE = 1 / 100
_NOISE_PRIOR = 0.05
_NOISE_FLOOR = 0.01
_DEVIATIONS = 5.0  # of a median, by which a change must exceed noise
_MEDIAN_LOSS = 1.25  # a median's deviation against a mean's


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
    """The healthy level and the noise around it."""

    def __init__(self, level: float, noise: float, samples: int) -> None:
        self.level = level
        self.noise = noise
        self._samples = samples

    @classmethod
    def of(cls, levels: Floats) -> Reference:
        """From the first samples: the median, and the median deviation, mixed with what is usual."""
        level = float(np.median(levels))
        spread = 1.48 * float(np.median(np.abs(levels - level)))
        count = levels.shape[0]
        noise = math.sqrt((count * spread**2 + 4 * _NOISE_PRIOR**2) / (count + 4))
        return cls(level, noise, count)

    def learn(self, level: float) -> None:
        """Follow one healthy sample; outliers count as three deviations."""
        self._samples += 1
        bound = 3.0 * max(self.noise, _NOISE_FLOOR)
        deviation = min(max(level - self.level, -bound), bound)
        self.level += deviation * max(_SLOW_RATE, 1 / self._samples)
        self.noise += (_MEDIAN_LOSS * abs(deviation) - self.noise) * max(_NOISE_RATE, 1 / self._samples)

    def exceeds_noise(self, rise: float, samples: int) -> bool:
        """Whether a median of ``samples`` that differs by ``rise`` is more than noise."""
        noise = max(self.noise, _NOISE_FLOOR)
        return rise >= _DEVIATIONS * _MEDIAN_LOSS * noise / math.sqrt(samples)


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

    def _learn(self, reference: Reference, sample: Sample) -> None:
        self._unlearned.append(sample)
        if len(self._unlearned) > _DELAY and self._candidate is None:
            while len(self._unlearned) > _DELAY:
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
        rise = float(np.median(self._levels(since))) - reference.level
        if rise >= self._verify and reference.exceeds_noise(rise, since):
            return rise
        if since >= _CANDIDATE_SAMPLES or rise < self._verify / 2:
            self._candidate = None
        return None

    def _drifted(self, reference: Reference) -> float | None:
        """The rise of a long window above the slow-moving reference."""
        if len(self._newest) < _REFERENCE_WINDOW:
            return None
        rise = float(np.median(self._levels(_REFERENCE_WINDOW))) - reference.level
        return rise if rise >= self._verify and reference.exceeds_noise(rise, _REFERENCE_WINDOW) else None

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
        level = float(np.median(slow[-_REFERENCE_WINDOW:]))
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
        if len(self._newest) < _DROP_WINDOW:
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
