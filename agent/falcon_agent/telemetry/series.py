"""Make windows of ten seconds from what the agent reads each second, and a chunk of them each minute.

Nothing is kept while no service reads series. Times are seconds on one monotonic clock; a window ends where the node's
clock shows a whole ten seconds, so that those of a job's pods agree as far as their clocks do.
"""

from __future__ import annotations

import math
import statistics
import zlib
from typing import Final

import msgspec

from falcon_agent.telemetry.resources import UNTRACKED_SECONDS
from falcon_core.wire.launcher.launch import LaunchStatus
from falcon_core.wire.series import (
    MAX_METRICS,
    WINDOW_SECONDS,
    WINDOWS,
    Phase,
    Window,
    encode_chunk,
)

MOST_READINGS: Final = 256  # of a series in a window: a rank may do hundreds of iterations in it
MOST_SERIES: Final = 2048  # of a window
MOST_METRICS: Final = MAX_METRICS  # names of a chunk
WARM_UP_SECONDS: Final = 60.0  # of training, in which programs still compile, tune and fill their caches
_SPREAD_SECONDS: Final = 9.0  # over which the pods of a cluster send what ended at one moment


def phase_of(status: LaunchStatus | None, *, trains_since: float | None, began: float, now: float) -> Phase:
    """Return what the ranks do, by the launcher's report.

    Args:
        status: the launcher's newest report.
        trains_since: when all ranks had done their first iterations; None: they have not.
        began: when the generation was first seen.
        now: the present time.
    """
    if status is None or status.state == "Idle":
        return Phase.START
    if status.state != "Running":
        return Phase.ENDED if status.state == "Exited" else Phase.REPAIR
    if trains_since is None:
        return Phase.TRAINING if now - began >= UNTRACKED_SECONDS else Phase.START
    return Phase.WARM_UP if now - trains_since < WARM_UP_SECONDS else Phase.TRAINING


class _Closed(msgspec.Struct):
    """A window that has ended."""

    phase: Phase
    values: dict[tuple[int, str], Window]


class SeriesWindows:
    """The windows of one pod that have not been sent."""

    def __init__(self, pod_uid: str) -> None:
        """Give the pod its own moment in the minute, by its uid."""
        place = zlib.crc32(pod_uid.encode())
        self._last_slot = place % WINDOWS  # of a chunk
        self._delay = place / (1 << 32) * _SPREAD_SECONDS
        self._number = 0
        self._generation = 0
        self._began = 0.0  # when the generation was first seen
        self._trains_since: float | None = None  # when its ranks had done their first iterations
        self._end: float | None = None  # of the present window; None: nothing is kept
        self._slot = 0  # counts the windows of the node's clock
        self._readings: dict[tuple[int, str], list[float]] = {}
        self._counts: dict[tuple[int, str], float] = {}
        self._names: set[str] = set()  # of the chunk that is being made
        self._phase = Phase.TRAINING
        self._closed: list[_Closed] = []

    @property
    def keeps(self) -> bool:
        """Return whether readings are kept."""
        return self._end is not None

    def stop(self) -> None:
        """Forget everything: no service reads series now."""
        if self._end is not None:
            self._end, self._closed = None, []
            self._open()

    def begin(self, generation: int, now: float, unix_seconds: float) -> bytes | None:
        """Begin to keep readings of a generation; return the chunk of an earlier one, if it has any windows."""
        left = self._chunk(now) if generation != self._generation and self._closed else None
        if self._end is None or generation != self._generation:
            self._generation, self._began, self._closed = generation, now, []
            self._trains_since = None
            self._align(now, unix_seconds)
        return left

    def phase(self, status: LaunchStatus | None, *, trains: bool, now: float) -> Phase:
        """Return what the ranks of the generation do; ``trains``: they have done their first iterations."""
        if trains and self._trains_since is None:
            self._trains_since = now
        return phase_of(status, trains_since=self._trains_since, began=self._began, now=now)

    def add(self, rank: int, metric: str, value: float) -> None:
        """Take a reading; ``metric`` is a name of ``metric_name``."""
        kept = self._readings.get((rank, metric))
        if kept is None:
            if not self._has_room(metric):
                return
            kept = self._readings[rank, metric] = []
        if len(kept) < MOST_READINGS:
            kept.append(value)

    def count(self, rank: int, metric: str, number: float) -> None:
        """Add to what is counted in a window: its median, minimum and maximum are all the sum."""
        if (rank, metric) in self._counts or self._has_room(metric):
            self._counts[rank, metric] = self._counts.get((rank, metric), 0.0) + number

    def look(self, phase: Phase, now: float, unix_seconds: float) -> bytes | None:
        """Close the window that has ended, and return the chunk that is due; None where none is."""
        if self._end is None:
            return None
        if phase != Phase.TRAINING:
            self._phase = phase  # of the whole window, whose readings it has touched
        if now - self._end >= WINDOW_SECONDS:  # the agent, or its machine, stood still: that time has no window
            left = self._chunk(now) if self._closed else None
            self._align(now, unix_seconds)
            return left
        if now >= self._end:
            self._close()
        due = bool(self._closed) and (self._slot - 1) % WINDOWS == self._last_slot and now >= self._ended + self._delay
        return self._chunk(now) if due or len(self._closed) > WINDOWS else None

    @property
    def _ended(self) -> float:
        return (self._end or 0.0) - WINDOW_SECONDS

    def _align(self, now: float, unix_seconds: float) -> None:
        self._end = now + WINDOW_SECONDS - unix_seconds % WINDOW_SECONDS
        self._slot = int(unix_seconds // WINDOW_SECONDS)
        self._open()

    def _open(self) -> None:
        self._readings, self._counts, self._phase = {}, {}, Phase.TRAINING

    def _has_room(self, metric: str) -> bool:
        if metric not in self._names and len(self._names) >= MOST_METRICS:
            return False
        self._names.add(metric)
        return len(self._readings) + len(self._counts) < MOST_SERIES

    def _close(self) -> None:
        values = {key: _window(readings) for key, readings in self._readings.items()}
        values |= {key: Window(count, count, count) for key, count in self._counts.items()}
        self._closed.append(_Closed(self._phase, values))
        self._end = (self._end or 0.0) + WINDOW_SECONDS
        self._slot += 1
        self._open()

    def _chunk(self, now: float) -> bytes:
        closed, self._closed, self._names = self._closed[-WINDOWS:], [], set()
        series: dict[int, dict[str, list[Window | None]]] = {}
        for place, each in enumerate(closed):
            for (rank, metric), window in each.values.items():
                row = series.setdefault(rank, {}).setdefault(metric, [None] * len(closed))
                row[place] = window
        self._number += 1
        return encode_chunk(
            series,
            [each.phase for each in closed],
            generation=self._generation,
            number=self._number,
            age_ms=round(1000 * max(0.0, now - self._ended)),
        )


def _window(readings: list[float]) -> Window:
    """Return the window of its readings; a reading that is not finite makes the maximum NaN, and is left out else."""
    finite = [each for each in readings if math.isfinite(each)]
    if not finite:
        return Window(math.nan, math.nan, math.nan)
    most = max(finite) if len(finite) == len(readings) else math.nan
    return Window(statistics.median(finite), min(finite), most)
