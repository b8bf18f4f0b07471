"""Detect onset and relief of a slowdown in a series of iteration times (FALCON §4.2: BOCD, then verification).

Everything is judged on logarithms, in which a slowdown is an addition and noise does not depend on the job's speed.

- *Reference*: the healthy level and the noise around it. It follows healthy samples slowly, with a delay (a slowdown
  that is not certain yet must not teach it), and stands still during a slowdown. A verified *drop* below it is the end
  of a warm-up, or of a slow start: it becomes the new reference and is no event.
- *Step*: the posterior mass of short run lengths reaches CERTAINTY; then the median of the samples since must lie
  ``verify`` above the reference, and so far that noise cannot explain it. Outliers do not move a median: spikes, pauses
  for garbage collection and checkpoint stalls pass.
- *Stairs and ramps* have no step that is large enough: a longer window is compared with the reference itself. A change
  so slow that the reference follows it is compared with the level that the job once settled at (``drift``).
- *Doubt*: a median errs, too. The samples since an onset count as ``verify`` above if they lack no more than one
  standard error of their median (a quarter of it at most), and are not few. A window without an onset must reach it: it
  is looked at again and again, until noise lifts it.
- *Growth*: during a slowdown a window is compared with the slow level before it: a higher level is another cause, with
  its own onset.
- *Relief*: the newest samples are back within ``verify`` of the reference, and well below the slow level. They are so
  many that the slow level lies four standard errors of their median away: a slowdown near the threshold would otherwise
  end and begin again by noise. One less than at an onset, since an end that was none is found again, while a slowdown
  that stays open hides the next.
- *Pulses*: single long iterations move no median. They are counted (``pulses``), and end when they are rare again.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import Floats
from falcon_core.signals.changepoint.bocd import Prior, RunLengthPosterior
from falcon_core.signals.changepoint.drift import WINDOW, Drift, Place
from falcon_core.signals.changepoint.pulses import Pulses, PulseShare, Pulsing
from falcon_core.signals.changepoint.reference import NOISE_FLOOR, Reference
from falcon_core.signals.changepoint.settled_level import SettledBlocks
from falcon_core.stats.order import quantile_of

__all__ = ["CERTAINTY", "HAZARD", "PRIOR", "SHORT_RUN", "ChangeDetector", "Reference", "Slowdown"]

CERTAINTY = 0.9  # FALCON §4.2
SHORT_RUN = 3  # w
HAZARD = 1 / 200
PRIOR = Prior(mean=0.0, weight=0.05, shape=1.0, rate=1.0)  # of samples divided by the noise
_CAPACITY = 256  # samples until the remembered ones are moved
_BASELINE_SAMPLES = 8  # until the first reference
_REMEMBERED = 128  # samples within which an onset is sought
_CANDIDATE_SAMPLES = 32  # a step that is not verified within them was none
_LONG_WINDOWS = (12, 16, 20, 40)  # for stairs, ramps, and steps close to the noise
_GROWTH_WINDOWS = (12, 20)  # longer ones would see a ramp's growth from one to the next
_DOUBTED_SAMPLES = 12
_MOST_DOUBT = 0.25  # share of ``verify``
_FEW_SAMPLES = 20  # of fewer, the lowest must have risen, too: three spikes in five are no step
_DROP_WINDOW = 8
_DELAY = (8, 40)  # samples before one may teach the reference: half of those it has seen, within these bounds
_RELIEF_DEVIATIONS = 4.0
_MOST_RELIEF = 40  # samples of which a relief's median is taken at most
_LOW_QUANTILE = 0.2
_LOW_RISE = 1 / 3  # of the median's rise


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """A verified slowdown; where it grew, since the newest onset."""

    first_iteration: int
    start_ns: int  # of the first slow iteration
    reported_iteration: int  # at whose end it was certain
    before_ns: int  # the healthy level
    after_ns: int
    gradual: bool = False  # found against the settled level (``drift``), or grown on such a slowdown
    window: int = 0  # of pulses: iterations whose mean shows them (``pulses``); 0: each iteration is slow


class _History:
    """The newest samples, at most _REMEMBERED: numbers, starts and levels (logarithms of times in ns)."""

    def __init__(self) -> None:
        self._numbers = np.empty(_CAPACITY, dtype=np.int64)
        self._starts = np.empty(_CAPACITY, dtype=np.int64)
        self._levels: Floats = np.empty(_CAPACITY)
        self._end = 0
        self._first = 0

    def __len__(self) -> int:
        return self._end - self._first

    def append(self, number: int, start_ns: int, level: float) -> None:
        if self._end == self._levels.shape[0]:
            held = slice(self._first, self._end)
            count = self._end - self._first
            for column in (self._numbers, self._starts, self._levels):
                column[:count] = column[held].copy()
            self._first, self._end = 0, count
        self._numbers[self._end] = number
        self._starts[self._end] = start_ns
        self._levels[self._end] = level
        self._end += 1
        if self._end - self._first > _REMEMBERED:
            self._first = self._end - _REMEMBERED

    def clear(self) -> None:
        self._first = self._end = 0

    def levels(self, count: int) -> Floats:
        """Return the newest ``count`` samples, or as many as there are; valid until the next append."""
        return self._levels[max(self._first, self._end - count) : self._end]

    def since(self, number: int) -> int:
        """Count the samples of iteration ``number`` or later ones."""
        return len(self) - int(self._numbers[self._first : self._end].searchsorted(number))

    def place(self, back: int) -> Place:
        """Return number and start of the ``back``-th newest sample, 1 being the newest."""
        at = max(self._first, self._end - back)
        return Place(int(self._numbers[at]), int(self._starts[at]))


def _median(levels: Floats) -> float:
    return quantile_of(np.sort(levels), 0.5)


class ChangeDetector:
    """A detector of the onset and the relief of slowdowns, fed with one iteration at a time."""

    def __init__(
        self,
        *,
        verify_percent: int,
        consecutive: int,
        known: Reference | None = None,
        settled: SettledBlocks | None = None,
        pulses: PulseShare | None = None,
    ) -> None:
        self.slowdown: Slowdown | None = None
        self.reference = known
        self._verify = math.log1p(verify_percent / 100)
        self._consecutive = consecutive
        self._newest = _History()
        self._unlearned: deque[float] = deque()
        self._posterior = self._fresh_posterior()
        self._candidate: int | None = None  # iteration at which a step may have begun
        self._drift = Drift(self._verify, settled)
        self._pulses = Pulses(self._verify, pulses)

    @staticmethod
    def _fresh_posterior() -> RunLengthPosterior:
        return RunLengthPosterior(PRIOR, hazard=HAZARD)

    @property
    def healthy_ns(self) -> int | None:
        """Return the reference [ns]; None while it is being learned."""
        return None if self.reference is None else round(math.exp(self.reference.level))

    @property
    def first_slow(self) -> int | None:
        """Return the first iteration of the slowdown; None without one."""
        return None if self.slowdown is None else self.slowdown.first_iteration

    @property
    def settled(self) -> SettledBlocks:
        """Return the samples on which the anchored reference rests."""
        return self._drift.blocks

    @property
    def pulse_share(self) -> PulseShare:
        """Return how often iterations are long while the job is well."""
        return self._pulses.healthy

    @property
    def at_best(self) -> bool:
        """Return whether the healthy samples are at the job's settled level now."""
        return self._drift.at_best

    def feed(self, number: int, start_ns: int, duration_ns: int) -> bool:
        """Take an uninterrupted iteration; True if ``slowdown`` appeared, grew by another onset, or ended."""
        # By logarithms: a rise is a factor of the iteration time, whatever that is.
        level = math.log(max(1, duration_ns))
        self._newest.append(number, start_ns, level)
        reference = self.reference
        if reference is None:
            if len(self._newest) >= _BASELINE_SAMPLES:
                self.reference = Reference.of(self._newest.levels(_BASELINE_SAMPLES))
            return False
        # During a slowdown only two things can happen: it ends, or it becomes worse.
        if self.slowdown is not None and not self.slowdown.window:
            over = self._relieved(reference, self.slowdown) or self._is_held(reference, self.slowdown)
            return over or self._grew(reference, self.slowdown, level)
        if self.slowdown is not None and number < self.slowdown.first_iteration:
            return False  # an agent that knows of the pulses reads the ring again, from before their onset
        block_ends = self._pulses.feed(Place(number, start_ns), level - reference.level, reference.noise)
        if self.slowdown is not None:
            return self._follow_pulses(reference, self.slowdown, block_ends)
        return self._begins(reference, level, block_ends)

    def _begins(self, reference: Reference, level: float, block_ends: bool) -> bool:
        """Check whether a slowdown begins, in each of the ways in which one can; learn from the sample where not."""
        self._posterior.update((level - reference.level) / max(reference.noise, NOISE_FLOOR))
        if self._dropped(reference, level):
            return False
        rise = self._step(reference, level) or self._drifted(reference, level)
        if rise is not None:
            self._begin(reference, rise, self._slow_samples(reference, rise), reference)
            return True
        if self._drift.due() and self._degraded(reference):
            return True
        if block_ends and (pulsing := self._pulses.found()) is not None:
            self._begin_pulses(reference, pulsing)
            return True
        # Only a sample that is no onset is healthy, and moves the reference.
        self._learn(reference, level)
        return False

    def _doubt(self, reference: Reference, count: int) -> float:
        """Return by how much a median of ``count`` samples may miss ``verify``; 0 if a few more samples decide."""
        if count < _DOUBTED_SAMPLES:
            return 0.0
        return min(reference.error(count), _MOST_DOUBT * self._verify)

    def _rise(self, reference: Reference, count: int) -> float | None:
        """Return the rise of the newest ``count`` samples above the reference; None for noise, or too little."""
        newest = self._newest.levels(count)
        least = self._verify - self._doubt(reference, count)
        if np.count_nonzero(newest >= reference.level + least) < newest.shape[0] // 2:
            return None  # the usual case; the median cannot lie higher
        levels = np.sort(newest)
        rise = quantile_of(levels, 0.5) - reference.level
        if rise < least or not reference.exceeds_noise(rise, count):
            return None
        low = quantile_of(levels, _LOW_QUANTILE) - reference.level
        # Of few samples the median alone may be chance, so the low ones have to lie high as well. The same holds while
        # long and healthy iterations alternate.
        if (count < _FEW_SAMPLES or self._pulses.alternate) and low < _LOW_RISE * rise:
            return None
        return None if reference.are_long_by_chance(levels, rise) else rise

    def _learn(self, reference: Reference, level: float) -> None:
        self._unlearned.append(level)
        # Learning lags behind: a slowdown that is not seen yet must not have moved the reference it is measured
        # against.
        delay = min(max(reference.samples // 2, _DELAY[0]), _DELAY[1])
        while len(self._unlearned) > delay and self._candidate is None:
            healthy = self._unlearned.popleft()
            reference.learn(healthy)
            self._drift.learn(healthy)

    def _step(self, reference: Reference, level: float) -> float | None:
        """Return the rise since a step that the posterior shows and the samples verify."""
        if self._candidate is None:
            if level <= reference.level or self._posterior.short(SHORT_RUN) < CERTAINTY:
                return None
            self._candidate, _ = self._newest.place(max(self._posterior.most_probable, 1))
        # The posterior only says where to look. Whether the step is large enough is decided by the samples since then.
        since = self._newest.since(self._candidate)
        if since < self._consecutive:
            return None
        rise = self._rise(reference, since)
        if rise is None and (since >= _CANDIDATE_SAMPLES or self._is_over(reference, since)):
            self._candidate = None
        return rise

    def _is_over(self, reference: Reference, since: int) -> bool:
        """Check whether the samples since a step lie where the samples before the step lay."""
        return _median(self._newest.levels(since)) - reference.level < self._verify / 2

    def _drifted(self, reference: Reference, level: float) -> float | None:
        """Return the rise of a long window above the slow-moving reference, or of what began within it."""
        if level - reference.level < self._verify / 2:
            return None
        newest = self._newest.levels(_LONG_WINDOWS[-1])
        high = newest >= reference.level + (1 - _MOST_DOUBT) * self._verify
        for count in _LONG_WINDOWS:
            if count > len(newest):
                break
            if np.count_nonzero(high[-count:]) < count // 2:
                continue  # the usual case, cheaper than the same in _rise
            rise = self._rise(reference, count)
            if rise is None:
                continue
            if rise >= self._verify:
                return rise
            # A slowdown that began within the window lifts its median only in part: judge what came since it began.
            rise = self._rise(reference, max(self._slow_samples(reference, rise), self._consecutive))
            if rise is not None:
                return rise
        return None

    def _degraded(self, reference: Reference) -> bool:
        """Begin a slowdown where the newest samples lie too far above the settled level; that level is then healthy."""
        middle = self._newest.place(WINDOW // 2)
        rise = self._drift.rise(self._newest.levels(WINDOW), reference, middle)
        first, settled = self._drift.crossed, self._drift.level
        if rise is None or first is None or settled is None:
            return False
        # The reference has followed the degradation. From here on the settled level is what healthy means, and what was
        # taken for wander was the degradation.
        self.reference = reference.moved(settled, reference.samples).without_wander()
        self._begin(self.reference, rise, first, self.reference, gradual=True)
        return True

    def _is_held(self, reference: Reference, slowdown: Slowdown) -> bool:
        """Take the level of a slow degradation for the job's own where it has not moved for very long."""
        if not slowdown.gradual or not self._drift.due():
            return False
        newest = self._newest.levels(WINDOW)
        if not self._drift.is_held(newest, self._newest.place(WINDOW // 2), self._newest.place(1)):
            return False
        self.reference = reference.moved(_median(newest), WINDOW)
        self._drift.restart()
        self._pulses.restart()
        self.slowdown = None
        self._forget()
        return True

    def _slow_samples(self, reference: Reference, rise: float, most: int = _REMEMBERED) -> int:
        """Count the newest that are slow: they begin where the sum of what exceeds half the rise is smallest."""
        levels = self._newest.levels(most)
        excess = np.cumsum(levels - (reference.level + rise / 2))
        before = int(excess.argmin()) + 1 if excess.min() < 0 else 0
        return max(len(levels) - before, 1)

    def _begin(
        self, reference: Reference, rise: float, since: int | Place, healthy: Reference, *, gradual: bool = False
    ) -> None:
        """Begin a slowdown: the newest ``since`` samples, or those since then, lie ``rise`` above the reference."""
        first, start_ns = self._newest.place(since) if isinstance(since, int) else since
        reported, _ = self._newest.place(1)
        self.slowdown = Slowdown(
            first_iteration=first,
            start_ns=start_ns,
            reported_iteration=reported,
            before_ns=round(math.exp(healthy.level)),
            after_ns=round(math.exp(reference.level + rise)),
            gradual=gradual,
        )
        self._pulses.forget()
        self._unlearned.clear()
        self._candidate = None
        self._drift.interrupt()

    def _begin_pulses(self, reference: Reference, pulsing: Pulsing) -> None:
        reported, _ = self._newest.place(1)
        self.slowdown = Slowdown(
            first_iteration=pulsing.first.number,
            start_ns=pulsing.first.start_ns,
            reported_iteration=reported,
            before_ns=round(math.exp(reference.level)),
            after_ns=round(math.exp(reference.level) * (1 + pulsing.gain)),
            window=pulsing.window,
        )
        self._unlearned.clear()
        self._candidate = None
        self._drift.interrupt()

    def _follow_pulses(self, reference: Reference, slowdown: Slowdown, block_ends: bool) -> bool:
        """Follow pulses; True where they are over, or where each iteration is slow by now, which is another onset."""
        if not block_ends:
            return False
        newest = np.sort(self._newest.levels(_FEW_SAMPLES))
        low = quantile_of(newest, _LOW_QUANTILE) - reference.level
        if low >= self._verify and reference.exceeds_noise(low, _FEW_SAMPLES):
            rise = quantile_of(newest, 0.5) - reference.level
            self._begin(reference, rise, self._slow_samples(reference, rise, _FEW_SAMPLES), reference)
            return True
        gain = self._pulses.gain(slowdown.window)
        if gain is None:
            return False
        if self._pulses.is_over(gain):
            self.slowdown = None
            self._forget()
            return True
        self.slowdown = msgspec.structs.replace(slowdown, after_ns=round(slowdown.before_ns * (1 + gain)))
        return False

    def _grew(self, reference: Reference, slowdown: Slowdown, level: float) -> bool:
        """Check whether the newest samples lie above the slow ones before as a slowdown lies above the reference.

        Above those right before, too: a ramp that goes on is no other onset.
        """
        if level - math.log(slowdown.after_ns) < self._verify / 2:
            return False
        known = self._newest.since(slowdown.first_iteration)
        for count in _GROWTH_WINDOWS:
            # Too few slow samples are left before the window to compare it with.
            if known - count < _BASELINE_SAMPLES:
                break
            before = self._newest.levels(known)[:-count]
            slow = reference.moved(max(_median(before), _median(before[-count:])), min(known - count, count))
            rise = self._rise(slow, count)
            if rise is not None and rise >= self._verify:
                self._begin(slow, rise, self._slow_samples(slow, rise, known), reference, gradual=slowdown.gradual)
                return True
        return False

    def _relieved(self, reference: Reference, slowdown: Slowdown) -> bool:
        """Update the slow level; True when the newest samples are healthy again."""
        slow = self._newest.levels(self._newest.since(slowdown.first_iteration))
        if not len(slow):  # an agent that knows of the slowdown reads the ring again, from before its onset
            return False
        level = _median(slow[-_FEW_SAMPLES:])
        rise = math.log(slowdown.after_ns) - reference.level
        bound = min(self._verify, rise / 2)
        # A small rise drowns in noise, so its relief needs more samples to be sure.
        needed = self._consecutive
        if rise > bound:
            needed = max(needed, reference.samples_for((rise - bound) / _RELIEF_DEVIATIONS, _MOST_RELIEF))
        if len(slow) > needed and _median(slow[-needed:]) - reference.level <= bound:
            self.slowdown = None
            self._forget()
            return True
        self.slowdown = msgspec.structs.replace(slowdown, after_ns=max(slowdown.before_ns, round(math.exp(level))))
        return False

    def _dropped(self, reference: Reference, level: float) -> bool:
        """Take a level that is clearly below the reference for the new reference."""
        if len(self._newest) < _DROP_WINDOW or reference.level - level < self._verify:
            return False
        drop = reference.level - _median(self._newest.levels(_DROP_WINDOW))
        if drop < self._verify:
            return False
        # A reference from a warm-up has so much noise that no drop exceeds it; then samples in a row decide. Where the
        # noise is known they do not: noise that lasts is low for as long.
        if not reference.exceeds_noise(drop, _DROP_WINDOW) and not self._is_lower(reference):
            return False
        self.reference = reference.dropped(self._newest.levels(_DROP_WINDOW))
        self._drift.drop(self.reference.level)
        self._forget()
        self._pulses.restart()
        return True

    def _is_lower(self, reference: Reference) -> bool:
        """Check whether samples in a row are lower, even if the reference's noise is not certain (after a warm-up)."""
        if len(self._newest) < _FEW_SAMPLES:
            return False
        levels = np.sort(self._newest.levels(_FEW_SAMPLES))
        drop = reference.level - quantile_of(levels, 0.5)
        high = quantile_of(levels, 1 - _LOW_QUANTILE)
        if drop < self._verify or high > reference.level - self._verify / 2 or reference.wanders(drop):
            return False
        return not reference.knows_noise or reference.exceeds_noise(drop, _FEW_SAMPLES)

    def _forget(self) -> None:
        """Forget the past, so that only samples from now on count for the next change."""
        self._newest.clear()
        self._unlearned.clear()
        self._pulses.forget()
        self._candidate = None
        self._posterior = self._fresh_posterior()
