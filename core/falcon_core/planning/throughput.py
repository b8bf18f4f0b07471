"""Learn T(t, x), the throughput of a job with x workers, from its iterations.

Only tests call it yet. Each figure is marked as measured or estimated. Unicron takes T(t, x) from a calibration run
(§5.1). Here it is learned while the job trains: every iteration time that was measured with x workers gives FLOPs of an
iteration ÷ its time. Between two measured sizes T is interpolated as a power law (a straight line in log-log: what
strong scaling looks like locally). Beyond them it is extrapolated with the exponent of the nearest pair, or
``EXPONENT`` if only one size is known. An exponent is held between 0 and 1: more workers are no slower, and no more
than proportionally faster. The same two assumptions give the range of an estimate. A planner can take the middle, or be
careful and take the lower end.

A size's layout is the fastest of those measured there.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from falcon_core.planning.errors import InfeasibleError, InvalidInputError, InvalidSpeedError

EXPONENT: Final = 0.9  # of T over x where only one size is known
KEPT: Final = 32  # measurements kept for each size and layout: conditions drift


class Basis(enum.StrEnum):
    """The source of a figure."""

    MEASURED = "Measured"
    INTERPOLATED = "Interpolated"
    EXTRAPOLATED = "Extrapolated"


class Measured(msgspec.Struct, frozen=True):
    """Healthy iteration times [s] of one layout with one number of workers, oldest first."""

    workers: int
    layout: str
    iteration_seconds: tuple[float, ...]

    @property
    def typical_seconds(self) -> float:
        return statistics.median(self.iteration_seconds)


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """T(t, x) [FLOP/s]; ``low`` and ``high`` bound it: by the spread of what was measured, or by monotone scaling."""

    flops_per_second: float
    low: float
    high: float
    basis: Basis
    layout: str | None = None  # of the measured size; None for a guess


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """The knowledge of one job's throughput. Frozen: ``observe`` returns the next state."""

    flops_per_iteration: float
    measured: tuple[Measured, ...] = ()

    def observe(self, workers: int, iteration_seconds: float, layout: str = "") -> Throughput:
        """Add one healthy iteration. Raises InvalidInputError or InvalidSpeedError."""
        if workers < 1:
            raise InvalidInputError(f"an iteration with {workers} workers")
        if not (0 < iteration_seconds < math.inf):
            raise InvalidSpeedError(f"an iteration of {iteration_seconds} s")
        known = {(entry.workers, entry.layout): entry for entry in self.measured}
        before = known.get((workers, layout), Measured(workers, layout, ()))
        known[workers, layout] = Measured(workers, layout, (*before.iteration_seconds, iteration_seconds)[-KEPT:])
        return Throughput(flops_per_iteration=self.flops_per_iteration, measured=tuple(known.values()))

    def best(self) -> dict[int, Measured]:
        """Return the fastest layout of each measured size, by size."""
        fastest: dict[int, Measured] = {}
        for entry in sorted(self.measured, key=lambda entry: (entry.workers, entry.typical_seconds)):
            fastest.setdefault(entry.workers, entry)
        return fastest

    def estimate(self, workers: int) -> Estimate:
        """Estimate T(t, x). Raises InvalidInputError for no worker, and InfeasibleError while nothing was measured."""
        if workers < 1:
            raise InvalidInputError(f"the throughput of {workers} workers")
        if not (0 < self.flops_per_iteration < math.inf):
            raise InvalidSpeedError(f"{self.flops_per_iteration} FLOPs an iteration")
        return _estimate(self.flops_per_iteration, self.best(), workers)

    def curve(self, sizes: Iterable[int], *, careful: bool = False) -> dict[int, float]:
        """Return T over the feasible sizes, as ``capacity.Job`` takes it; ``careful`` takes the lower end of guesses.

        Raises as ``estimate``.
        """
        if not (0 < self.flops_per_iteration < math.inf):
            raise InvalidSpeedError(f"{self.flops_per_iteration} FLOPs an iteration")
        best, curve = self.best(), {}
        for size in sizes:
            found = _estimate(self.flops_per_iteration, best, size)
            curve[size] = found.low if careful and found.basis is not Basis.MEASURED else found.flops_per_second
        return curve


def feasible_sizes(
    workers: int, *, multiple_of: int = 1, least: int = 1, most: int | None = None, microbatches: int | None = None
) -> list[int]:
    """List the worker counts that a job can run with, of ``workers`` at most.

    They are whole model replicas of ``multiple_of`` workers (tensor × context × pipeline), within the job's bounds, and
    no more replicas than the global batch has micro-batches.

    Raises InfeasibleError where none is left.
    """
    if multiple_of < 1 or least < 0:
        raise InvalidInputError(f"sizes that are multiples of {multiple_of}, at least {least}")
    top = workers if most is None else min(workers, most)
    if microbatches is not None:
        top = min(top, microbatches * multiple_of)
    first = -(-max(1, least) // multiple_of) * multiple_of
    sizes = list(range(first, top + 1, multiple_of))
    if not sizes:
        raise InfeasibleError(f"no multiple of {multiple_of} lies between {max(1, least)} and {top} workers")
    return sizes


def _estimate(flops: float, best: Mapping[int, Measured], workers: int) -> Estimate:
    if not best:
        raise InfeasibleError("nothing was measured yet")
    # What was measured at this size needs no model.
    if (here := best.get(workers)) is not None:
        return Estimate(
            flops_per_second=flops / here.typical_seconds,
            low=flops / max(here.iteration_seconds),
            high=flops / min(here.iteration_seconds),
            basis=Basis.MEASURED,
            layout=here.layout,
        )
    speed = {size: flops / entry.typical_seconds for size, entry in best.items()}
    below = [size for size in sorted(speed) if size < workers]
    above = [size for size in sorted(speed) if size > workers]
    middle = _scaled(speed, below, above, workers)
    # no slower than any smaller size and no faster than any larger; never more than proportional, either way
    low = max([speed[size] for size in below[-1:]] + [speed[size] * workers / size for size in above[:1]])
    high = min([speed[size] * workers / size for size in below[-1:]] + [speed[size] for size in above[:1]])
    return Estimate(
        flops_per_second=middle,
        low=min(low, middle, high),  # measurements may contradict the two assumptions: the range then holds all three
        high=max(low, middle, high),
        basis=Basis.INTERPOLATED if below and above else Basis.EXTRAPOLATED,
    )


def _scaled(speed: Mapping[int, float], below: list[int], above: list[int], workers: int) -> float:
    """Scale from the nearest measured sizes, ``below`` and ``above`` (ascending), as a power law."""
    if below and above:
        small, large = below[-1], above[0]
        exponent = _exponent(speed, small, large)
        return float(speed[small] * (workers / small) ** exponent)
    near = below[-2:] if below else above[:2]
    anchor = near[-1] if below else near[0]
    exponent = _exponent(speed, *near) if len(near) == 2 else EXPONENT
    return float(speed[anchor] * (workers / anchor) ** exponent)


def _exponent(speed: Mapping[int, float], small: int, large: int) -> float:
    slope = math.log(speed[large] / speed[small]) / math.log(large / small)
    return min(1.0, max(0.0, slope))
