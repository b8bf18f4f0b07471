"""Hold one job's series: a ring of windows for each metric and rank, in bounded memory.

A metric's array is made when its first value comes. Beyond ``MOST_DETAILED`` ranks only medians are kept, and beyond
``MOST_VALUES`` numbers the history becomes shorter: that bounds a board, whatever a job sends.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Phases = npt.NDArray[np.uint8]

WINDOW_SECONDS: Final = 10.0
WINDOWS: Final = 720  # two hours
MOST_METRICS: Final = 48  # of a job: a flood of names ends here
MOST_NAME: Final = 64  # letters of a metric's name
MOST_RANKS: Final = 10_000
MOST_DETAILED: Final = 128  # ranks up to which minima and maxima are kept, and not medians alone
MOST_VALUES: Final = 48 * 1024 * 1024  # numbers of a board of all its metrics, 192 MiB
LEAST_WINDOWS: Final = 90  # a quarter of an hour, however many ranks there are


class Phase(enum.IntEnum):
    """What a job does in a window."""

    OTHER = 0  # start, warm-up, checkpoint, evaluation, repair, pause; or nothing is known
    TRAINING = 1


class Board:
    """The newest windows of one job's series.

    Slots count windows of ten seconds on the service's own clock. What is older than the ring is gone. A rank, a
    metric or a slot out of bounds is counted in ``refused`` and left out.
    """

    def __init__(
        self, ranks: int, *, ranks_per_pod: int = 1, expected_metrics: int = 24, most_values: int = MOST_VALUES
    ) -> None:
        """Hold ``ranks`` series of each metric, ``most_values`` numbers in all.

        ``expected_metrics`` sets the length of the history of large jobs.
        """
        self.ranks = min(max(1, ranks), MOST_RANKS)
        self.ranks_per_pod = max(1, ranks_per_pod)
        self.detailed = self.ranks <= MOST_DETAILED
        per_window = self.ranks * (3 if self.detailed else 1)
        self.windows = max(LEAST_WINDOWS, min(WINDOWS, most_values // (per_window * expected_metrics)))
        self.refused = 0
        self._series: dict[str, Floats] = {}  # (median, minimum, maximum | median alone; rank; slot % windows)
        self._phases: Phases = np.full(self.windows, Phase.OTHER, np.uint8)
        self._newest = -1  # slot
        self._most_metrics = max(1, min(MOST_METRICS, most_values // (per_window * self.windows)))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the names of all metrics that have arrived, in the order of their arrival."""
        return tuple(self._series)

    @property
    def newest_seconds(self) -> float:
        """Return the end of the newest window, on the service's clock; -inf where nothing came."""
        return (self._newest + 1) * WINDOW_SECONDS if self._newest >= 0 else -math.inf

    @property
    def byte_size(self) -> int:
        """Return the memory that the series take, in bytes."""
        return sum(series.nbytes for series in self._series.values()) + self._phases.nbytes

    def add(self, rank: int, window_end_seconds: float, values: Mapping[str, tuple[float, float, float]]) -> None:
        """Take a rank's medians, minima and maxima of the window that ends at this time of the service's clock."""
        if not 0 <= rank < self.ranks or not math.isfinite(window_end_seconds) or window_end_seconds <= 0:
            self.refused += 1
            return
        slot = self._opened(window_end_seconds)
        if slot is None:
            self.refused += 1
            return
        for name, (median, minimum, maximum) in values.items():
            series = self._metric(name)
            if series is None:
                self.refused += 1
                continue
            cell = series[:, rank, slot % self.windows]
            cell[0] = median
            if self.detailed:
                cell[1], cell[2] = minimum, maximum

    def put(self, name: str, ranks: npt.NDArray[np.intp], window_end_seconds: float, values: Floats) -> None:
        """Take one metric of several ranks, of a window that the board has [row]. Values that are NaN are left out."""
        slot = math.ceil(window_end_seconds / WINDOW_SECONDS) - 1
        known = np.isfinite(values) & (ranks >= 0) & (ranks < self.ranks)
        if not self._newest - self.windows < slot <= self._newest or not known.any():
            return
        series = self._metric(name)
        if series is None:
            self.refused += 1
            return
        series[:, ranks[known], slot % self.windows] = values[known]

    def set_phase(self, begin_seconds: float, end_seconds: float, phase: Phase) -> None:
        """Mark the windows that overlap this time. Windows are ``OTHER`` until they are marked as training."""
        if not math.isfinite(begin_seconds) or not math.isfinite(end_seconds) or end_seconds <= begin_seconds:
            return
        last = self._opened(end_seconds)
        if last is None:
            return
        first = max(math.floor(begin_seconds / WINDOW_SECONDS), self._newest - self.windows + 1)
        for slot in range(first, last + 1):
            self._phases[slot % self.windows] = phase

    def medians(self, metric: str) -> Floats:
        """Return a metric's medians, oldest first, NaN where nothing came [rank, window]. Unknown metric: all NaN."""
        return self._unrolled(metric, 0)

    def minima(self, metric: str) -> Floats:
        """Return likewise the minima; the medians where a large job keeps them alone."""
        return self._unrolled(metric, 1 if self.detailed else 0)

    def maxima(self, metric: str) -> Floats:
        """Return likewise the maxima."""
        return self._unrolled(metric, 2 if self.detailed else 0)

    def training(self) -> npt.NDArray[np.bool_]:
        """Return which windows are training, oldest first [window]."""
        return np.equal(np.roll(self._phases, -((self._newest + 1) % self.windows)), Phase.TRAINING)

    def _unrolled(self, metric: str, row: int) -> Floats:
        series = self._series.get(metric)
        if series is None:
            return np.full((self.ranks, self.windows), np.nan, np.float32)
        return np.roll(series[row], -((self._newest + 1) % self.windows), axis=1)

    def _metric(self, name: str) -> Floats | None:
        series = self._series.get(name)
        if series is None and len(self._series) < self._most_metrics and 0 < len(name) <= MOST_NAME:
            rows = 3 if self.detailed else 1
            series = self._series[name] = np.full((rows, self.ranks, self.windows), np.nan, np.float32)
        return series

    def _opened(self, window_end_seconds: float) -> int | None:
        """Return the slot of this window, after the ring has moved on to it; None where it is too old."""
        slot = math.ceil(window_end_seconds / WINDOW_SECONDS) - 1
        if self._newest < 0:
            self._newest = slot
        if slot > self._newest:
            self._clear(self._newest + 1, slot)
            self._newest = slot
        return slot if slot > self._newest - self.windows else None

    def _clear(self, first: int, last: int) -> None:
        slots = np.arange(max(first, last - self.windows + 1), last + 1) % self.windows
        self._phases[slots] = Phase.OTHER
        for series in self._series.values():
            series[:, :, slots] = np.nan
