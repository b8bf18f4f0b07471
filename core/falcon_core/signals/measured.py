"""Iterations with what is the rank's own in them: its computation and its waits, at the usual number of bytes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from falcon_core.signals.attribution import Excess, WaitBaseline, compute_ns, inside_outside
from falcon_core.signals.calls import Floats
from falcon_core.signals.expected import SAMPLES, ExpectedTime, Slope
from falcon_core.signals.iteration import Iteration


class Measured(msgspec.Struct, frozen=True):
    """An iteration with what is the rank's own in it, ns; None where that is not known.

    Where sizes vary, all but ``iteration`` is what the usual number of bytes would have taken (``expected``).
    """

    iteration: Iteration
    iteration_ns: int
    compute_ns: int | None
    wait_ns: int | None
    times: Floats | None = None  # of the calls and gaps, by position
    excess: Excess | None = None
    load: float = 1.0  # computation that the iteration's bytes explain ÷ that of the usual bytes


def newest_known(values: Iterable[int | None]) -> list[int]:
    """Return the newest values up to the first that is unknown, oldest first."""
    known: list[int] = []
    for value in values:
        if value is None:
            known.clear()
        else:
            known.append(value)
    return known


class Measurer:
    """A rank's healthy durations, and what bytes make of its times."""

    def __init__(self, time: Slope | None = None, compute: Slope | None = None) -> None:
        """Begin with the slopes that an earlier agent learned."""
        self.waits = WaitBaseline()
        self._time = ExpectedTime(time)
        self._compute = ExpectedTime(compute)
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
        collected, self._collected = self._collected, []
        for known in collected:
            self._learn_sizes(known)
        return [self.measure(known) for known in collected]

    def measure(self, iteration: Iteration) -> Measured:
        """Attribute an iteration's time."""
        own, times = compute_ns(iteration), inside_outside(iteration)
        whole_ns = self._time.corrected_ns(iteration.sizes, iteration.duration_ns)
        if iteration.sizes is not None:
            times = None if times is None else times * (whole_ns / max(1, iteration.duration_ns))
            own = None if own is None else min(whole_ns, self._compute.corrected_ns(iteration.sizes, own))
        excess = self.waits.excess(iteration, times)
        wait_ns = self.waits.wait_ns(whole_ns, own, excess)
        load = 1.0 if iteration.sizes is None else self._compute.load(iteration.sizes)
        return Measured(iteration, whole_ns, own, wait_ns, times, excess, load)

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
