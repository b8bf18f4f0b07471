"""Limit the pace of the operator's writes.

A job's turn has one write under way at a time. So among the jobs that write, first come, first served gives each of
them the same share: a job that makes a thousand pods waits once for each pod, and a job that has to write one line
waits once.

What was decided must be durable soon, however many pods are being made at that time, and an Event must not hold up what
it announces. Intents and Events therefore have lanes of their own.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from falcon_operator.base.ports import Clock

Lane = Literal["Intent", "Event", "Other"]


class Bound(NamedTuple):
    """What may be written: a second, and at once after a time without any."""

    per_second: float
    burst: int


# Small bursts leave the processor to the decisions when many nodes are lost at once: a write takes some 4 ms of it.
BOUNDS: Final[dict[Lane, Bound]] = {"Intent": Bound(100.0, 200), "Event": Bound(50.0, 50), "Other": Bound(100.0, 50)}


class Pace:
    """A bound on the writes of a lane."""

    def __init__(self, clock: Clock, bound: Bound) -> None:
        self._clock = clock
        self._each_seconds = 1.0 / bound.per_second
        self._burst_seconds = bound.burst / bound.per_second
        self._taken_until = float("-inf")  # monotonic: as if each write took its share of a second

    def wait_seconds(self) -> float:
        """Take the next turn and return in how many seconds it comes."""
        now = self._clock.monotonic()
        self._taken_until = max(self._taken_until, now) + self._each_seconds
        return max(0.0, self._taken_until - now - self._burst_seconds)


class Paces:
    """A pace for each lane."""

    def __init__(self, clock: Clock) -> None:
        self._lanes: dict[Lane, Pace] = {lane: Pace(clock, bound) for lane, bound in BOUNDS.items()}

    def wait_seconds(self, lane: Lane) -> float:
        """Take the lane's next turn and return in how many seconds it comes."""
        return self._lanes[lane].wait_seconds()
