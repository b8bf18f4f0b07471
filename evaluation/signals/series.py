"""Iteration times of jobs that do not exist: healthy series, and sick series with the place of each slowdown.

Each is a function of a seeded generator; times are in seconds, about 1 s an iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
Generator = np.random.Generator

HEALTHY_LENGTHS = (150, 1_000, 5_000)
SICK_LENGTH = 600
ONSET = 300


class Episode(NamedTuple):
    """Slow iterations [``first``, ``last``), 0-based; ``last`` is None where the slowness lasts to the end."""

    first: int
    last: int | None


class Sick(NamedTuple):
    times: Times
    episodes: tuple[Episode, ...]


def noise(rng: Generator, count: int, share: float) -> Times:
    """Draw multiplicative, log-normal noise: [count]."""
    times: Times = np.exp(share * rng.standard_normal(count))
    return times


def _tails(rng: Generator, count: int) -> Times:
    times: Times = np.exp(0.02 * rng.standard_t(3, count))
    return times


def _lasting(rng: Generator, count: int) -> Times:
    """Draw times beside a neighbour that comes and goes: 3 % of noise, of which the next iteration inherits 0.8."""
    innovations = 0.03 * np.sqrt(1 - 0.8**2) * rng.standard_normal(count)
    logs = np.empty(count)
    level = 0.0
    for at in range(count):
        level = 0.8 * level + innovations[at]
        logs[at] = level
    times: Times = np.exp(logs)
    return times


def _drift(rng: Generator, count: int) -> Times:
    phase = rng.uniform(0, 2 * np.pi)
    return noise(rng, count, 0.02) * (1 + 0.05 * np.sin(phase + 2 * np.pi * np.arange(count) / max(count, 1000)))


def _spikes(factor: float) -> Callable[[Generator, int], Times]:
    def series(rng: Generator, count: int) -> Times:
        times: Times = noise(rng, count, 0.02) * np.where(rng.random(count) < 0.02, factor, 1.0)
        return times

    return series


def _every(interval: int, extra: float, width: int = 1) -> Callable[[Generator, int], Times]:
    def series(rng: Generator, count: int) -> Times:
        numbers = np.arange(count) + int(rng.integers(interval))
        times: Times = noise(rng, count, 0.02) + np.where(numbers % interval < width, extra, 0.0)
        return times

    return series


def _warm_up(rng: Generator, count: int) -> Times:
    """Draw times with a warm-up (compilation and caches): 30 iterations, from 3 × down to normal."""
    numbers = np.arange(count)
    times: Times = noise(rng, count, 0.02) * (1 + np.where(numbers < 30, 2.0 * (1 - numbers / 30), 0.0))
    return times


def _flat_warm_up(rng: Generator, count: int) -> Times:
    times: Times = noise(rng, count, 0.02) * np.where(np.arange(count) < 30, 1.6, 1.0)
    return times


def _collections(rng: Generator, count: int) -> Times:
    """Draw times with garbage collection: one iteration in 15 is 10 … 60 % longer."""
    times: Times = noise(rng, count, 0.02) * (
        1 + np.where(rng.random(count) < 1 / 15, rng.uniform(0.1, 0.6, count), 0.0)
    )
    return times


HEALTHY: dict[str, Callable[[Generator, int], Times]] = {
    "noise 2 %": lambda rng, count: noise(rng, count, 0.02),
    "noise 5 %": lambda rng, count: noise(rng, count, 0.05),
    "noise 10 %": lambda rng, count: noise(rng, count, 0.10),
    "heavy tails (t, 3 degrees of freedom)": _tails,
    "noise that lasts (3 %, correlation 0.8)": _lasting,
    "slow drift ±5 %": _drift,
    "spikes 1.5 ×, 2 %": _spikes(1.5),
    "spikes 3 ×, 2 %": _spikes(3.0),
    "spikes 10 ×, 2 %": _spikes(10.0),
    "checkpoint stall every 100 (+5 s)": _every(100, 5.0),
    "evaluation every 200 (3 long iterations)": _every(200, 2.0, 3),
    "garbage collection, 1 in 15": _collections,
    "30 warm-up iterations, 3 × → 1 ×": _warm_up,
    "30 warm-up iterations, 1.6 ×": _flat_warm_up,
}


def _slowed(rng: Generator, shares: Times, episodes: tuple[Episode, ...], share_of_noise: float = 0.02) -> Sick:
    return Sick(noise(rng, shares.shape[0], share_of_noise) * (1 + shares), episodes)


def step(extra: float, first: int = ONSET, last: int | None = None, noise_share: float = 0.02) -> Callable[..., Sick]:
    """Add ``extra`` from iteration ``first`` to ``last``; a negative ``first`` counts from the end."""

    def series(rng: Generator) -> Sick:
        begin = first if first >= 0 else SICK_LENGTH + first
        shares = np.zeros(SICK_LENGTH)
        shares[begin:last] = extra
        return _slowed(rng, shares, (Episode(begin, last),), noise_share)

    return series


def _ramp(rng: Generator) -> Sick:
    shares = np.clip((np.arange(SICK_LENGTH) - ONSET) / 100, 0, 1) * 0.3
    return _slowed(rng, shares, (Episode(ONSET, None),))


def _stairs(rng: Generator) -> Sick:
    numbers = np.arange(SICK_LENGTH)
    shares = sum(np.where(numbers >= begin, 0.08, 0.0) for begin in (200, 300, 400))
    return _slowed(rng, np.asarray(shares), (Episode(200, None),))


def _two(rng: Generator) -> Sick:
    shares = np.zeros(SICK_LENGTH)
    shares[150:270] = 0.3
    shares[400:520] = 0.5
    return _slowed(rng, shares, (Episode(150, 270), Episode(400, 520)))


def _ladder(width: float) -> Callable[[Generator], Sick]:
    """Make the series of a mixture of experts: three levels, another every 20 iterations; then all is 30 % slower."""

    def series(rng: Generator) -> Sick:
        levels = np.repeat(rng.choice([1 - width, 1.0, 1 + width], SICK_LENGTH // 20), 20)
        times = noise(rng, SICK_LENGTH, 0.02) * levels
        times[ONSET:] *= 1.3
        return Sick(times, (Episode(ONSET, None),))

    return series


def _sick() -> dict[str, Callable[[Generator], Sick]]:
    cases: dict[str, Callable[[Generator], Sick]] = {}
    steps = [("+10.5 %", 0.105, 0.02), ("+12 %", 0.12, 0.02), ("+12 %, noise 5 %", 0.12, 0.05)]
    steps += [("+30 %", 0.3, 0.02), ("+100 %", 1.0, 0.02)]
    for place, first in (("in the middle", ONSET), ("in the last 50", -50), ("in the last 20", -20)):
        for name, extra, share in steps:
            cases[f"{name} {place}"] = step(extra, first, noise_share=share)
    for width in (20, 60):
        cases[f"+30 % for {width}"] = step(0.3, ONSET, ONSET + width)
    cases["+12 % for 60"] = step(0.12, ONSET, ONSET + 60)
    cases["ramp to +30 % over 100"] = _ramp
    cases["three stairs of +8 %"] = _stairs
    cases["two episodes of 120, +30 % and +50 %"] = _two
    cases["ladder-shaped noise ±4 % (MoE), +30 %"] = _ladder(0.04)
    cases["ladder-shaped noise ±6 % (its own steps are +12.8 %), +30 %"] = _ladder(0.06)
    return cases


SICK = _sick()

RAMP_BEGIN = 1000
RAMP_NOISES = (0.015, 0.04)


def _long_ramp(extra: float, width: int, begin: int = RAMP_BEGIN) -> Times:
    """Return the factors of a ramp that ends with the series."""
    factors: Times = 1 + extra * np.clip((np.arange(begin + width) - begin) / width, 0, 1)
    return factors


def _long_stairs(extra: float, width: int, steps: int) -> Times:
    numbers = np.arange(RAMP_BEGIN + steps * width)
    factors: Times = (1 + extra) ** np.maximum((numbers - RAMP_BEGIN) // width + 1, 0)
    return factors


RAMPS: dict[str, Times] = {
    "+50 % over 750": _long_ramp(0.5, 750),
    "+50 % over 2000": _long_ramp(0.5, 2000),
    "+50 % over 2000 from the first iteration on": _long_ramp(0.5, 2000, 0),
    "+100 % over 5000": _long_ramp(1.0, 5000),
    "+30 % over 6000": _long_ramp(0.3, 6000),
    "stairs of +8 % each 300": _long_stairs(0.08, 300, 5),
    "stairs of +4 % each 600": _long_stairs(0.04, 600, 6),
}
"""Slow degradation: the factors of each iteration, without noise."""
