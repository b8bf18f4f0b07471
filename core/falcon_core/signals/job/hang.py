"""Find the ranks that all others of a hung job wait for.

In a hung collective every rank that has entered waits for those that have not. A rank that is behind in one
communicator may itself be waiting in another. So the culprits are the ranks that are behind and wait nowhere. A
communicator waits for its *oldest* unfinished call: ranks that ran ahead of it are no further than the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import Flags, Ints

_UNKNOWN: Final = -1  # a finished count


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Calls of one rank in one communicator: entered (enqueued) and finished (completed on the device)."""

    rank: int
    comm: str  # job-wide name
    entered: int
    finished: int | None = None  # None: not known, as where calls return when they are enqueued


HangKind = Literal["NeverArrived", "Transfer", "Deadlock"]


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """A hang: the ranks that the job waits for.

    ``NeverArrived``: these ranks did not enter call ``number`` of the communicator, and wait nowhere themselves.
    ``Transfer``: all members are inside, and nothing moves: the network, or a member's device or process. Where some
    went on to later calls, ``ranks`` are those that did not; a stopped process begins no further call.
    ``Deadlock``: each of these ranks waits in one communicator and is awaited in another.
    """

    kind: HangKind
    ranks: tuple[int, ...]
    comm: str
    number: int  # of the call, from 0
    waiting: int  # ranks inside that communicator


class _Counts(msgspec.Struct):
    """All counts as columns of [n], ordered by communicator, and the bounds of each communicator's rows."""

    comms: list[str]
    bounds: Ints  # [communicators + 1]
    ranks: Ints
    entered: Ints
    finished: Ints

    def by_comm(self, ufunc: np.ufunc, column: Ints | Flags) -> Ints:
        """Reduce a column to one value for each communicator: [n] → [communicators]."""
        return np.asarray(ufunc.reduceat(column, self.bounds[:-1], dtype=np.int64))

    def by_row(self, column: Ints) -> Ints:
        """Repeat each communicator's value for its rows: [communicators] → [n]."""
        return np.repeat(column, np.diff(self.bounds))


def explain_hang(
    progress: Sequence[Progress], members: Mapping[str, tuple[int, ...]], waiting_elsewhere: Collection[int] = ()
) -> list[Hang]:
    """Find the ranks that a job without progress waits for, from its counts; empty where no rank is inside a call.

    The cost is O(counts).

    ``members`` by the communicator's name. A member without counts in a communicator has not entered any call of it.
    ``waiting_elsewhere``: ranks that are inside a call whose communicator is unknown. Where only finished counts are
    known (entered = finished), they name who is behind if they differ. Where finished counts are not known, a rank that
    has entered more calls than another member waits for that member.
    """
    if not progress:
        return []
    counts = _counts(progress, members)
    inside = counts.entered > counts.finished
    # A communicator stands at its oldest call that some member has not finished.
    number = counts.by_comm(np.minimum, counts.finished)
    waiting = counts.by_comm(np.add, inside)
    stuck = counts.by_comm(np.maximum, counts.entered) > number
    absent = counts.entered <= counts.by_row(number)
    # A rank that waits in another communicator is no culprit here: it is a victim as well.
    waits = np.isin(counts.ranks, np.concatenate((counts.ranks[inside], np.fromiter(waiting_elsewhere, np.int64))))
    idle = absent & ~waits
    # Where all have entered the call, those that have entered the fewest calls hold the transfer up.
    last = counts.entered == counts.by_row(counts.by_comm(np.minimum, counts.entered))
    anyone_idle, anyone_absent = counts.by_comm(np.add, idle) > 0, counts.by_comm(np.add, absent) > 0
    kinds: list[tuple[HangKind, Flags, Flags]] = [
        ("NeverArrived", stuck & anyone_idle, idle),
        ("Transfer", stuck & ~anyone_absent & (waiting == np.diff(counts.bounds)), last),
        ("Deadlock", stuck & anyone_absent & ~anyone_idle, absent),
    ]
    for kind, comms, blamed in kinds:  # where ranks never arrived, all else follows from that
        if comms.any():
            found = [
                Hang(
                    kind=kind,
                    ranks=tuple(np.sort(counts.ranks[begin:end][blamed[begin:end]]).tolist()),
                    comm=counts.comms[comm],
                    number=int(number[comm]),
                    waiting=int(waiting[comm]),
                )
                for comm in np.flatnonzero(comms).tolist()
                for begin, end in [counts.bounds[comm : comm + 2].tolist()]
            ]
            return sorted(found, key=lambda hang: (-hang.waiting, hang.comm))
    return []


def _column(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _counts(progress: Sequence[Progress], members: Mapping[str, tuple[int, ...]]) -> _Counts:
    """Order the counts by communicator; a finished count that is not known is the least that any member entered."""
    numbers = {comm: number for number, comm in enumerate(dict.fromkeys([count.comm for count in progress]))}
    of = _column([numbers[count.comm] for count in progress])
    known = np.bincount(of)
    comms = list(numbers)
    # A member without a count has made no call of this communicator.
    lacking = {comm for comm, reported in zip(comms, known.tolist(), strict=True) if reported < len(members[comm])}
    if lacking:
        absent = {comm: set(members[comm]) for comm in lacking}
        for count in progress:
            if count.comm in lacking:
                absent[count.comm].discard(count.rank)
        progress = [
            *progress,
            *(Progress(rank=rank, comm=comm, entered=0, finished=0) for comm in lacking for rank in absent[comm]),
        ]
        of = _column([numbers[count.comm] for count in progress])
        known = np.bincount(of)
    order = np.argsort(of, kind="stable")
    counts = _Counts(
        comms=comms,
        bounds=np.append(0, np.cumsum(known)),
        ranks=_column([count.rank for count in progress])[order],
        entered=_column([count.entered for count in progress])[order],
        finished=_column([_UNKNOWN if count.finished is None else count.finished for count in progress])[order],
    )
    least = counts.by_row(counts.by_comm(np.minimum, counts.entered))
    counts.finished = np.where(counts.finished == _UNKNOWN, least, counts.finished)
    return counts
