"""The pace of the operator's writes.

A job's turn has one write under way at a time. So among the jobs that write, first come, first served gives each of
them the same share: a job that makes a thousand pods waits once for each pod, and a job that has to write one line
waits once.

What was decided must be durable soon, however many pods are being made at that time, and an Event must not hold up what
it announces. Intents and Events therefore have lanes of their own.
"""

from __future__ import annotations

from typing import Literal, get_args

from falcon_operator.clock import Clock

Lane = Literal["Intent", "Event", "Other"]

WRITES_PER_SECOND = 100.0
BURST = 200


class Pace:
    """A bound on writes per second. ``burst`` writes may follow each other at once after a time without any."""

    def __init__(self, clock: Clock, per_second: float = WRITES_PER_SECOND, burst: int = BURST) -> None:
        self._clock = clock
        self._each_seconds = 1.0 / per_second
        self._burst_seconds = burst / per_second
        self._taken_until = float("-inf")  # monotonic: as if each write took its share of a second

    def wait_seconds(self) -> float:
        """Take the next turn and return in how many seconds it comes."""
        now = self._clock.monotonic()
        self._taken_until = max(self._taken_until, now) + self._each_seconds
        return max(0.0, self._taken_until - now - self._burst_seconds)


class Paces:
    """A pace for each lane."""

    def __init__(self, clock: Clock) -> None:
        self._lanes: dict[Lane, Pace] = {lane: Pace(clock) for lane in get_args(Lane)}

    def wait_seconds(self, lane: Lane) -> float:
        """Take the lane's next turn and return in how many seconds it comes."""
        return self._lanes[lane].wait_seconds()
