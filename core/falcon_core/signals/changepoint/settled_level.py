"""Keep the level that a job once settled at: the reference for slow degradation, which does not follow the series.

A reference that follows healthy samples (``reference``) follows a slow degradation as well. This level is anchored: it
is the lower quartile of the levels of *all* settled healthy samples of the generation, in blocks.

- Why a low quantile: a ramp that begins late in a job's life moves it little, and one that has lasted since the job's
  beginning has risen by four times as much as it. Unlike the minimum, a quartile does not fall for one lucky block.
- Why not the job's first samples: a start is no measure, slow (compilation, caches) or fast (a cool device, a page
  cache that is not full).
- How it moves: a drop takes it along (``forget_above``). A level that is held becomes the quartile by and by, after
  three times as long as the job has been at lower levels.
"""

from __future__ import annotations

import math
import statistics

import msgspec

from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS

BLOCK = 64  # samples whose median is a level
_MOST_BLOCKS = 64  # of them, two neighbours become one block
_LEAST_BLOCKS = 2  # before the level is known


class SettledBlocks(msgspec.Struct, frozen=True):
    """What a later agent needs in order to go on."""

    levels_ns: list[int] = []
    span: int = 1  # medians of ``BLOCK`` samples of which each level is the mean (of the logarithms)


class SettledLevel:
    """The lower quartile of the block levels (logarithms) of healthy samples. Bounded memory, constant cost."""

    def __init__(self, known: SettledBlocks | None = None) -> None:
        known = known or SettledBlocks()
        self.level: float | None = None
        self.newest: float | None = None  # level of the newest block
        self._span = known.span
        self._blocks = [math.log(ns) for ns in known.levels_ns]
        self._warm_up = SETTLED_ITERATIONS  # samples that are still to be left out
        self._samples: list[float] = []
        self._medians: list[float] = []
        self._update()

    @property
    def samples(self) -> int:
        """Return the number of samples on which the level rests."""
        return len(self._blocks) * self._span * BLOCK

    @property
    def blocks(self) -> SettledBlocks:
        return SettledBlocks([round(math.exp(level)) for level in self._blocks], self._span)

    def learn(self, level: float) -> None:
        """Take a healthy sample."""
        if self._warm_up:
            self._warm_up -= 1
            return
        self._samples.append(level)
        if len(self._samples) < BLOCK:
            return
        self.newest = statistics.median(self._samples)
        self._samples.clear()
        self._medians.append(self.newest)
        if len(self._medians) < self._span:
            return
        self._blocks.append(math.fsum(self._medians) / self._span)
        self._medians.clear()
        # Merge pairs of blocks instead of dropping old ones: a slow drift shows over the whole run.
        if len(self._blocks) == _MOST_BLOCKS:
            self._blocks = [(first + second) / 2 for first, second in zip(*[iter(self._blocks)] * 2, strict=True)]
            self._span *= 2
        self._update()

    def forget_above(self, level: float) -> None:
        """Forget what lay above ``level``, and what is not a block yet: the job has become faster, and warms up."""
        self._blocks = [block for block in self._blocks if block <= level]
        self._samples.clear()
        self._medians.clear()
        self._warm_up = SETTLED_ITERATIONS
        self.newest = None
        self._update()

    def _update(self) -> None:
        known = len(self._blocks) >= _LEAST_BLOCKS
        self.level = statistics.quantiles(self._blocks, n=4, method="inclusive")[0] if known else None
