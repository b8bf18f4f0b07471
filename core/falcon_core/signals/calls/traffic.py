"""Compute the bytes that a rank's calls of one iteration put on each link, for strategy S3 (FALCON §5.3).

Members of a collective are taken to pass data around a ring, the pattern that libraries use for large payloads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import numpy as np

from falcon_core.wire.reporting.messages import MOST_BYTES
from falcon_core.wire.ring import EXCHANGE, GRAPH, POINT_TO_POINT, Op, RecordArray

MOST_PAYLOAD: Final = 1 << 40  # of a call; a ring with more holds noise
_TWICE: Final = frozenset({Op.ALL_REDUCE})  # a reduce-scatter, then an all-gather
_EACH_MEMBERS: Final = frozenset({Op.ALL_GATHER, Op.REDUCE_SCATTER})  # the payload is one member's part


def link_bytes(op: int, payload: int, size: int) -> float:
    """Return the bytes that one link of the ring carries for a call.

    Args:
        op: ``ring.Op``.
        payload: of one rank, bytes.
        size: members; 0 where it is not known.
    """
    others = max(1, size - 1)
    if op in _TWICE:
        return payload * (2.0 * others / size if size > 1 else 2.0)
    if op in _EACH_MEMBERS:
        return float(payload * others)
    return float(payload)


def cycle_traffic(cycle: RecordArray, sizes: Mapping[int, int]) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """Add up what the calls of a cycle put on a link.

    Args:
        cycle: the records of an iteration's calls, [n], dtype RECORD_DTYPE.
        sizes: members, by communicator id.

    Returns:
        Bytes by communicator id, for its collectives; and bytes by communicator id and peer, for sends to that peer.
    """
    collectives: defaultdict[int, float] = defaultdict(float)
    sends: defaultdict[tuple[int, int], int] = defaultdict(int)
    columns = [cycle[name].astype(np.int64) for name in ("comm", "op", "peer_or_root")]
    # An iteration has thousands of calls and few kinds: each kind is counted once, not each call.
    kinds = np.stack([*columns, np.minimum(cycle["bytes"], MOST_PAYLOAD).astype(np.int64)])
    for (comm, op, peer, payload), count in zip(*_counted(kinds), strict=True):
        # Receives are left out: the sender reports the same bytes.
        if comm & POINT_TO_POINT:
            if op == Op.SEND and peer >= 0:
                sends[comm & ~POINT_TO_POINT, peer] += payload * count
        elif not comm & GRAPH:
            comm &= ~EXCHANGE
            collectives[comm] += link_bytes(op, payload, sizes.get(comm, 0)) * count
    return {comm: _bounded(carried) for comm, carried in collectives.items()}, {
        to: _bounded(carried) for to, carried in sends.items()
    }


def _bounded(carried: float) -> int:
    return min(round(carried), MOST_BYTES)


def _counted(columns: np.ndarray) -> tuple[list[list[int]], list[int]]:
    """Return the distinct columns, and how often each occurs."""
    distinct, counts = np.unique(columns, axis=1, return_counts=True)
    return distinct.T.tolist(), counts.tolist()
