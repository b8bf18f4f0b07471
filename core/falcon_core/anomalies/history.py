"""Keep a bounded history of a quantity: medians of 10 seconds, of a minute and of ten minutes.

A median of ten seconds hides what comes and goes within them. Three lengths of window keep both a leak of minutes and
a leak of a day in sight, in a few kilobytes.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WINDOW_SECONDS: Final = 10.0
# Windows of the scale below in one of this scale, and how many are kept: 20 minutes, 4 hours, 24 hours.
SCALES: Final = ((1, 120), (6, 240), (10, 144))
MOST_SAMPLES: Final = 64  # of one window: a caller that samples faster is cut short


class Points(msgspec.Struct, frozen=True):
    """The newest windows of one scale, oldest first; the arrays have the same length."""

    seconds: Floats  # the middle of each window, on the caller's clock
    values: Floats  # medians


class _Scale:
    """The windows of one length."""

    def __init__(self, parts: int, most: int) -> None:
        self._parts = parts
        self._open: list[tuple[float, float, float]] = []
        self._windows: deque[tuple[float, float, float]] = deque()  # middle, median, highest 10-second median
        self._most = most
        self._left = float("-inf")  # the highest among windows that are not kept any more

    def add(self, window: tuple[float, float, float]) -> tuple[float, float, float] | None:
        """Take a window of the scale below. Return the window of this scale that it completes."""
        self._open.append(window)
        if len(self._open) < self._parts:
            return None
        seconds, values, highs = zip(*self._open, strict=True)
        whole = (statistics.fmean(seconds), statistics.median(values), max(highs))
        self._open = []
        self._windows.append(whole)
        if len(self._windows) > self._most:
            self._left = max(self._left, self._windows.popleft()[2])
        return whole

    def points(self) -> Points:
        table = np.array(self._windows, dtype=np.float64).reshape(-1, 3)
        return Points(table[:, 0], table[:, 1])

    def highest_before(self, seconds: float) -> float:
        return max([self._left, *(high for middle, _, high in self._windows if middle < seconds)])


class History:
    """The history of one quantity. Times grow, in seconds on any clock."""

    def __init__(self) -> None:
        self._scales = [_Scale(parts, most) for parts, most in SCALES]
        self._samples: list[tuple[float, float]] = []

    def add(self, seconds: float, value: float) -> list[int]:
        """Take a sample. Return the scales, by index, of which it closed a window."""
        closed: list[int] = []
        if self._samples and seconds - self._samples[0][0] >= WINDOW_SECONDS:
            times, values = zip(*self._samples, strict=True)
            self._samples = []
            level = float(statistics.median(values))
            window: tuple[float, float, float] | None = (statistics.fmean(times), level, level)
            for index, scale in enumerate(self._scales):
                window = scale.add(window) if window is not None else None
                if window is None:
                    break
                closed.append(index)
        if len(self._samples) < MOST_SAMPLES:
            self._samples.append((seconds, value))
        return closed

    def points(self, scale: int) -> Points:
        """Return the windows of a scale."""
        return self._scales[scale].points()

    def highest_before(self, scale: int, seconds: float) -> float:
        """Return the highest 10-second median before this time, which a window of the scale holds; -inf for none."""
        return self._scales[scale].highest_before(seconds)
