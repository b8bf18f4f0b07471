"""Detect a slowdown that comes in pulses: single long iterations among healthy ones, more often than before.

A median forgives what happens in less than half of the iterations: one iteration of five at 40 x makes a job 8.8 times
slower, and moves no median. A mean shows it, but a mean follows a single stall as well. So pulses are counted, in
windows of the newest iterations. All of these conditions have to hold:

- **More often.** The window has twice the healthy share of pulses, and more than chance explains in one window of 10^8.
  The healthy share is that of the iterations before; it is not known before ``_LEAST_HEALTHY`` of them. Long iterations
  in a row are one pulse: a burst, such as an upload, is a short slowdown and no pulses.
- **Throughout.** Each half of the window has a third of the pulses or more.
- **Costly.** The long iterations beyond the healthy share make the mean iteration longer by ``verify``, where each
  counts as their median. So a heavy tail counts no more than usual long iterations do.

So a rhythm that the job has from its beginning (checkpoints, garbage collection, late data) is no slowdown. The pulses
are over when the newest iterations are no longer costly, by half of ``verify``.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final, NamedTuple

import msgspec

from falcon_core.signals.changepoint.drift import Place
from falcon_core.signals.changepoint.reference import DEVIATIONS, NOISE_FLOOR, chance_of

BLOCK: Final = 20  # iterations that are counted together
WINDOWS: Final = (40, 80, 160)  # iterations: of one pulse in ten, the longest holds 16
_CHANCE: Final = 1e-8
_LEAST_HEALTHY: Final = 160  # iterations
_MOST_HEALTHY: Final = 2000  # iterations that the healthy share remembers
_MORE_OFTEN: Final = 2.0
_ALTERNATING: Final = 4  # pulses in a block and in what has come since
_MOST_RISE: Final = 20.0  # logarithm; a number that is larger proves nothing


class Pulsing(NamedTuple):
    """Pulses that were found."""

    window: int  # iterations of which it takes the mean to see them
    gain: float  # what they add to the mean iteration, as a share of a healthy one
    first: Place  # the first pulse in the window


class PulseShare(msgspec.Struct, frozen=True, kw_only=True):
    """The pulses of a job that is well: what outlives an agent."""

    iterations: float = 0.0  # that were counted; the older they are, the less they count
    pulses: float = 0.0
    long: float = 0.0  # iterations, of which a burst has several


class _Block(msgspec.Struct):
    """What is counted of ``BLOCK`` iterations."""

    iterations: int = 0
    pulses: int = 0
    excess: list[float] = []  # of its long iterations, in healthy iterations
    first: Place | None = None  # its first long iteration


class Pulses:
    """Counts the pulses in a series of iteration times; constant memory, and a comparison of windows each block."""

    def __init__(self, verify: float, known: PulseShare | None = None) -> None:
        """Begin to learn the healthy share. ``verify``: the least logarithm of what counts as a rise."""
        self._verify = verify
        self._blocks: deque[_Block] = deque()
        self._present = _Block()
        self._was_long = False
        self.healthy = known or PulseShare()

    def restart(self) -> None:
        """Forget the healthy share, too: iterations have another level."""
        self.healthy = PulseShare()
        self.forget()

    def forget(self) -> None:
        """Forget the newest iterations."""
        self._blocks.clear()
        self._present = _Block()
        self._was_long = False

    @property
    def alternate(self) -> bool:
        """Return whether long and healthy iterations take turns now, so that a median is above by chance.

        False before the healthy share is known: as long as pulses cannot be found, medians alone decide.
        """
        if self.healthy.iterations + BLOCK * len(self._blocks) < _LEAST_HEALTHY:
            return False
        before = self._blocks[-1].pulses if self._blocks else 0
        return before + self._present.pulses >= _ALTERNATING

    def feed(self, place: Place, rise: float, noise: float) -> bool:
        """Count an iteration that lies ``rise`` above the healthy level (logarithms); True if a block is complete."""
        block = self._present
        block.iterations += 1
        if rise > self._verify and rise > DEVIATIONS * max(noise, NOISE_FLOOR):
            block.pulses += not self._was_long
            block.excess.append(_share(rise))
            block.first = block.first or place
            self._was_long = True
        else:
            self._was_long = False
        if block.iterations < BLOCK:
            return False
        self._blocks.append(block)
        self._present = _Block()
        return True

    def _learn(self) -> None:
        """Take blocks for healthy that no window holds any more."""
        while len(self._blocks) * BLOCK > WINDOWS[-1]:
            oldest = self._blocks.popleft()
            before = self.healthy
            kept = 1 - BLOCK / _MOST_HEALTHY if before.iterations >= _MOST_HEALTHY else 1.0
            self.healthy = PulseShare(
                iterations=kept * before.iterations + BLOCK,
                pulses=kept * before.pulses + oldest.pulses,
                long=kept * before.long + len(oldest.excess),
            )

    def found(self) -> Pulsing | None:
        """Return the pulses that the newest blocks show; where they show none, learn from the oldest blocks."""
        for window in WINDOWS:
            count = window // BLOCK
            if len(self._blocks) < count:
                break
            newest = list(self._blocks)[-count:]
            gain = self._gain(newest)
            if gain >= _share(self._verify) and self._is_more_often(newest, window):
                first = next(block.first for block in newest if block.first is not None)
                return Pulsing(window, gain, first)
        self._learn()
        return None

    def gain(self, window: int) -> float | None:
        """Return what pulses add to the mean of the newest iterations, a share of a healthy one; None: not known yet.

        ``window``: that of the pulses, of which a half is enough here.
        """
        count = max(WINDOWS[0], window // 2) // BLOCK
        while len(self._blocks) > count:
            self._blocks.popleft()
        return self._gain(list(self._blocks)) if len(self._blocks) == count else None

    def is_over(self, gain: float) -> bool:
        """Check whether such a gain is none."""
        return gain < _share(self._verify) / 2

    def _gain(self, blocks: list[_Block]) -> float:
        excess = [one for block in blocks for one in block.excess]
        if not excess:
            return 0.0
        share = len(excess) / (BLOCK * len(blocks))
        usual = self.healthy.long / self.healthy.iterations if self.healthy.iterations else 0.0
        return max(0.0, share - usual) * statistics.median(excess)

    def _is_more_often(self, newest: list[_Block], window: int) -> bool:
        """Check whether these blocks have more pulses than the healthy ones, and have them throughout."""
        older = list(self._blocks)[: -len(newest)]
        iterations = self.healthy.iterations + BLOCK * len(older)
        if iterations < _LEAST_HEALTHY:
            return False
        healthy = self.healthy.pulses + sum(block.pulses for block in older)
        # The share is uncertain by the root of the count, and a share of zero is never certain.
        usual = (healthy + 2 * healthy**0.5 + 2) / iterations
        pulses = sum(block.pulses for block in newest)
        early = sum(block.pulses for block in newest[: len(newest) // 2])
        throughout = 3 * min(early, pulses - early) >= pulses
        often = pulses >= _MORE_OFTEN * usual * window
        return throughout and often and chance_of(window, pulses, round(usual, 3)) < _CHANCE


def _share(rise: float) -> float:
    return math.expm1(min(rise, _MOST_RISE))
