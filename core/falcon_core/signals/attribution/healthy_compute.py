"""Track a rank's computation when it is healthy, and when the job was at its best."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from falcon_core.signals.attribution.measured import Measured, Measurer
from falcon_core.signals.changepoint.expected_time import LEAST_SAMPLES
from falcon_core.signals.changepoint.reference import Reference
from falcon_core.signals.iterations.segmenter import Iteration

_FIRST = 8  # computations whose median is the first level


class HealthyComputation:
    """The level of a rank's healthy computation, at the usual number of bytes."""

    def __init__(self, known: Reference | None = None) -> None:
        """Begin with the level that an earlier agent learned."""
        self.reference = known
        self._best = None if known is None else known.level  # when the job was at its best
        self._first: deque[Iteration] = deque(maxlen=LEAST_SAMPLES)

    @property
    def level_ns(self) -> int | None:
        """Return the level [ns]; None while it is being learned."""
        return None if self.reference is None else round(math.exp(self.reference.level))

    def error(self, count: int) -> float | None:
        """Return the standard error of a median of ``count`` computations against the level, of their logarithms.

        None while the level is being learned.
        """
        return None if self.reference is None else self.reference.error(count)

    def cautious_error(self, count: int, few: int) -> float | None:
        """Return the same error of many computations, no smaller than is safe to blame a rank by."""
        return None if self.reference is None else self.reference.cautious_error(count, few)

    def learn(self, healthy: Measured, measurer: Measurer) -> None:
        """Learn from a healthy iteration.

        The first ones are kept until it is known what their bytes make of their computation.
        """
        if not healthy.compute_ns or healthy.compute_ns < 0:
            return
        if self.reference is not None:
            self.reference.learn(math.log(healthy.compute_ns))
            return
        self._first.append(healthy.iteration)
        if len(self._first) >= _FIRST and measurer.explains_compute(healthy.iteration):
            first = [measurer.measure(each).compute_ns or 1 for each in self._first]
            self.reference = Reference.of(np.log(first))
            self._first.clear()

    def at_best(self) -> None:
        """Note that the job is at its best now."""
        self._best = None if self.reference is None else self.reference.level

    def return_to_best(self) -> None:
        """Take for healthy what was healthy at the job's best."""
        if self.reference is not None and self._best is not None:
            self.reference = self.reference.moved(self._best, self.reference.samples)
