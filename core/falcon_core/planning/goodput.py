"""Measure the value of a job's time from a timeline: ETTR, MFU and weighted FLOP/s.

Only the simulator calls it. A timeline is a list of segments without overlap: training, slow, detecting, recovering,
waiting. Iterations count when they are made; those that a failure threw away (made after the checkpoint that was
restored) are booked on the segment of the recovery as ``lost_iterations``, and taken off.

- **ETTR** (effective training time ratio): useful iterations × healthy iteration time ÷ wall time. A slow iteration
  counts as one iteration, not as the time that it took, so that slowness, stand-stills and lost work all lower it.
- **running ratio**: time in which training moved ÷ wall time. It ignores slowness; other authors call it goodput.
- **MFU**: useful FLOPs ÷ (peak FLOP/s × worker-seconds held). Waiting with workers held costs; without, it does not.
- **WAF** (Unicron §5.1): w × useful FLOPs, accumulated and per second.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence

import msgspec

from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError


class Activity(enum.StrEnum):
    """The activity of a job; training may make progress in the first three."""

    TRAINING = "Training"
    SLOW = "Slow"  # training, with a known fail-slow
    DETECTING = "Detecting"  # something is wrong and not yet known: slow or standing still
    RECOVERING = "Recovering"  # pausing, restarting, restoring, moving
    WAITING = "Waiting"  # for workers


MOVING = frozenset({Activity.TRAINING, Activity.SLOW})


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of a job's life, ``start_seconds`` ≤ t < ``end_seconds``."""

    activity: Activity
    start_seconds: float
    end_seconds: float
    workers: int = 0  # held in this time, whether or not they compute
    iterations: float = 0.0  # made in this time
    lost_iterations: float = 0.0  # made earlier, thrown away here (back to a checkpoint)

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a timeline."""

    wall_seconds: float
    seconds: dict[Activity, float]  # of each activity; they and ``unknown_seconds`` add up to the wall time
    unknown_seconds: float  # holes between segments
    useful_iterations: float
    lost_iterations: float
    worker_seconds: float
    ettr: float
    running_ratio: float
    mfu: float | None  # None where the peak or the FLOPs of an iteration are not known
    waf_flops: float | None  # accumulated, weighted
    waf_flops_per_second: float | None


def account(
    timeline: Sequence[Segment],
    *,
    healthy_iteration_seconds: float,
    weight: float = 1.0,
    flops_per_iteration: float | None = None,
    peak_flops_per_worker: float | None = None,
) -> Goodput:
    """Add up a timeline, from the first segment's start to the last one's end.

    Iterations of jobs whose size changes all have the same FLOPs (the global batch stays), and the healthy iteration
    time is that of the full size, so running on with fewer workers lowers ETTR as it should.
    Raises InvalidInputError (empty, overlapping or reversed segments, more lost than made) or InvalidSpeedError.
    """
    if not (0 < healthy_iteration_seconds < math.inf):
        raise InvalidSpeedError(f"a healthy iteration of {healthy_iteration_seconds} s")
    for name, value in (("flops_per_iteration", flops_per_iteration), ("peak_flops_per_worker", peak_flops_per_worker)):
        if value is not None and not (0 < value < math.inf):
            raise InvalidSpeedError(f"{name} is {value}")
    # Time of which nothing is known counts as lost, or a gap in the record would look like progress.
    unknown = _holes(timeline)
    wall = timeline[-1].end_seconds - timeline[0].start_seconds
    if not wall > 0:
        raise InvalidInputError("a timeline of no length")
    by_activity = {activity: _seconds_of(timeline, activity) for activity in Activity}
    made = math.fsum(segment.iterations for segment in timeline)
    lost = math.fsum(segment.lost_iterations for segment in timeline)
    if lost > made * (1 + 1e-9):
        raise InvalidInputError(f"{lost} iterations lost of {made} made")
    # Iterations that a restart did again were made twice, and count once.
    useful = max(0.0, made - lost)
    worker_seconds = math.fsum(segment.workers * segment.seconds for segment in timeline)
    flops = None if flops_per_iteration is None else useful * flops_per_iteration
    mfu = None
    if flops is not None and peak_flops_per_worker is not None and worker_seconds > 0:
        mfu = flops / (peak_flops_per_worker * worker_seconds)
    return Goodput(
        wall_seconds=wall,
        seconds=by_activity,
        unknown_seconds=unknown,
        useful_iterations=useful,
        lost_iterations=lost,
        worker_seconds=worker_seconds,
        ettr=useful * healthy_iteration_seconds / wall,
        running_ratio=_moving_seconds(timeline, by_activity) / wall,
        mfu=mfu,
        waf_flops=None if flops is None else weight * flops,
        waf_flops_per_second=None if flops is None else weight * flops / wall,
    )


def _seconds_of(timeline: Sequence[Segment], activity: Activity) -> float:
    return math.fsum(segment.seconds for segment in timeline if segment.activity is activity)


def _moving_seconds(timeline: Sequence[Segment], by_activity: dict[Activity, float]) -> float:
    """Add up the time in which training moved: while something is being detected, where iterations were made."""
    moving = math.fsum(seconds for activity, seconds in by_activity.items() if activity in MOVING)
    return moving + math.fsum(
        segment.seconds for segment in timeline if segment.activity is Activity.DETECTING and segment.iterations > 0
    )


def _holes(timeline: Sequence[Segment]) -> float:
    if not timeline:
        raise InvalidInputError("an empty timeline")
    hole, end = 0.0, timeline[0].start_seconds
    for segment in timeline:
        if not (
            segment.start_seconds >= end
            and segment.end_seconds >= segment.start_seconds
            and math.isfinite(segment.end_seconds)
        ):
            raise InvalidInputError(
                f"the segment at {segment.start_seconds} s overlaps its predecessor, or ends too early"
            )
        if min(segment.workers, segment.iterations, segment.lost_iterations) < 0:
            raise InvalidInputError(f"the segment at {segment.start_seconds} s has a negative count")
        hole += segment.start_seconds - end
        end = segment.end_seconds
    return hole


def removed_slowdown(healthy: float, slow: float, mitigated: float) -> float:
    """Return the share of a slowdown that a mitigation removed: (mitigated − slow) ÷ (healthy − slow), FALCON §7.

    By throughput or by iteration time alike; 1 is as good as healthy, below 0 it made things worse.
    Raises InvalidInputError where there was no slowdown.
    """
    if healthy == slow:
        raise InvalidInputError("healthy and slow are the same: there was nothing to remove")
    return (mitigated - slow) / (healthy - slow)


def cluster_waf(jobs: Iterable[Goodput]) -> float:
    """Add up the weighted FLOPs of several jobs (Unicron fig. 11); jobs of unknown FLOPs count nothing."""
    return math.fsum(job.waf_flops or 0.0 for job in jobs)
