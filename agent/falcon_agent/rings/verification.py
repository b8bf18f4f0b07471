"""Collect the hashes of all-reduce results from a rank's ring, and sum them up for the reports.

Every member of a communicator verifies the same calls, so the digests of the same calls are equal (``docs/adr/0173``).
A process's own number of a communicator says nothing to other ranks. So results are reported only where all ranks are
sure to mean the same one: it has all ranks of the job, and the process has never had another such communicator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from falcon_agent.rings.communicators import Shape
from falcon_core.wire.reporting.verification import (
    WIDTHS,
    Digest,
    RankResults,
    call_digest,
    number_digest,
    sum_digest,
)
from falcon_core.wire.ring import GRAPH, POINT_TO_POINT, Flag, Kind, RecordArray, is_verified, result_hash

_OTHER_IDS: Final = POINT_TO_POINT | GRAPH  # descriptors of pairs and captured graphs, which are no groups of ranks


class Results:
    """The verified results of one ring; memory is bounded."""

    def __init__(self, rank: int, world_size: int) -> None:
        """Follow the ring of a rank of a job with so many ranks; below 0: not known, and nothing is reported."""
        self._rank, self._world_size = rank, world_size
        self._every = 0
        self._comm: int | None = None  # the first communicator of all ranks
        self._certain = True  # it still exists, and there has been no other
        self._digests: dict[int, dict[int, Digest]] = {}  # by width, by the turns of the sampling that each covers

    def feed(
        self, records: RecordArray, every: int, shape_of: Callable[[int], Shape | None], *, lost: bool = False
    ) -> None:
        """Take records of any kind, in ring order: [n], dtype RECORD_DTYPE.

        ``every``: one in so many calls is to be verified; 0: none. ``lost``: records before these are missing, so that
        a sum would lack calls.
        """
        for descriptor in records[records["kind"] == Kind.DESCRIPTOR]:
            self._describe(descriptor)
        if every != self._every or lost:
            self._every = every
            self._digests = {width: {} for width in WIDTHS}
        if not every or not self._certain:
            return
        for record in records[records["kind"] == Kind.VERIFIED]:
            shape = shape_of(int(record["comm"]))  # None: its descriptor is missing
            # A call from before a change of ``every`` may be none of those that all members verify now.
            if shape is not None and self._has_all_ranks(shape) and is_verified(int(record["comm_seq"]), every):
                self._add(record)

    def report(self, life: int) -> RankResults | None:
        """Return the newest digests; None if there are none. ``life``: which process of its rank this is, from 1."""
        if not self._certain:
            return None
        digests = [each for width, of_width in self._digests.items() for each in _newest(of_width, width)]
        if not digests:
            return None
        return RankResults(rank=self._rank, life=life, every=self._every, size=self._world_size, digests=digests)

    def _has_all_ranks(self, shape: Shape) -> bool:
        return shape.size == self._world_size > 1 and shape.place == self._rank

    def _describe(self, descriptor: np.void) -> None:
        shape = Shape(int(descriptor["comm"]), int(descriptor["group"]), int(descriptor["peer_or_root"]))
        if shape.comm & _OTHER_IDS or not self._has_all_ranks(shape):
            return
        self._meet(shape.comm)
        # The next such communicator is the second of this process, and in an elastic job a newcomer's first.
        if int(descriptor["flags"]) & Flag.ENDED:
            self._certain = False

    def _meet(self, comm: int) -> None:
        if self._comm is None:
            self._comm = comm
        elif comm != self._comm:
            self._certain = False

    def _add(self, record: np.void) -> None:
        number = int(record["comm_seq"])
        self._meet(int(record["comm"]))
        # The shim knows more than the records that are left in the ring.
        if not int(record["flags"]) & Flag.SOLE:
            self._certain = False
        numbers, value = number_digest(number), call_digest(number, result_hash(record))
        for width, most in WIDTHS.items():
            digests, place = self._digests[width], number // (self._every * width)
            known = digests.get(place)
            digests[place] = Digest(
                width=width,
                first=number if known is None else min(known.first, number),
                calls=1 if known is None else known.calls + 1,
                numbers=numbers if known is None else sum_digest(known.numbers, numbers),
                value=value if known is None else sum_digest(known.value, value),
            )
            if len(digests) > most + 1:
                del digests[min(digests)]


def _newest(digests: dict[int, Digest], width: int) -> list[Digest]:
    """Return the newest digests, oldest first. One of several calls is left out while calls may still join it."""
    whole = sorted(digests) if width == 1 else sorted(digests)[:-1]
    return [digests[place] for place in whole[-WIDTHS[width] :]]
