"""Divide workers between jobs when their number changes.

Only the simulator plans with this; ``FailureRate`` serves in production.

A worker fails or joins, a job ends or arrives (Unicron §5, eq. 2–5); the plan is exact. A job's weighted achieved
FLOP/s is F(t, x) = w(t) · T(t, x) at the worker counts it can run with, and 0 when it waits (eq. 2). A plan maximises Σ
G(t, x') with

    G(t, x') = F(t, x') · D_running(n') − F(t, x) · 1(t, x → x') · D_transition          (eq. 3)

where the indicator is 1 if the count changes *or a worker of the job failed* (eq. 4: it stands still all the same). The
dynamic program S(i, j) = max_k S(i−1, j−k) + G(t_i, k) (eq. 5) runs over the counts that are feasible for each job
alone, in units of their common divisor (whole nodes, as a rule), one vector operation for each job and count.

``capacity_table`` plans ahead for each event that may follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.planning.capacity.capacity_prune import Options, Values, prune
from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError

PRUNE_ABOVE: Final = 5_000_000  # additions of the dynamic program: below, pruning costs more than it saves
PRIOR_FAILURES: Final = 1.0  # a cluster that has not failed yet is not known to be perfect


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the planner sees it.

    ``throughput`` maps each feasible worker count (x ≥ 1 that satisfies T_necessary, the upper bound and a layout) to
    T(t, x) [FLOP/s]; zero workers (the job waits) is always possible and achieves nothing. ``workers`` is x, what the
    job holds now; a count of which T is unknown (not feasible any more) achieves 0.
    """

    name: str
    throughput: dict[int, float]
    weight: float = 1.0
    workers: int = 0

    def waf(self, workers: int) -> float:
        """Compute F(t, x) of eq. 2 [weighted FLOP/s]."""
        return self.weight * self.throughput.get(workers, 0.0)


class Horizon(msgspec.Struct, frozen=True, kw_only=True):
    """The time for which a plan is expected to hold, and the price of a change [s]."""

    running_seconds: float
    transition_seconds: float


