"""Compute how many micro-batches each data-parallel group gets (strategy S2).

The plan is exact (FALCON §5.3, eq. 1). Group i needs ``fixed_i + m_i · t_i`` seconds for m_i micro-batches (``fixed``
holds what does not depend on their number: the filling of a pipeline, work that is under way). The iteration takes as
long as the slowest group, so we minimise max_i over integers m_i ≥ 1 with Σ m_i = M, and m_i ≤ u_i where memory bounds
it.

Handing out one micro-batch after the other, always to the group that would finish it first, is optimal (an exchange
argument: the finish times of the M micro-batches that greedy takes are the M smallest). Greedy alone takes M steps;
we jump close to its end by bisecting the iteration time T (at T, group i can finish ⌊(T − fixed_i)/t_i⌋) and let greedy
take the last few steps, so floats decide only where to jump, never what is optimal. Published solvers need half a
minute for 512 groups.

Noise must not reshuffle the work: a plan in force stays unless a new one gains more than ``min_gain``, and of all
optimal plans, that which moves the fewest micro-batches is chosen. Gradients stay those of the whole batch when each
group's *mean* gradient counts with the weight m_i/M.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.planning.errors import (
    InfeasibleError,
    InvalidInputError,
    InvalidSpeedError,
    SingleGroupError,
    TooFewMicrobatchesError,
)

MIN_GAIN: Final = 0.03  # a new plan must shorten the iteration by this share, or the plan in force stays
_GREEDY_STEPS: Final = 64  # bisect until so few micro-batches are left to hand out
_BISECTIONS: Final = 60

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


class MicrobatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-batches per group, in the order of the input, and what the iteration should take with them."""

    counts: tuple[int, ...]
    seconds: float  # predicted time of the slowest group with ``counts``
    best_seconds: float  # of an optimal plan: a lower bound; equals ``seconds`` unless the plan in force was kept
    current_seconds: float | None = None  # of the plan in force, at today's speeds; None where it is impossible
    kept: bool = False  # hysteresis: the plan in force stays
    moved: int = 0  # micro-batches that change their group

    @property
    def weights(self) -> tuple[float, ...]:
        """Return m_i/M: with these, the weighted sum of the groups' mean gradients is the mean over the whole batch."""
        total = sum(self.counts)
        return tuple(count / total for count in self.counts)

    @property
    def gap(self) -> float:
        """Return the excess of the predicted time over the optimum, as a share; bounded by ``min_gain``."""
        return self.seconds / self.best_seconds - 1.0


def predict(
    counts: Sequence[int], seconds_per_microbatch: Sequence[float], fixed_seconds: Sequence[float] | None = None
) -> float:
    """Return the iteration's time [s] with these counts: that of the slowest group.

    Raises InvalidInputError (lengths) or InvalidSpeedError.
    """
    times, fixed = _speeds(seconds_per_microbatch, fixed_seconds)
    if len(counts) != len(times):
        raise InvalidInputError(f"{len(counts)} counts for {len(times)} groups")
    return float(np.max(fixed + np.asarray(counts, dtype=np.int64) * times))


def of_pipeline(stage_seconds: Sequence[float]) -> tuple[float, float]:
    """Return the seconds for each micro-batch, and fixed seconds, of a group that is a 1F1B pipeline of these stages.

    m micro-batches take Σ_s t_s + (m − 1) · max_s t_s. Raises InvalidInputError or InvalidSpeedError.
    """
    times, _ = _speeds(stage_seconds, None)
    slowest = float(times.max())
    return slowest, math.fsum(times) - slowest


def even(microbatches: int, groups: int) -> tuple[int, ...]:
    """Return the usual split: equal counts, the first groups one more where M is not divisible."""
    if groups < 1 or microbatches < groups:
        raise TooFewMicrobatchesError(f"{microbatches} micro-batches for {groups} groups")
    share, rest = divmod(microbatches, groups)
    return tuple(share + (index < rest) for index in range(groups))


def plan(
    seconds_per_microbatch: Sequence[float],
    microbatches: int,
    *,
    fixed_seconds: Sequence[float] | None = None,
    upper: Sequence[int] | None = None,
    current: Sequence[int] | None = None,
    min_gain: float = MIN_GAIN,
) -> MicrobatchPlan:
    """Share ``microbatches`` among the groups so that the slowest finishes as early as possible. Exact.

    ``seconds_per_microbatch`` [D] is measured per group (its slowest stage); ``upper`` [D] bounds the counts (memory);
    ``current`` [D] is the plan in force, which stays while it is possible and within ``min_gain`` of the optimum.
    Raises SingleGroupError, TooFewMicrobatchesError, InvalidSpeedError, InvalidInputError, and InfeasibleError where
    the bounds leave micro-batches over.
    """
    times, fixed = _speeds(seconds_per_microbatch, fixed_seconds)
    groups = len(times)
    if groups < 2:
        raise SingleGroupError("one group has no other group to share micro-batches with")
    if microbatches < groups:
        raise TooFewMicrobatchesError(f"{microbatches} micro-batches for {groups} groups: each needs at least one")
    bounds = _bounds(upper, groups, microbatches)
    if int(bounds.sum()) < microbatches:
        raise InfeasibleError(f"the upper bounds allow {int(bounds.sum())} of {microbatches} micro-batches")
    counts = _fill(times, fixed, np.ones(groups, dtype=np.int64), bounds, microbatches)
    best = float(np.max(fixed + counts * times))
    # Without a plan in force nothing can be kept or moved.
    if current is None:
        return MicrobatchPlan(counts=tuple(counts.tolist()), seconds=best, best_seconds=best)

    before = np.asarray(current, dtype=np.int64)
    if len(before) != groups:
        raise InvalidInputError(f"the plan in force has {len(before)} groups, not {groups}")
    if before.min() < 1 or int(before.sum()) != microbatches:
        return MicrobatchPlan(  # a plan for another shape: nothing of it can be kept
            counts=tuple(counts.tolist()),
            seconds=best,
            best_seconds=best,
            moved=int(np.maximum(counts - before, 0).sum()),
        )
    in_force = float(np.max(fixed + before * times))
    possible = bool(np.all(before <= bounds))
    # A change costs time as well, so a small gain is not worth it.
    if possible and in_force <= best * (1.0 + min_gain):
        return MicrobatchPlan(
            counts=tuple(before.tolist()),
            seconds=in_force,
            best_seconds=best,
            current_seconds=in_force,
            kept=True,
        )
    # Of all plans that are as good, choose that which moves the fewest micro-batches.
    counts = _nearest(times, fixed, bounds, before, best)
    return MicrobatchPlan(
        counts=tuple(counts.tolist()),
        seconds=float(np.max(fixed + counts * times)),
        best_seconds=best,
        current_seconds=in_force if possible else None,
        moved=int(np.maximum(counts - before, 0).sum()),
    )


