"""Make series of what ranks use of a limited resource: leaks, and ten kinds of healthy jobs.

Each series is a share of the limit over seconds, sampled each ``SAMPLE_SECONDS``, and seeded by its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
SAMPLE_SECONDS: Final = 5.0  # agents read each second: these medians are of fewer samples, and noisier
MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR


class Leak(NamedTuple):
    """A leak that begins after ``healthy`` seconds and reaches the limit ``lasts`` seconds later."""

    name: str
    lasts: float
    noise: float = 0.005  # standard deviation, share of the limit
    healthy: float = 0.0
    begin: float = 0.3  # the level before it
    tooth: float = 0.0  # height of a saw tooth of garbage collection on top of it
    checkpoints: float = 0.0  # what a checkpoint adds for 40 s, each ten minutes
    steps: int = 0  # the leak comes in so many jumps; 0: evenly


LEAKS: Final = (
    Leak("ten minutes", 10 * MINUTE),
    Leak("an hour", HOUR),
    Leak("an hour, noise 2 %", HOUR, noise=0.02),
    Leak("an hour, after two healthy hours", HOUR, healthy=2 * HOUR),
    Leak("an hour, with garbage collections", HOUR, tooth=0.05),
    Leak("six hours", 6 * HOUR),
    Leak("six hours, with checkpoints", 6 * HOUR, checkpoints=0.1),
    Leak("six hours, from 70 %", 6 * HOUR, begin=0.7),
    Leak("twenty hours, after five healthy hours", 20 * HOUR, healthy=5 * HOUR),
    Leak("six hours in 40 jumps", 6 * HOUR, steps=40),
)


def _random(*names: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def leaking(leak: Leak, seed: int) -> tuple[Floats, Floats]:
    """Return the seconds and shares of a leak, up to its limit."""
    random = _random(leak.name, seed)
    seconds = np.arange(0.0, leak.healthy + leak.lasts, SAMPLE_SECONDS)
    grown = np.clip((seconds - leak.healthy) / leak.lasts, 0.0, 1.0)
    if leak.steps:
        grown = np.floor(grown * leak.steps) / leak.steps
    # What comes and goes lies below the line: the limit is reached at the known time.
    phase = random.uniform(0, 1)
    tooth = leak.tooth * ((seconds / (90 * random.uniform(0.8, 1.2)) + phase) % 1.0 - 1.0)
    saving = ((seconds + 600 * phase) % 600 < 40) * leak.checkpoints
    noise = random.normal(0, leak.noise, len(seconds))
    return seconds, leak.begin + (1 - leak.begin) * grown + tooth + saving + noise


def _correlated(random: np.random.Generator, many: int, deviation: float, seconds: float) -> Floats:
    """Return a series that returns to zero with the time constant ``seconds``."""
    keep = float(np.exp(-SAMPLE_SECONDS / seconds))
    pushes = random.normal(0, deviation * np.sqrt(1 - keep * keep), many)
    series = np.empty(many)
    level = 0.0
    for at, push in enumerate(pushes):
        level = keep * level + push
        series[at] = level
    return series


def _flat(t: Floats, random: np.random.Generator) -> Floats:
    return random.uniform(0.2, 0.8) + random.normal(0, 0.01, len(t))


def _garbage(t: Floats, random: np.random.Generator) -> Floats:
    height, period = random.uniform(0.05, 0.2), random.uniform(3, 60) * MINUTE
    return 0.4 + height * ((t / period) % 1.0) + random.normal(0, 0.005, len(t))


def _checkpoints(t: Floats, random: np.random.Generator) -> Floats:
    each, lasts = random.uniform(10, 90) * MINUTE, random.uniform(0.5, 5) * MINUTE
    phase = (t + each / 2) % each
    return 0.4 + 0.25 * np.clip(phase / lasts, 0, 1) * (phase < 1.2 * lasts) + random.normal(0, 0.005, len(t))


def _cache(t: Floats, random: np.random.Generator) -> Floats:
    begin, room, lasts = random.uniform(0.2, 0.5), random.uniform(0.1, 0.4), random.uniform(0.1, 6) * HOUR
    return begin + (1 - begin) * room * np.clip(t / lasts, 0, 1) + random.normal(0, 0.005, len(t))


def _saturating(t: Floats, random: np.random.Generator) -> Floats:
    begin, room, lasts = random.uniform(0.2, 0.5), random.uniform(0.2, 0.5), random.uniform(0.2, 4) * HOUR
    return begin + (1 - begin) * room * (1 - np.exp(-t / lasts)) + random.normal(0, 0.005, len(t))


def _wandering(t: Floats, random: np.random.Generator) -> Floats:
    return 0.6 + _correlated(random, len(t), 0.04, random.uniform(5, 60) * MINUTE)


def _nearly_full(t: Floats, random: np.random.Generator) -> Floats:
    return 0.94 + _correlated(random, len(t), 0.01, 10 * MINUTE) + random.normal(0, 0.004, len(t))


def _jumps(t: Floats, random: np.random.Generator) -> Floats:
    times = np.sort(random.uniform(0, DAY, 3))
    return 0.3 + 0.12 * np.searchsorted(times, t % DAY) + random.normal(0, 0.005, len(t))


def _epochs(t: Floats, random: np.random.Generator) -> Floats:
    period = random.uniform(0.5, 5) * HOUR
    return 0.3 + 0.25 * np.minimum(1.0, 3 * ((t / period) % 1.0)) + random.normal(0, 0.005, len(t))


def _rotated(t: Floats, random: np.random.Generator) -> Floats:
    """Return a disk on which the newest four checkpoints are kept."""
    each = random.uniform(10, 60) * MINUTE
    number, within = np.floor(t / each), t % each
    writing = np.clip(within / (2 * MINUTE), 0, 1) * (within < 3 * MINUTE)
    return 0.3 + 0.055 * (np.minimum(number, 4) + writing) + random.normal(0, 0.002, len(t))


def _shared_disk(t: Floats, random: np.random.Generator) -> Floats:
    """Return the disk of a node that other pods fill by day and a cleaner empties at night."""
    return 0.5 + 0.12 * np.sin(2 * np.pi * t / DAY) + _correlated(random, len(t), 0.01, HOUR)


HEALTHY: Final[dict[str, Callable[[Floats, np.random.Generator], Floats]]] = {
    "flat": _flat,
    "garbage collections": _garbage,
    "checkpoints in memory": _checkpoints,
    "a cache that fills up to 40 % of the room": _cache,
    "an allocator that settles": _saturating,
    "wandering": _wandering,
    "nearly full": _nearly_full,
    "jumps that stay": _jumps,
    "epochs": _epochs,
    "checkpoints on disk, four kept": _rotated,
    "a disk that others use": _shared_disk,
}


def healthy(kind: str, seed: int, seconds: float) -> tuple[Floats, Floats]:
    """Return the seconds and shares of a healthy job of this kind."""
    times = np.arange(0.0, seconds, SAMPLE_SECONDS)
    return times, np.clip(HEALTHY[kind](times, _random(kind, seed)), 0.0, 0.999)


def filling(share: float, lasts: float, seed: int) -> tuple[Floats, Floats]:
    """Return a cache that fills ``share`` of the room in ``lasts`` seconds, and then stays for as long again."""
    random = _random("filling", share, lasts, seed)
    times = np.arange(0.0, 2 * lasts, SAMPLE_SECONDS)
    return times, 0.3 + 0.7 * share * np.clip(times / lasts, 0, 1) + random.normal(0, 0.005, len(times))
