"""Detect slow degradation: ramps and stairs that a reference takes for wander while it follows the series.

The job's level, the median of the newest ``WINDOW`` samples, is compared with the settled level (``settled_level``):

- *Found*: it lies ``verify`` and an allowance for wander above. The allowance is ``WANDER_SHARE`` of ``verify``,
  however far the level has wandered: as long as a ramp lasts it looks like wander, so what is learned of wander cannot
  be used here. At 10 % a job may wander to 15 % above its lower quartile.
- *Not two kinds of iterations*: the samples' lower quantile must have risen, too, since a median jumps where a job's
  long iterations become more than a half.
- *Onset*: the iteration since which the level has lain ``verify`` above without a break: the middle of the first window
  that did. So a ramp's onset is where it crossed the threshold, not where it began, which looks like wander.
- *Held*: a level that has moved by less than half of ``verify`` for ``HELD_ITERATIONS`` and ``HELD_NS`` becomes the
  job's level, and the slowdown ends. No repair relieves a job whose own work has grown. A culprit, if there was one,
  has been replaced by then: at ``verify`` and a half, as many iterations lose the time of 300 healthy iterations.
  Slowdowns with a step are not concerned: they end by relief alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from falcon_core.signals.calls.stream import Floats
from falcon_core.signals.changepoint.reference import DEVIATIONS, Reference
from falcon_core.signals.changepoint.settled_level import SettledBlocks, SettledLevel
from falcon_core.stats.order import median_of

WINDOW = 64
WANDER_SHARE = 0.5  # of ``verify``
HELD_ITERATIONS = 2000
HELD_NS = 3_600_000_000_000
_LOOK = 16  # samples between two looks
_LOW = 12  # of the window's samples, ascending: a fifth is lower
_LOW_RISE = 1 / 3  # of the median's rise
_BEST_SHARE = 0.25  # of ``verify``, by which a block at the settled level may exceed it


class Place(NamedTuple):
    """Where an iteration stands in the series."""

    number: int
    start_ns: int


class Drift:
    """The anchored reference of a series of levels (logarithms of times in ns), and the newest level."""

    def __init__(self, verify: float, known: SettledBlocks | None = None) -> None:
        """Begin with no level, or with what an earlier agent knew. ``verify``: the threshold, a logarithm."""
        self._verify = verify
        self._settled = SettledLevel(known)
        self._samples = 0
        self.crossed: Place | None = None  # since when the level has lain above the threshold
        self._held: tuple[float, Place] | None = None  # a level, and since when the series has stayed at it

    @property
    def level(self) -> float | None:
        """Return the settled level; None before it is known."""
        return self._settled.level

    @property
    def blocks(self) -> SettledBlocks:
        return self._settled.blocks

    @property
    def at_best(self) -> bool:
        """Return whether the newest healthy samples are known to lie at the settled level, or none is known."""
        newest, level = self._settled.newest, self._settled.level
        return level is None or (newest is not None and newest <= level + _BEST_SHARE * self._verify)

    def learn(self, level: float) -> None:
        """Take a healthy sample."""
        self._settled.learn(level)

    def due(self) -> bool:
        """Count a sample; True when it is time to look."""
        self._samples += 1
        return self._samples % _LOOK == 0

    def rise(self, newest: Floats, noise: Reference, middle: Place) -> float | None:
        """Return the rise of the newest ``WINDOW`` samples above the settled level; None if that is no degradation.

        ``noise``: what single samples do; ``middle``: the place of the window's middle.
        """
        settled = self._settled.level
        if settled is None or newest.shape[0] < WINDOW:
            return None
        levels = np.sort(newest)
        rise = float(levels[WINDOW // 2 - 1] + levels[WINDOW // 2]) / 2 - settled
        if rise < self._verify:
            self.crossed = None
            return None
        if self.crossed is None:
            self.crossed = middle
        # The rise has to pass the threshold by more than a level wanders, and by more than chance moves a median.
        enough = rise >= (1 + WANDER_SHARE) * self._verify and rise >= DEVIATIONS * noise.error(WINDOW)
        return rise if enough and levels[_LOW] - settled >= _LOW_RISE * rise else None

    def is_held(self, newest: Floats, middle: Place, last: Place) -> bool:
        """Check whether the level, of the newest ``WINDOW`` samples, has not moved for very long."""
        if newest.shape[0] < WINDOW:
            return False
        level = median_of(newest)
        if self._held is None or abs(level - self._held[0]) > WANDER_SHARE * self._verify:
            self._held = (level, middle)
        since = self._held[1]
        return last.number - since.number >= HELD_ITERATIONS and last.start_ns - since.start_ns >= HELD_NS

    def interrupt(self) -> None:
        """Forget what was seen of the newest level: the samples before are another matter."""
        self.crossed = self._held = None

    def drop(self, level: float) -> None:
        """Take note of a healthy level that is lower than the level before it."""
        self._settled.forget_above(level + WANDER_SHARE * self._verify)
        self.interrupt()

    def restart(self) -> None:
        """Forget the settled level: the job has another one."""
        self._settled = SettledLevel()
        self.interrupt()
