"""Compute the rank's own computation and waits in each iteration, at the usual number of bytes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from falcon_core.signals.attribution.compute_and_wait import (
    Attributed,
    Excess,
    WaitBaseline,
    attribute,
    compute_ns,
    excess_over,
)
from falcon_core.signals.attribution.even_share_compute import Shares
from falcon_core.signals.calls.stream import Floats
from falcon_core.signals.changepoint.expected_time import LEAST_SAMPLES, SAMPLES, ExpectedTime, Slope
from falcon_core.signals.iterations.segmenter import Iteration

_LEAST_MICRO_NS: Final = 1_000  # below a stage computes nothing


class Measured(msgspec.Struct, frozen=True, dict=True):
    """An iteration with what is the rank's own in it, ns; None where that is not known.

    Where sizes vary, all but ``iteration`` is what the usual number of bytes would have taken (``expected``). Where
    micro-batches have moved, the computation is what the even share would have taken, and may be longer than the
    iteration (``shares``).
    """

    iteration: Iteration
    iteration_ns: int
    compute_ns: int | None
    times: Floats | None = None  # of the calls and gaps, by position
    healthy: Floats | None = None  # the same when the rank was healthy; None while that is being learned
    load: float = 1.0  # computation that the iteration's bytes explain ÷ that of the usual bytes
    moved: bool = False  # micro-batches: the ranks do not have the even shares
    micro_ns: int | None = None  # of a micro-batch, where the calls show it and the script does not say it

    @cached_property
    def excess(self) -> Excess | None:
        """Return the excess of its calls and gaps over the healthy ones; None if it was interrupted, too."""
        return None if self.iteration.interrupted else excess_over(self.times, self.healthy)

    @cached_property
    def wait_ns(self) -> int | None:
        """Return the wait [ns]; 0 if interrupted; None while the healthy times are being learned.

        Excesses of calls that overlap are counted once: wait and computation together take at most the iteration's
        time.
        """
        if self.compute_ns is None or self.healthy is None:
            return None
        excess = self.excess
        if excess is None:
            return 0
        return min(int(np.maximum(excess.inside_ns, 0.0).sum()), max(0, self.iteration_ns - self.compute_ns))


def newest_known(values: Iterable[int | None]) -> list[int]:
    """Return the newest values up to the first that is unknown, oldest first."""
    known: list[int] = []
    for value in values:
        if value is None:
            known.clear()
        else:
            known.append(value)
    return known


def median_micro_ns(newest: Iterable[Measured]) -> int | None:
    """Return the time of a micro-batch [ns] by the calls of these iterations; None where they do not show it."""
    known = [each.micro_ns for each in newest if each.micro_ns is not None]
    found = round(statistics.median(known)) if known else 0
    return found if found >= _LEAST_MICRO_NS else None


class Measurer:
    """A rank's healthy durations, and what bytes make of its times."""

    def __init__(self, shares: Shares | None = None, time: Slope | None = None, compute: Slope | None = None) -> None:
        """Begin with the slopes that an earlier agent learned. ``shares``: of micro-batches, kept by the caller."""
        self._shares = shares or Shares()
        self.waits = WaitBaseline()
        self._time = ExpectedTime(time)
        self._compute = ExpectedTime(compute, least=LEAST_SAMPLES)
        self._collected: list[Iteration] = []  # before it is known what their bytes make of their times

    @property
    def slopes(self) -> tuple[Slope | None, Slope | None]:
        """Return the slopes of the iteration time and of the computation; None until they are learned."""
        return self._time.slope, self._compute.slope

    def is_settled(self, iteration: Iteration) -> bool:
        """Check whether an iteration of as many bytes can be judged by its time."""
        return iteration.sizes is None or self._time.knows(iteration.sizes)

    def explains_compute(self, iteration: Iteration) -> bool:
        """Check whether it is known what the bytes of an iteration make of its computation."""
        return iteration.sizes is None or self._compute.slope is not None

    def settle(self, iteration: Iteration) -> list[Measured]:
        """Collect an iteration that cannot be judged; where it was the last to be collected, return all that can now.

        Iterations of sizes that are not known count if as many come within twice as many iterations. Some of them may
        be slow: the slope is robust against less than half.
        """
        self._collected.append(iteration)
        self._collected = [one for one in self._collected if iteration.number - one.number < 2 * SAMPLES]
        if len(self._collected) < SAMPLES:
            return []
        # Learn from all before any is measured: a slope from the first few would judge the others wrongly.
        collected, self._collected = self._collected, []
        for known in collected:
            self._learn_sizes(known)
        return [self.measure(known) for known in collected]

    def measure(self, iteration: Iteration, found: Attributed | None = None) -> Measured:
        """Attribute an iteration's time; ``found``: what ``attribute`` returns of it."""
        own, times = attribute([iteration])[0] if found is None else found
        healthy = self.waits.healthy
        whole_ns, load = iteration.duration_ns, 1.0
        # Times are reported as the usual bytes would have taken them, so that more work is not taken for slowness.
        if iteration.sizes is not None:
            whole_ns = self._time.corrected_ns(iteration.sizes, iteration.duration_ns)
            times = None if times is None else times * (whole_ns / max(1, iteration.duration_ns))
            own = None if own is None else min(whole_ns, self._compute.corrected_ns(iteration.sizes, own))
            load = self._compute.load(iteration.sizes)
        micro_ns = self._shares.micro_ns(iteration)
        own = self._shares.evened_ns(own, iteration.end_ns, micro_ns)
        return Measured(iteration, whole_ns, own, times, healthy, load, self._shares.moved(iteration.end_ns), micro_ns)

    def learn(self, healthy: Measured) -> None:
        """Learn from a healthy, uninterrupted iteration."""
        self._learn_sizes(healthy.iteration)
        self.waits.learn(healthy.times)

    def _learn_sizes(self, healthy: Iteration) -> None:
        if healthy.sizes is None:
            return
        self._time.learn(healthy.number, healthy.sizes, healthy.duration_ns)
        self._compute.usual = self._time.usual
        if (own := compute_ns(healthy)) is not None:
            self._compute.learn(healthy.number, healthy.sizes, own)