def _speeds(seconds_per_microbatch: Sequence[float], fixed_seconds: Sequence[float] | None) -> tuple[Floats, Floats]:
    times = np.asarray(seconds_per_microbatch, dtype=np.float64)
    if times.ndim != 1 or len(times) == 0:
        raise InvalidInputError("no groups")
    if not np.all(np.isfinite(times) & (times > 0)):
        group = int(np.argmin(np.isfinite(times) & (times > 0)))
        raise InvalidSpeedError(f"group {group} takes {times[group]} s for a micro-batch")
    fixed = np.zeros_like(times) if fixed_seconds is None else np.asarray(fixed_seconds, dtype=np.float64)
    if fixed.shape != times.shape:
        raise InvalidInputError(f"{fixed.size} fixed times for {len(times)} groups")
    if not np.all(np.isfinite(fixed) & (fixed >= 0)):
        raise InvalidSpeedError("a fixed time is negative or not finite")
    return times, fixed


def _bounds(upper: Sequence[int] | None, groups: int, microbatches: int) -> Counts:
    most = microbatches - groups + 1  # the others take at least one each
    if upper is None:
        return np.full(groups, most, dtype=np.int64)
    bounds = np.asarray(upper, dtype=np.int64)
    if len(bounds) != groups:
        raise InvalidInputError(f"{len(bounds)} upper bounds for {groups} groups")
    if bounds.min() < 1:
        raise InfeasibleError(f"group {int(bounds.argmin())} may take no micro-batch at all")
    return np.minimum(bounds, most)


def _finished(times: Floats, fixed: Floats, least: Counts, bounds: Counts, deadline: float) -> Counts:
    """Return the number of micro-batches that each group finishes by ``deadline`` [s], from ``least`` to its bound."""
    counts = np.clip(np.floor((deadline - fixed) / times), least, bounds).astype(np.int64)
    # a division may be off by one against the products that finish times are compared by
    counts -= (counts > least) & (fixed + counts * times > deadline)
    counts += (counts < bounds) & (fixed + (counts + 1) * times <= deadline)
    return counts


def _fill(times: Floats, fixed: Floats, least: Counts, bounds: Counts, microbatches: int) -> Counts:
    """Compute greedy's result for M micro-batches, starting from ``least``; the input is feasible."""
    low, high, counts = 0.0, float(np.max(fixed + bounds * times)), least
    for _ in range(_BISECTIONS):
        left, middle = microbatches - int(counts.sum()), (low + high) / 2
        if left <= _GREEDY_STEPS or not low < middle < high:
            break
        reached = _finished(times, fixed, least, bounds, middle)
        if int(reached.sum()) > microbatches:
            high = middle
        else:
            low, counts = middle, reached
    return _hand_out(times, fixed, bounds, counts, microbatches - int(counts.sum()))


def _hand_out(times: Floats, fixed: Floats, bounds: Counts, counts: Counts, left: int) -> Counts:
    """Give each micro-batch to the group that would finish it first (greedy); ties go to the lower index."""
    if left == 0:
        return counts
    finish = fixed + (counts + 1) * times
    open_groups = np.flatnonzero(counts < bounds)
    if len(open_groups) > left:  # only the ``left`` earliest can be needed
        open_groups = open_groups[np.argsort(finish[open_groups], kind="stable")[:left]]
    heap = [(float(finish[group]), int(group)) for group in open_groups]
    heapq.heapify(heap)
    counts = counts.copy()
    for _ in range(left):
        _, group = heap[0]
        counts[group] += 1
        if counts[group] < bounds[group]:
            heapq.heapreplace(heap, (float(fixed[group] + (counts[group] + 1) * times[group]), group))
        else:
            heapq.heappop(heap)
    return counts


def _nearest(times: Floats, fixed: Floats, bounds: Counts, before: Counts, best: float) -> Counts:
    """Choose, of all plans that reach ``best`` seconds, a plan that moves the fewest micro-batches from ``before``.

    Whatever exceeds a group's capacity by ``best`` has to leave it; nothing else has to.
    """
    capacity = _finished(times, fixed, np.ones_like(bounds), bounds, best)
    return _fill(times, fixed, np.minimum(before, capacity), capacity, int(before.sum()))


def relaxed_seconds(seconds_per_microbatch: Sequence[float], microbatches: int) -> float:
    """Return the bound that no integer plan can beat: M ÷ Σ 1/t_i, all groups finishing at once."""
    times, _ = _speeds(seconds_per_microbatch, None)
    return microbatches / math.fsum(1.0 / times)
