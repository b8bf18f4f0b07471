"""Finishing an iteration that a failure broke: who computes what again, so that no gradient is lost or counted twice.

The gradient of a global batch is Σ over ranks Σ over their micro-batches (Unicron eq. 6). A data-parallel rank that
fails takes with it what it had accumulated; the others still hold theirs (§6.2).

*Scenario 1*, no all-reduce has started: survivors keep what they have and finish their own micro-batches; those of
the failed ranks, finished or not, are shared out (eq. 7). Unicron does that in turn; here the share is the one that
ends earliest, given what each survivor has still to do (``microbatch``): equal in the usual case, better where ranks
differ or are not equally far.

*Scenario 2*, the all-reduce runs segment by segment (a pipeline stage's bucket of parameters): what matters is the
state of each segment.
- REDUCED everywhere or on some survivor: its sum already holds the failed rank's part; keep it, and copy it to
  survivors that lack it.
- UNTOUCHED: as in scenario 1: survivors add the failed ranks' micro-batches to what they hold, and reduce again.
- IN_FLIGHT: an all-reduce that works in place has mixed partial sums into the buffers, so the survivors' own part is
  gone too: every micro-batch must be computed again for that segment, from zero. (Where buffers are copied before they
  are reduced, it counts as UNTOUCHED.)
If all segments that the failed workers held are reduced, nothing is computed again at all.

The sums here are sums: a mean over the batch divides by its size after the last reduction, never by the number of
ranks, which changes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from falcon_core.planning import microbatch
from falcon_core.planning.errors import InfeasibleError, InvalidInputError


class SegmentState(enum.StrEnum):
    """How far the all-reduce of a segment of the gradient came."""

    UNTOUCHED = "Untouched"
    IN_FLIGHT = "InFlight"
    REDUCED = "Reduced"


class Scenario(enum.StrEnum):
    """Unicron §6.2."""

    BEFORE_REDUCE = "BeforeReduce"  # scenario 1
    DURING_REDUCE = "DuringReduce"  # scenario 2
    NOTHING_LOST = "NothingLost"  # scenario 2 where everything that the failed workers held is reduced


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """One data-parallel rank in the broken iteration."""

    rank: int
    microbatches: tuple[int, ...]  # its micro-batches, by their number in the global batch, in order
    finished: int = 0  # how many of them it has accumulated, backward pass included
    seconds_per_microbatch: float = 1.0
    segments: dict[str, SegmentState] = {}  # of each segment it holds, as this rank saw it; absent: UNTOUCHED


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """What the survivors do, in this order: drop, compute, copy, reduce."""

    scenario: Scenario
    own: dict[int, tuple[int, ...]]  # survivor → its own micro-batches that it has not finished yet (scenario 1)
    extra: dict[int, tuple[int, ...]]  # survivor → micro-batches of failed ranks, for ``add`` and ``restart``
    again: dict[int, tuple[int, ...]]  # survivor → its own finished micro-batches, for ``restart`` alone
    keep: tuple[str, ...]  # reduced: no micro-batch may be added to it again
    add: tuple[str, ...]  # untouched: extra micro-batches are added to what each survivor holds, then reduced
    restart: tuple[str, ...]  # in flight: zeroed, all micro-batches of the batch computed again, then reduced
    copy_from: dict[str, int]  # reduced segment → a survivor that has it, for those that do not
    seconds: float  # predicted time until the last survivor is ready to reduce

    @property
    def recomputed(self) -> int:
        """Micro-batches that are computed a second time, whole or for a part of the segments."""
        return sum(map(len, self.extra.values())) + sum(map(len, self.again.values()))


def resume(ranks: Sequence[Progress], failed: Iterable[int], segments: Sequence[str]) -> Resumption:
    """Plan the rest of the iteration. ``segments`` names those of the gradient that are not safe without the failed
    workers: before any all-reduce the whole gradient, afterwards what the failed workers held a part of.

    Raises InvalidInputError for contradictory progress, InfeasibleError where no rank survived.
    """
    lost = frozenset(failed)
    _check(ranks, lost, segments)
    survivors = [one for one in ranks if one.rank not in lost]
    if not survivors:
        raise InfeasibleError("no data-parallel rank survived: restore a checkpoint")
    states = {segment: _state(segment, survivors) for segment in segments}
    keep, add, restart = (
        tuple(segment for segment in segments if states[segment] is state)
        for state in (SegmentState.REDUCED, SegmentState.UNTOUCHED, SegmentState.IN_FLIGHT)
    )
    started = bool(keep or restart)
    if started and any(one.finished < len(one.microbatches) for one in survivors):
        raise InvalidInputError("a segment is being reduced while a survivor still computes")
    orphans = tuple(number for one in ranks if one.rank in lost for number in one.microbatches)
    if not (add or restart):
        orphans = ()
    own = {one.rank: one.microbatches[one.finished :] for one in survivors}
    again = {one.rank: one.microbatches[: one.finished] if restart else () for one in survivors}
    waiting = [len(own[one.rank]) + len(again[one.rank]) for one in survivors]
    extra = _share(survivors, waiting, orphans)
    scenario = Scenario.DURING_REDUCE if started else Scenario.BEFORE_REDUCE
    return Resumption(
        scenario=scenario if orphans or restart else Scenario.NOTHING_LOST,
        own=own,
        extra=extra,
        again=again,
        keep=keep,
        add=add,
        restart=restart,
        copy_from={
            segment: next(one.rank for one in survivors if one.segments.get(segment) is SegmentState.REDUCED)
            for segment in keep
            if any(one.segments.get(segment) is not SegmentState.REDUCED for one in survivors)
        },
        seconds=max(
            (count + len(extra[one.rank])) * one.seconds_per_microbatch
            for one, count in zip(survivors, waiting, strict=True)
        ),
    )


def _state(segment: str, survivors: Sequence[Progress]) -> SegmentState:
    """One survivor with the sum is enough; one with a half-reduced buffer spoils it otherwise."""
    seen = {one.segments.get(segment, SegmentState.UNTOUCHED) for one in survivors}
    for state in (SegmentState.REDUCED, SegmentState.IN_FLIGHT):
        if state in seen:
            return state
    return SegmentState.UNTOUCHED


def _share(survivors: Sequence[Progress], waiting: Sequence[int], orphans: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Hand the orphans out so that the last survivor is done as early as possible, in their order."""
    if not orphans:
        return {one.rank: () for one in survivors}
    if len(survivors) == 1:
        return {survivors[0].rank: tuple(orphans)}
    # `plan` gives everyone at least one: take that one off the work that is there already
    times = [one.seconds_per_microbatch for one in survivors]
    first = max(times)
    counts = microbatch.plan(
        times,
        len(orphans) + len(survivors),
        fixed_seconds=[first + (count - 1) * time for count, time in zip(waiting, times, strict=True)],
    ).counts
    shared, start = {}, 0
    for one, count in zip(survivors, counts, strict=True):
        shared[one.rank] = tuple(orphans[start : start + count - 1])
        start += count - 1
    return shared


def _check(ranks: Sequence[Progress], lost: frozenset[int], segments: Sequence[str]) -> None:
    if len({one.rank for one in ranks}) != len(ranks):
        raise InvalidInputError("a rank appears twice")
    if unknown := lost - {one.rank for one in ranks}:
        raise InvalidInputError(f"unknown ranks failed: {sorted(unknown)}")
    numbers = [number for one in ranks for number in one.microbatches]
    if len(set(numbers)) != len(numbers):
        raise InvalidInputError("a micro-batch belongs to two ranks")
    if not segments or len(set(segments)) != len(segments):
        raise InvalidInputError("the segments of the gradient must be named, each once")
    for one in ranks:
        if not 0 <= one.finished <= len(one.microbatches):
            raise InvalidInputError(f"rank {one.rank} finished {one.finished} of {len(one.microbatches)}")