class FailureRate(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of workers seen so far, over the worker-seconds they were seen in."""

    failures: int
    worker_seconds: float
    prior_failures: float = PRIOR_FAILURES
    prior_worker_seconds: float = 30 * 86_400.0  # one failure in a worker's month, until measured otherwise

    def running_seconds(self, workers: int, *, at_most: float = math.inf) -> float:
        """Return D_running(n'), the expected time until the first of ``workers`` fails [s], at most ``at_most``.

        Failures are taken as Poisson with a Gamma prior, so that no failure yet is a long time and not an infinite one.
        """
        seen = self.worker_seconds + self.prior_worker_seconds
        if not (seen > 0 and self.failures + self.prior_failures > 0):
            raise InvalidInputError("a failure rate needs worker-seconds and a prior or a failure")
        return min(at_most, seen / ((self.failures + self.prior_failures) * max(1, workers)))


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """x' of each job by name, and what it is worth."""

    workers: dict[str, int]
    value: float  # Σ G, eq. 3 [weighted FLOP]
    waf: float  # Σ F(t, x') [weighted FLOP/s]
    changed: tuple[str, ...]  # jobs that go through a transition (eq. 4), in the order of the input


def reward(job: Job, workers: int, horizon: Horizon, *, faulted: bool = False) -> float:
    """Compute G(t, x') of eq. 3."""
    moved = faulted or workers != job.workers
    return job.waf(workers) * horizon.running_seconds - job.waf(job.workers) * moved * horizon.transition_seconds


def plan(jobs: Sequence[Job], workers: int, horizon: Horizon, *, faulted: Iterable[str] = ()) -> Assignment:
    """Return the assignment of ``workers`` that maximises Σ G; jobs in ``faulted`` lost a worker. Exact.

    Among plans of equal value a job keeps its workers where it can, and waits with fewer rather than more.
    Raises InvalidInputError or InvalidSpeedError.
    """
    check(jobs, workers, horizon)
    lost = frozenset(faulted)
    if unknown := lost - {job.name for job in jobs}:
        raise InvalidInputError(f"unknown jobs: {', '.join(sorted(unknown))}")
    unit = common_unit(jobs)
    options = [options_of(job, horizon, unit, faulted=job.name in lost) for job in jobs]
    if sum(len(choices.units) for choices in options) * (workers // unit) > PRUNE_ABOVE:
        options = prune(options, workers // unit)
    layers = prefixes(options, workers // unit)
    return assignment(jobs, trace(options, layers, workers // unit), unit, horizon, lost)


# -- the dynamic program -----------------------------------------------------------------------------------------------


def check(jobs: Sequence[Job], workers: int, horizon: Horizon) -> None:
    """Raise InvalidInputError or InvalidSpeedError, by name, for input that has no meaning."""
    if workers < 0:
        raise InvalidInputError(f"{workers} workers")
    if not (0 < horizon.running_seconds < math.inf and 0 <= horizon.transition_seconds < math.inf):
        raise InvalidInputError("the horizon must be positive and finite, the transition at least zero")
    if len({job.name for job in jobs}) != len(jobs):
        raise InvalidInputError("two jobs have the same name")
    for job in jobs:
        if not (0 <= job.weight < math.inf) or job.workers < 0:
            raise InvalidInputError(f"{job.name}: weight {job.weight}, {job.workers} workers")
        counts, speeds = curve(job)
        if len(counts) and counts[0] < 1:
            raise InvalidInputError(f"{job.name}: {counts[0]} workers is not a size")
        if not np.all(sound := (speeds > 0) & (speeds < math.inf)):
            place = int(np.argmin(sound))
            raise InvalidSpeedError(f"{job.name}: {speeds[place]} FLOP/s with {counts[place]} workers")


def curve(job: Job) -> tuple[npt.NDArray[np.int64], Values]:
    """Return the feasible counts, ascending, and T at each."""
    size = len(job.throughput)
    counts = np.fromiter(job.throughput.keys(), np.int64, size)
    speeds = np.fromiter(job.throughput.values(), np.float64, size)
    order = np.argsort(counts, kind="stable")
    return counts[order], speeds[order]


def common_unit(jobs: Iterable[Job]) -> int:
    """Return the greatest common divisor of all feasible counts.

    The program runs over multiples of it, and loses nothing.
    """
    return int(np.gcd.reduce([0, *(np.gcd.reduce(curve(job)[0], initial=0) for job in jobs)])) or 1


def options_of(job: Job, horizon: Horizon, unit: int, *, faulted: bool = False) -> Options:
    """Return the choices of one job, zero first."""
    counts, speeds = curve(job)
    counts = np.concatenate(([0], counts))
    moved = np.ones(len(counts), dtype=np.bool_) if faulted else counts != job.workers
    running = job.weight * np.concatenate(([0.0], speeds)) * horizon.running_seconds
    rewards = running - moved * (job.waf(job.workers) * horizon.transition_seconds)
    held = job.workers == 0 or job.workers in job.throughput
    return Options(counts // unit, rewards, job.workers // unit if held else -1)


def step(before: Values, options: Options) -> Values:
    """Add a job to the program: S(i, j) = max_k S(i−1, j−k) + G(k), for all j at once."""
    after: Values = before + options.rewards[0]
    buffer = np.empty_like(after)
    size = len(before)
    for units, gain in zip(options.units[1:].tolist(), options.rewards[1:].tolist(), strict=True):
        if units >= size:
            break
        shifted = buffer[: size - units]
        np.add(before[: size - units], gain, out=shifted)
        np.maximum(after[units:], shifted, out=after[units:])
    return after


def prefixes(options: Sequence[Options], units: int) -> list[Values]:
    """Compute S(0), S(1), …, S(m), each [units + 1]: the value of the first i jobs with at most j units."""
    layers = [np.zeros(units + 1)]
    for choices in options:
        layers.append(step(layers[-1], choices))
    return layers


def choice(before: Values, options: Options, at: int) -> int:
    """Choose the job's units in an optimal plan of S(i, at): what it holds now if that is optimal, else the fewest."""
    reachable = int(np.searchsorted(options.units, at, side="right"))
    values = before[at - options.units[:reachable]] + options.rewards[:reachable]
    best = values.max()
    if options.current >= 0:
        place = int(np.searchsorted(options.units[:reachable], options.current))
        if place < reachable and values[place] == best:
            return options.current
    return int(options.units[int(values.argmax())])


def trace(options: Sequence[Options], layers: Sequence[Values], units: int) -> list[int]:
    """Return the units of each job in an optimal plan, from the last job back to the first."""
    chosen = []
    for index in range(len(options) - 1, -1, -1):
        chosen.append(choice(layers[index], options[index], units))
        units -= chosen[-1]
    return chosen[::-1]


def assignment(
    jobs: Sequence[Job], units: Sequence[int], unit: int, horizon: Horizon, faulted: frozenset[str]
) -> Assignment:
    """Make a plan in workers, valued by eq. 3 itself and not by the program's running sums."""
    counts = [share * unit for share in units]
    return Assignment(
        workers={job.name: count for job, count in zip(jobs, counts, strict=True)},
        value=math.fsum(
            reward(job, count, horizon, faulted=job.name in faulted) for job, count in zip(jobs, counts, strict=True)
        ),
        waf=math.fsum(job.waf(count) for job, count in zip(jobs, counts, strict=True)),
        changed=tuple(
            job.name for job, count in zip(jobs, counts, strict=True) if count != job.workers or job.name in faulted
        ),
    )
