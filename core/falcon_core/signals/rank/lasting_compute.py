"""Keep a rank's computation of many iterations, for comparisons in which a few say little.

A rank that packs documents into sequences of one size computes longer or shorter from one iteration to the next, and no
call shows it. The median of C iterations then moves by as much as a slow device moves it. The median of many does not.
While the rank is slow, the median of those since the onset shows in time what noise hides from a few.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from falcon_core.signals.attribution.measured import Measured

_ITERATIONS: Final = 64  # noise of 20 % moves their median by 3 %
_SAMPLES: Final = 32  # where the device times a quarter of the iterations (``profiling``)
SCATTERED: Final = 0.08  # deviation of the logarithm; less moves the median of five iterations by 4 %


class LastingComputation:
    """The computation of a rank's newest iterations; an append for each of them."""

    def __init__(self) -> None:
        self._computes: deque[tuple[int, int]] = deque(maxlen=_ITERATIONS)  # number of the iteration, ns
        self._sampled: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)

    def add(self, measured: Measured) -> None:
        """Take an iteration that was not interrupted."""
        if measured.compute_ns is not None:
            self._computes.append((measured.iteration.number, measured.compute_ns))

    def add_sample(self, measured: Measured) -> None:
        """Take an iteration whose computation the device has measured."""
        if measured.compute_ns is not None:
            self._sampled.append((measured.iteration.number, measured.compute_ns))

    def median_ns(self, noise: float) -> int | None:
        """Return the median [ns]; None until there are enough iterations, and where few iterations say as much.

        ``noise``: standard deviation of the logarithm of the rank's healthy computation.
        """
        newest = self._sampled or self._computes
        if noise < SCATTERED or len(newest) < (newest.maxlen or 0):
            return None
        return round(statistics.median(compute_ns for _, compute_ns in newest))

    def since(self, first: int) -> tuple[int, int] | None:
        """Return the median [ns] of the newest computations from iteration ``first`` on, and of how many it is.

        None until there are half as many as are kept.
        """
        newest = self._sampled or self._computes
        known = [compute_ns for number, compute_ns in newest if number >= first]
        if 2 * len(known) < (newest.maxlen or 0):
            return None
        return round(statistics.median(known)), len(known)
