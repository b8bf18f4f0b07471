"""Show a rank's newest iterations as means over a window, while the job's slowdown comes in pulses.

A comparison of ranks takes medians of the newest iterations, and medians do not show pulses (``changepoint.pulses``).
So while pulses last, each value of a report is the mean of the ``window`` iterations up to it. Then the rank for which
the others wait in the long iterations has the longest computation, and all that follows is as with steady slowness.

A mean follows a single stall. So of each ``BLOCK`` iterations in a window the longest is taken for as long as the next
one: a rank has to be slow in more iterations than that before its mean shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from falcon_core.signals.attribution.measured import Measured
from falcon_core.signals.changepoint.detector import Slowdown
from falcon_core.signals.changepoint.pulses import BLOCK, WINDOWS
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

_KEPT = WINDOWS[-1] + RECENT_ITERATIONS


class PulseMeans:
    """The times of the newest iterations of one rank; an append for each iteration."""

    def __init__(self) -> None:
        self._iterations: deque[int] = deque(maxlen=_KEPT)
        self._computes: deque[int] = deque(maxlen=_KEPT)
        self._sampled: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # of profiles: iteration's number, computation
        self._newest_sample: int | None = None

    def add(self, measured: Measured) -> None:
        """Take an iteration that was not interrupted."""
        self._iterations.append(measured.iteration_ns)
        if measured.compute_ns is not None:
            self._computes.append(measured.compute_ns)

    def add_sample(self, measured: Measured) -> None:
        """Take an iteration whose computation the device has measured.

        Between two profiles the device times each twentieth cycle, and pulses of an equal distance hit either all of
        these or none. So only iterations that were measured one after the other count.
        """
        number, before = measured.iteration.number, self._newest_sample
        self._newest_sample = number
        if measured.compute_ns is not None and before is not None and number == before + 1:
            self._sampled.append((number, measured.compute_ns))

    def iteration_ns(self, slowdown: Slowdown) -> list[int]:
        """Return the means of the iteration time [ns], oldest first."""
        return _means(self._iterations, slowdown.window)

    def compute_ns(self, slowdown: Slowdown) -> list[int]:
        """Return the means of the computation [ns], oldest first; empty while too little is known of it."""
        if self._newest_sample is None:
            return _means(self._computes, slowdown.window)
        # Before the onset the device has timed few iterations, so that most of these would be older than the pulses.
        since = [compute_ns for number, compute_ns in self._sampled if number >= slowdown.first_iteration]
        return _means(since, slowdown.window)


def waits_ns(iteration_ns: Sequence[int], compute_ns: Sequence[int], healthy_ns: int) -> list[int]:
    """Return what means of iterations hold beyond the computation and the healthy communication [ns], ≥ 0."""
    pairs = zip(reversed(iteration_ns), reversed(compute_ns), strict=False)
    return [max(0, whole - own - healthy_ns) for whole, own in pairs][::-1]


def _means(values: Sequence[int], window: int) -> list[int]:
    """Return the means of the ``window`` values up to each of the newest; of ``BLOCK`` at least."""
    newest = np.array(values, dtype=np.float64)[-(window + RECENT_ITERATIONS - 1) :]
    ends = range(max(BLOCK, len(newest) - RECENT_ITERATIONS + 1), len(newest) + 1)
    return [_mean(np.sort(newest[max(0, end - window) : end])) for end in ends]


def _mean(ascending: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    longest = len(ascending) // BLOCK
    return round(float(ascending[:-longest].sum() + longest * ascending[-longest - 1]) / len(ascending))
