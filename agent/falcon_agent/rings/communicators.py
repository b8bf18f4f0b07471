"""Follow one rank's communicators: their sizes, the rank's place in each, and how many calls the rank has made.

Descriptor records introduce a communicator. The ring's table of counters shows calls that are in progress, which no
record does. Rings of earlier shims have no such table; no counts are reported for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.signals.calls.traffic import cycle_traffic
from falcon_core.wire.reporting.messages import MAX_COMMS, MAX_PAIRS, MAX_SENDS, CommSignals, PairSignals, SentSignals
from falcon_core.wire.ring import (
    EXCHANGE,
    GRAPH,
    POINT_TO_POINT,
    RECORD_DTYPE,
    CounterArray,
    Flag,
    Kind,
    Op,
    RecordArray,
    Traffic,
    parse_counter_key,
)

_MOST_RECORDS = 8192  # newest records that are kept, as they came, to know what comes next in a communicator
_MAX_SHAPES = 1024  # as many communicators as a shim knows
_NONE: RecordArray = np.empty(0, dtype=RECORD_DTYPE)


class Shape(msgspec.Struct, frozen=True):
    """The content of a descriptor."""

    comm: int
    size: int
    place: int


class Count(msgspec.Struct, frozen=True):
    """The numbers of calls begun and finished; ``finished`` None where that is not known."""

    entered: int
    finished: int | None

    @property
    def waiting(self) -> bool:
        return self.finished is not None and self.entered > self.finished


class CommTable:
    """The communicators of one ring, learned from its records; memory is bounded."""

    def __init__(self, shapes: Sequence[Shape] = ()) -> None:
        """Begin with ``shapes``, which an earlier agent knew; the descriptors may be overwritten by now."""
        self._shapes = {shape.comm: shape for shape in shapes}
        self._newest: deque[RecordArray] = deque()
        self._held = 0

    @property
    def shapes(self) -> list[Shape]:
        """Return the shapes, for the next agent."""
        return list(self._shapes.values())

    def feed(self, records: RecordArray) -> None:
        """Take records of any kind, in ring order: [n], dtype RECORD_DTYPE."""
        kinds = records["kind"]
        for descriptor in records[kinds == Kind.DESCRIPTOR]:
            comm, size = int(descriptor["comm"]), int(descriptor["group"])
            # Pairs and captured graphs have ids of their own and are no groups of ranks.
            if comm & (POINT_TO_POINT | GRAPH):
                continue
            if int(descriptor["flags"]) & Flag.ENDED:
                self._shapes.pop(comm, None)
            elif size > 0 and len(self._shapes) < _MAX_SHAPES:
                self._shapes[comm] = Shape(comm, size, int(descriptor["peer_or_root"]))
        # Copied, or the few records that are kept would hold the whole batch in memory.
        if len(records) > _MOST_RECORDS:
            records = records[-_MOST_RECORDS:].copy()
        self._newest.append(records)
        self._held += len(records)
        while self._held - len(self._newest[0]) >= _MOST_RECORDS:
            self._held -= len(self._newest.popleft())

    def comms(
        self,
        *,
        counts: Mapping[int, Count],
        excess_ns: Mapping[int, Sequence[float]],
        period_calls: int | None,
        paired: Collection[int] = (),
        asked: bool = False,
        healthy_ns: Mapping[int, Sequence[float]] = MappingProxyType({}),
    ) -> tuple[list[CommSignals], int]:
        """Return the communicators to report, at most MAX_COMMS, and how many were left out.

        The first are those in which the rank waits, then those with the largest excess. Where there is room, those
        follow in which it only sends and receives (``paired``): size and place say who its peers are. ``asked``: those
        that carry anything are reported, too. ``healthy_ns``: what their calls take in a healthy iteration.
        """
        # Most reports carry no communicator: the calls of an iteration are looked up only where one does.
        cycle = self._cycle(period_calls) if counts or excess_ns or asked else None
        carried = self._traffic(cycle)[0] if excess_ns or asked else {}
        named = {comm for comm in (*self._shapes, *counts, *excess_ns) if not comm & (POINT_TO_POINT | GRAPH)}
        wanted = sorted(
            (comm for comm in named if comm in excess_ns or comm in counts or comm in carried),
            key=lambda comm: (not (comm in counts and counts[comm].waiting), -sum(excess_ns.get(comm, ())), comm),
        )
        # Those that are only sent along to name peers do not count as left out.
        left_out = max(0, len(wanted) - MAX_COMMS)
        wanted += sorted(comm for comm in paired if comm in self._shapes and comm not in wanted)
        found = []
        # Cut only now: the order says what a report that is full does without.
        for comm in wanted[:MAX_COMMS]:
            shape, count = self._shapes.get(comm), counts.get(comm)
            op, size = _newest_call(cycle, comm, count)
            found.append(
                CommSignals(
                    comm=comm,
                    size=shape.size if shape else 0,
                    place=shape.place if shape else -1,
                    entered=count.entered if count else None,
                    finished=count.finished if count else None,
                    op=op,
                    bytes=size,
                    excess_ns=[round(part) for part in excess_ns.get(comm, ())],
                    link_bytes=carried.get(comm),
                    healthy_ns=[round(part) for part in healthy_ns.get(comm, ())],
                )
            )
        return found, left_out

    def records(self, numbers: npt.NDArray[np.int64]) -> RecordArray:
        """Return the records with these numbers in the ring, as far as they are kept."""
        kept = list(self._newest)
        return np.concatenate([part[np.isin(part["seq"], numbers + 1)] for part in kept]) if kept else _NONE

    def shape(self, comm: int) -> Shape | None:
        """Return what is known of a communicator."""
        return self._shapes.get(comm)

    def sends(self, period_calls: int | None) -> list[SentSignals]:
        """Return what the rank sends in an iteration, the peers that get most first, at most MAX_SENDS."""
        by_peer = self._traffic(self._cycle(period_calls))[1]
        most = sorted(by_peer.items(), key=lambda each: (-each[1], each[0]))[:MAX_SENDS]
        return [SentSignals(comm=comm, peer=peer, bytes=carried) for (comm, peer), carried in most]

    def _traffic(self, cycle: RecordArray | None) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
        sizes = {shape.comm: shape.size for shape in self._shapes.values()}
        return ({}, {}) if cycle is None else cycle_traffic(cycle, sizes)

    def _cycle(self, period_calls: int | None) -> RecordArray | None:
        """Return the newest cycle; None where it is not known or longer than what is kept."""
        if period_calls is None or not 0 < period_calls <= self._held:
            return None
        pieces: list[RecordArray] = []
        missing = period_calls
        for records in reversed(self._newest):
            calls = records[(records["kind"] == Kind.BLOCKING) | (records["kind"] == Kind.ENQUEUED)][-missing:]
            pieces.append(calls)
            missing -= len(calls)
            if missing == 0:
                return np.concatenate(pieces[::-1], dtype=RECORD_DTYPE)
        return None


def _newest_call(cycle: RecordArray | None, comm: int, count: Count | None) -> tuple[int, int | None]:
    """Find operation and payload of the call that the rank is in, or of its next call, by the same call a cycle ago.

    Without a count, return those of the cycle's largest call.
    """
    names = (comm, comm | EXCHANGE) if count is None else (comm,)
    mine = cycle[np.isin(cycle["comm"], names)] if cycle is not None else _NONE
    # The call in progress has no record yet. The same call one cycle ago shows its operation and size.
    if count is not None:
        number = count.entered if count.finished is None else count.finished
        mine = mine[mine["comm_seq"] == number - len(mine)]
    if not len(mine):
        return int(Op.UNKNOWN), None
    largest = mine[int(mine["bytes"].argmax())]
    return int(largest["op"]), int(largest["bytes"])


def collective_counts(counters: CounterArray, *, enqueues: bool) -> dict[int, Count]:
    """Return the counts by communicator id, from a ring's counters ([n], dtype COUNTER_DTYPE).

    ``enqueues``: whether calls return when they are enqueued. Their finished counts lag behind the device by a sampling
    window, and are left out.
    """
    return {
        key.comm: Count(int(counter["entered"]), None if enqueues else int(counter["finished"]))
        for counter in counters
        if (key := parse_counter_key(int(counter["key"]))).traffic == Traffic.COLLECTIVE
    }


def pairs(counters: CounterArray, *, enqueues: bool) -> tuple[list[PairSignals], int]:
    """Return sends and receives, those in progress first, at most MAX_PAIRS, and how many were left out."""
    found = [
        PairSignals(
            comm=key.comm,
            peer=key.peer,
            sending=key.traffic == Traffic.SEND,
            entered=int(counter["entered"]),
            finished=None if enqueues else int(counter["finished"]),
        )
        for counter in counters
        if (key := parse_counter_key(int(counter["key"]))).traffic in (Traffic.SEND, Traffic.RECV)
    ]
    found.sort(key=lambda pair: (pair.finished is None or pair.finished == pair.entered, -pair.entered, pair.peer))
    return found[:MAX_PAIRS], max(0, len(found) - MAX_PAIRS)
