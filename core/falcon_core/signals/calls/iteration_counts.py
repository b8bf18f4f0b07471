"""Express the iterations of a rank as counts of calls: where one began, and how far it is to the next.

The consistent pause (docs/architecture.md §6) prefers an iteration's start for its cut. A cut is a count per channel,
and a channel is a counter of the ring: the collectives of a communicator, the sends to a peer or the receives from it,
the launches of a graph. A record has its number among the collectives of its communicator, which is that count.
Point-to-point calls are numbered for all peers together, so that a peer's count at the iteration's start takes the
counters, and the order of the iteration's calls for what was begun since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np

from falcon_core.wire.ring import (
    GRAPH,
    POINT_TO_POINT,
    CounterArray,
    Op,
    RecordArray,
    Traffic,
    are_exchanges,
    counter_key,
    parse_counter_key,
)

_MODULO = 1 << 32  # of ``comm_seq``


class IterationCounts(msgspec.Struct, frozen=True):
    """By counter (:func:`falcon_core.wire.ring.counter_key`)."""

    starts: Mapping[int, int]  # calls begun before an iteration's start; without those whose order is not known
    calls: Mapping[int, int]  # calls of an iteration


def iteration_counts(cycle: RecordArray, counters: CounterArray) -> IterationCounts | None:
    """Count up to the end of an iteration, which is the next iteration's start.

    Args:
        cycle: the iteration's records, [n], dtype RECORD_DTYPE, in any order.
        counters: [m], dtype COUNTER_DTYPE, at one moment after it. Between the two every iteration is taken to make the
            same calls; a rank whose iterations do not has no counts.

    Returns:
        None where the numbers of its calls have gaps: calls were lost, or others came in between. None as well where
        it exchanges data in parts that depend on them: to how many peers changes from iteration to iteration.
    """
    read = _Counters(counters)
    starts: dict[int, int] = {}
    calls: dict[int, int] = {}
    # How many peers an exchange by parts has depends on the data: no count holds for the next iteration.
    if are_exchanges(cycle["comm"]).any():
        return None
    for comm in np.unique(cycle["comm"]).tolist():
        records = cycle[cycle["comm"] == comm]
        # Numbers of calls wrap around; within one iteration they are made continuous.
        numbers = np.unwrap(records["comm_seq"].astype(np.int64), period=_MODULO)
        order = np.argsort(numbers, kind="stable")
        if not np.array_equal(numbers[order], numbers[order[0]] + np.arange(len(records))):
            return None
        end = int(numbers[order[-1]]) + 1
        if comm & POINT_TO_POINT:
            found = read.point_to_point(comm & ~POINT_TO_POINT, records[order], end)
        else:
            found = read.collectives(comm, len(records), end)
        starts |= found.starts
        calls |= found.calls
    return IterationCounts(starts, calls)


class _Counters:
    """A rank's counters at one moment, and what they were when an iteration ended before."""

    def __init__(self, counters: CounterArray) -> None:
        self._entered: dict[int, int] = dict(zip(counters["key"].tolist(), counters["entered"].tolist(), strict=True))
        self._outstanding = {  # receives from anyone that have not arrived, by communicator
            parts.comm: int(counter["entered"]) - int(counter["finished"])
            for counter in counters
            if (parts := parse_counter_key(int(counter["key"]))).traffic == Traffic.RECV_ANY
        }

    def collectives(self, comm: int, calls: int, end: int) -> IterationCounts:
        """Count the collectives, or launches, of a communicator whose iteration ended before number ``end``."""
        key = counter_key(comm & ~GRAPH, Traffic.GRAPH if comm & GRAPH else Traffic.COLLECTIVE)
        entered = self._entered.get(key, 0)
        return IterationCounts({key: entered - (entered - end) % _MODULO}, {key: calls})

    def point_to_point(self, comm: int, records: RecordArray, end: int) -> IterationCounts:
        """Count sends and receives by peer; ``records``: those of the iteration in order, before number ``end``."""
        keys = [
            counter_key(comm, Traffic.SEND if op == Op.SEND else Traffic.RECV, peer)
            for op, peer in zip(records["op"].tolist(), records["peer_or_root"].tolist(), strict=True)
        ]
        # Calls since the iteration's end: whole iterations of them, and a rest of the cycle's first calls.
        begun = sum(entered for key, entered in self._entered.items() if _is_point_to_point(key, comm))
        since = (begun + self._outstanding.get(comm, 0) - end) % _MODULO
        calls, rest = Counter(keys), Counter(keys[: since % len(keys)])
        starts = {
            key: self._entered.get(key, 0) - since // len(keys) * each - rest[key]
            for key, each in calls.items()
            if comm not in self._outstanding or parse_counter_key(key).traffic != Traffic.RECV  # else in any order
        }
        return IterationCounts(starts, dict(calls))


def _is_point_to_point(key: int, comm: int) -> bool:
    """Check whether a counter counts point-to-point calls of the communicator."""
    parts = parse_counter_key(key)
    return parts.comm == comm and parts.traffic in (Traffic.SEND, Traffic.RECV)
