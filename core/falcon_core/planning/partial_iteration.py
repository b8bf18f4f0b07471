"""Plan how to finish an iteration that a failure broke, so that no gradient is lost or counted twice.

Only its benchmark calls it yet. The plan says which rank computes which micro-batch again. The gradient of a global
batch is Σ over ranks Σ over their micro-batches (Unicron eq. 6). A data-parallel rank that fails takes with it what it
had accumulated; the others still hold theirs (§6.2).

*Scenario 1*, no all-reduce has started: survivors keep what they have and finish their own micro-batches; those of
the failed ranks, finished or not, are shared out (eq. 7). Unicron does that in turn; here the share is chosen that
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
import itertools
from collections.abc import Iterable, Sequence

import msgspec

from falcon_core.planning import microbatch
from falcon_core.planning.errors import InfeasibleError, InvalidInputError


class SegmentState(enum.StrEnum):
    """The progress of the all-reduce of a segment of the gradient."""

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
    """The survivors' plan, in this order: drop, compute, copy, reduce."""

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
        """Count the micro-batches that are computed a second time, whole or for a part of the segments."""
        return sum(map(len, self.extra.values())) + sum(map(len, self.again.values()))


def resume(ranks: Sequence[Progress], failed: Iterable[int], segments: Sequence[str]) -> Resumption:
    """Plan the rest of the iteration.

    ``segments`` names those of the gradient that are not safe without the failed workers: before any all-reduce the
    whole gradient, afterwards what the failed workers held a part of.

    Raises InvalidInputError for contradictory progress, InfeasibleError where no rank survived.
    """
    lost = frozenset(failed)
    _check(ranks, lost, segments)
    survivors = [member for member in ranks if member.rank not in lost]
    if not survivors:
        raise InfeasibleError("no data-parallel rank survived: restore a checkpoint")
    # Each segment of the gradient is in one of three states, by how far its all-reduce had come.
    keep, add, restart = _by_state(segments, survivors)
    started = bool(keep or restart)
    # Segments are reduced after the last micro-batch, so such a report is wrong: a plan from it would lose gradients.
    if started and any(survivor.finished < len(survivor.microbatches) for survivor in survivors):
        raise InvalidInputError("a segment is being reduced while a survivor still computes")
    fallen = [member.microbatches for member in ranks if member.rank in lost]
    # The failed ranks' micro-batches are lost only where their gradients are in no finished segment.
    orphans = tuple(itertools.chain.from_iterable(fallen)) if add or restart else ()
    own = {survivor.rank: survivor.microbatches[survivor.finished :] for survivor in survivors}
    again = {survivor.rank: survivor.microbatches[: survivor.finished if restart else 0] for survivor in survivors}
    # Work that survivors have to do anyway counts in the split, or a busy survivor would end last.
    waiting = [len(own[survivor.rank]) + len(again[survivor.rank]) for survivor in survivors]
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
        copy_from=_copies(keep, survivors),
        seconds=max(
            (count + len(extra[survivor.rank])) * survivor.seconds_per_microbatch
            for survivor, count in zip(survivors, waiting, strict=True)
        ),
    )


def _by_state(
    segments: Sequence[str], survivors: Sequence[Progress]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Sort the segments into those that are reduced, untouched and in flight."""
    states = {segment: _state(segment, survivors) for segment in segments}
    reduced, untouched, in_flight = (
        tuple(segment for segment in segments if states[segment] is state)
        for state in (SegmentState.REDUCED, SegmentState.UNTOUCHED, SegmentState.IN_FLIGHT)
    )
    return reduced, untouched, in_flight


def _copies(reduced: Sequence[str], survivors: Sequence[Progress]) -> dict[str, int]:
    """Name, for each reduced segment that some survivor lacks, the first survivor that has it."""
    copies = {}
    for segment in reduced:
        holders = [survivor for survivor in survivors if survivor.segments.get(segment) is SegmentState.REDUCED]
        if len(holders) < len(survivors):
            copies[segment] = holders[0].rank
    return copies


def _state(segment: str, survivors: Sequence[Progress]) -> SegmentState:
    """Judge a segment: a survivor with the sum is enough; else a half-reduced buffer on any survivor spoils it."""
    seen = {survivor.segments.get(segment, SegmentState.UNTOUCHED) for survivor in survivors}
    for state in (SegmentState.REDUCED, SegmentState.IN_FLIGHT):
        if state in seen:
            return state
    return SegmentState.UNTOUCHED


def _share(survivors: Sequence[Progress], waiting: Sequence[int], orphans: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Share out the orphans in their order, so that the last survivor is done as early as possible."""
    if not orphans:
        return {survivor.rank: () for survivor in survivors}
    if len(survivors) == 1:
        return {survivors[0].rank: tuple(orphans)}
    # `plan` gives everyone at least one: take that one off the work that is there already
    times = [survivor.seconds_per_microbatch for survivor in survivors]
    first = max(times)
    counts = microbatch.plan(
        times,
        len(orphans) + len(survivors),
        fixed_seconds=[first + (count - 1) * time for count, time in zip(waiting, times, strict=True)],
    ).counts
    shared, start = {}, 0
    for survivor, count in zip(survivors, counts, strict=True):
        shared[survivor.rank] = tuple(orphans[start : start + count - 1])
        start += count - 1
    return shared


def _check(ranks: Sequence[Progress], lost: frozenset[int], segments: Sequence[str]) -> None:
    if len({member.rank for member in ranks}) != len(ranks):
        raise InvalidInputError("a rank appears twice")
    if unknown := lost - {member.rank for member in ranks}:
        raise InvalidInputError(f"unknown ranks failed: {sorted(unknown)}")
    numbers = [number for member in ranks for number in member.microbatches]
    if len(set(numbers)) != len(numbers):
        raise InvalidInputError("a micro-batch belongs to two ranks")
    if not segments or len(set(segments)) != len(segments):
        raise InvalidInputError("the segments of the gradient must be named, each once")
    for member in ranks:
        if not 0 <= member.finished <= len(member.microbatches):
            raise InvalidInputError(f"rank {member.rank} finished {member.finished} of {len(member.microbatches)}")
