"""What one rank knows of its iterations as counts of calls: where one began, and how far it is to the next.

The consistent pause (DESIGN §2) prefers an iteration's start for its cut. A cut is a count per channel, and a channel
is a counter of the ring: the collectives of a communicator, the sends or receives of one with a peer, the launches of
a graph. A record tells its number among the collectives of its communicator, which is that count; point-to-point calls
are numbered for all peers together, so that what a peer's count was when the iteration began takes the counters, and
the order of the iteration's calls for what was begun since.
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
    counter_key,
    parse_counter_key,
)

_MODULO = 1 << 32  # of ``comm_seq``


class Rhythm(msgspec.Struct, frozen=True):
    """By counter (:func:`falcon_core.wire.ring.counter_key`)."""

    starts: Mapping[int, int]  # calls begun before an iteration's start; without those whose order is not known
    calls: Mapping[int, int]  # calls of an iteration


def rhythm(cycle: RecordArray, counters: CounterArray) -> Rhythm | None:
    """The counts at the end of an iteration, which is the next one's start.

    Args:
        cycle: the iteration's records, [n], dtype RECORD_DTYPE, in any order.
        counters: [m], dtype COUNTER_DTYPE, at one moment after it. Between the two every iteration is taken to make the
            same calls; a rank whose iterations do not has no rhythm.

    Returns:
        None where the numbers of its calls have gaps: calls were lost, or others came in between.
    """
    entered = dict(zip(counters["key"].tolist(), counters["entered"].tolist(), strict=True))
    outstanding = {
        parts.comm: int(one["entered"]) - int(one["finished"])
        for one in counters
        if (parts := parse_counter_key(int(one["key"]))).traffic == Traffic.RECV_ANY
    }
    starts: dict[int, int] = {}
    calls: dict[int, int] = {}
    for comm in np.unique(cycle["comm"]).tolist():
        mine = cycle[cycle["comm"] == comm]
        numbers = np.unwrap(mine["comm_seq"].astype(np.int64), period=_MODULO)
        order = np.argsort(numbers, kind="stable")
        if not np.array_equal(numbers[order], numbers[order[0]] + np.arange(len(mine))):
            return None
        end = int(numbers[order[-1]]) + 1
        if not comm & POINT_TO_POINT:
            key = counter_key(comm & ~GRAPH, Traffic.GRAPH if comm & GRAPH else Traffic.COLLECTIVE)
            calls[key] = len(mine)
            starts[key] = entered.get(key, 0) - (entered.get(key, 0) - end) % _MODULO
            continue
        number = comm & ~POINT_TO_POINT
        pairs = _pairs(number, mine[order])
        begun = sum(entered[key] for key in entered if _is_single(key, number))
        since = (begun + outstanding.get(number, 0) - end) % _MODULO
        per_cycle, rest = Counter(pairs), Counter(pairs[: since % len(pairs)])
        for key, each in per_cycle.items():
            calls[key] = each
            if number not in outstanding or parse_counter_key(key).traffic != Traffic.RECV:  # from anyone, in any order
                starts[key] = entered.get(key, 0) - since // len(pairs) * each - rest[key]
    return Rhythm(starts, calls)


def _pairs(number: int, singles: RecordArray) -> list[int]:
    """Counters of the point-to-point calls of a communicator, one for each call."""
    return [
        counter_key(number, Traffic.SEND if op == Op.SEND else Traffic.RECV, peer)
        for op, peer in zip(singles["op"].tolist(), singles["peer_or_root"].tolist(), strict=True)
    ]


def _is_single(key: int, number: int) -> bool:
    """Whether it counts point-to-point calls of the communicator."""
    parts = parse_counter_key(key)
    return parts.comm == number and parts.traffic in (Traffic.SEND, Traffic.RECV)
