"""Collect the hashes of all-reduce results from a rank's ring, and sum them up for the reports.

Every member of a communicator verifies the same calls, so the digests of the same calls are equal (``docs/adr/0173``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from falcon_agent.rings.communicators import Shape
from falcon_core.wire.reporting.verification import (
    MAX_COMMUNICATORS,
    WIDTHS,
    CommResults,
    Digest,
    RankResults,
    call_digest,
    sum_digest,
)
from falcon_core.wire.ring import GRAPH, Flag, Kind, RecordArray, is_verified, result_hash

_MOST_COMMS: Final = 4 * MAX_COMMUNICATORS  # that are followed; what is reported of them are the newest


class _Group(msgspec.Struct):
    """One communicator's digests: by width, the turns of the sampling that each covers."""

    shape: Shape
    nth: int
    sole: bool = False
    digests: dict[int, dict[int, Digest]] = msgspec.field(default_factory=lambda: {width: {} for width in WIDTHS})


class Results:
    """The verified results of one ring; memory is bounded."""

    def __init__(self) -> None:
        self._every = 0
        self._groups: dict[int, _Group] = {}  # that of the newest verified call comes last

    def feed(
        self, records: RecordArray, every: int, shape_of: Callable[[int], Shape | None], *, lost: bool = False
    ) -> None:
        """Take records of any kind, in ring order: [n], dtype RECORD_DTYPE.

        ``every``: of how many calls one is to be verified; 0: none. ``lost``: records before these are missing, so that
        a sum would lack calls.
        """
        if every != self._every or lost:
            self._every = every
            self._groups.clear()
        if not every:
            return
        for record in records[records["kind"] == Kind.VERIFIED]:
            # A call from before a change of ``every`` may be none of those that all members verify now.
            if is_verified(int(record["comm_seq"]), every):
                self._add(record, shape_of)

    def report(self, rank: int, life: int) -> RankResults | None:
        """Return what there is to report; None if there is nothing."""
        if not self._groups:
            return None
        newest = list(self._groups.values())[-MAX_COMMUNICATORS:]
        comms = [
            CommResults(
                comm=group.shape.comm,
                size=group.shape.size,
                place=max(0, group.shape.place),
                nth=group.nth,
                sole=group.sole,
                digests=[each for width, most in WIDTHS.items() for each in _newest(group.digests[width], width, most)],
            )
            for group in newest
        ]
        return RankResults(rank=rank, life=life, every=self._every, comms=comms)

    def _add(self, record: np.void, shape_of: Callable[[int], Shape | None]) -> None:
        comm, number = int(record["comm"]), int(record["comm_seq"])
        group = self._groups.pop(comm, None)
        if group is None:
            shape = shape_of(comm)
            if shape is None or comm >= GRAPH:
                return  # its descriptor is missing, or the number is none that a shim gives
            group = _Group(shape, int(record["stream"]))
        self._groups[comm] = group  # as the newest
        group.sole = bool(int(record["flags"]) & Flag.SOLE)
        value = call_digest(number, result_hash(record))
        for width, most in WIDTHS.items():
            digests, place = group.digests[width], number // (self._every * width)
            known = digests.get(place)
            digests[place] = Digest(
                width=width,
                first=number if known is None else min(known.first, number),
                calls=1 if known is None else known.calls + 1,
                value=value if known is None else sum_digest(known.value, value),
            )
            if len(digests) > most + 1:
                del digests[min(digests)]
        while len(self._groups) > _MOST_COMMS:
            del self._groups[next(iter(self._groups))]


def _newest(digests: dict[int, Digest], width: int, most: int) -> list[Digest]:
    """Return the newest digests, oldest first. One of several calls is left out while calls may still join it."""
    whole = sorted(digests) if width == 1 else sorted(digests)[:-1]
    return [digests[place] for place in whole[-most:]]
