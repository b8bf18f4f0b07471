"""Compare the healthy level of a generation with earlier generations, to find a job that is slow from its start.

A series that is slow from its first iteration has no change to find. Its healthy level can be compared with that of
earlier generations that did the same work: as many ranks, as many calls an iteration and as many bytes. Only settled
levels are compared, because every start has a warm-up. Without an earlier generation the level alone proves nothing.
Then ranks are compared with their peers (the median rule), and nodes with the others' results before the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from falcon_core.signals.changepoint.reference import DEVIATIONS, NOISE_FLOOR
from falcon_core.wire.reporting.messages import SIZE_CLASSES

SETTLED_ITERATIONS = 50


class Level(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One generation's healthy iteration time."""

    iteration_ns: int
    noise: float  # standard deviation of the time's logarithm
    iterations: int  # that taught it
    world_size: int
    period_calls: int
    size_class: int = (
        -1
    )  # of the bytes of an iteration (``wire.reporting.messages``); -1: not known, or they depend on the data
    generation: int = 0


def slowdown_since_earlier(now: Level, earlier: Sequence[Level], *, verify_percent: int) -> float | None:
    """Return the iteration time ÷ that of the fastest comparable earlier generation.

    None where it is less than ``verify_percent`` longer, where noise could explain it, or where nothing is comparable.
    """
    comparable = [level for level in earlier if same_work(level, now) and level.iterations >= SETTLED_ITERATIONS]
    if not comparable or now.iterations < SETTLED_ITERATIONS:
        return None
    fastest = min(comparable, key=lambda level: level.iteration_ns)
    rise = math.log(now.iteration_ns / fastest.iteration_ns)
    noise = math.hypot(_uncertainty(now), _uncertainty(fastest))
    if rise < math.log1p(verify_percent / 100) or rise < DEVIATIONS * noise:
        return None
    return math.exp(rise)


def same_work(level: Level, other: Level) -> bool:
    """Check whether iterations of the two levels do the same work, as far as their calls and bytes show it."""
    if level.world_size != other.world_size or level.period_calls != other.period_calls:
        return False
    return same_bytes(level.size_class, other.size_class)


def same_bytes(size_class: int, other: int) -> bool:
    """Check whether iterations of these two classes of bytes (``Level.size_class``) have as many bytes."""
    if size_class < 0 or other < 0:
        return size_class == other
    apart = abs(size_class - other)
    return min(apart, SIZE_CLASSES - apart) <= 1


def _uncertainty(level: Level) -> float:
    return max(level.noise, NOISE_FLOOR) / math.sqrt(level.iterations)
