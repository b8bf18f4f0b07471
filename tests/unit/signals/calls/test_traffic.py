"""What an iteration's calls put on a link: collectives around a ring, sends to one peer."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.calls.traffic import MOST_PAYLOAD, cycle_traffic, link_bytes
from falcon_core.wire.reporting.messages import MOST_BYTES
from falcon_core.wire.ring import EXCHANGE, GRAPH, POINT_TO_POINT, RECORD_DTYPE, Op, RecordArray


def calls(*rows: tuple[int, Op, int, int]) -> RecordArray:
    """Return records of these calls: communicator, operation, peer, payload."""
    records: RecordArray = np.zeros(len(rows), dtype=RECORD_DTYPE)
    for place, (comm, op, peer, payload) in enumerate(rows):
        record = records[place]
        record["comm"], record["op"], record["peer_or_root"], record["bytes"] = comm, op, peer, payload
    return records


@pytest.mark.parametrize(
    ("op", "size", "carried"),
    [
        (Op.ALL_REDUCE, 2, 1000),  # a half there, and a half back
        (Op.ALL_REDUCE, 4, 1500),
        (Op.ALL_REDUCE, 0, 2000),  # of many members, where it is not known of how many
        (Op.ALL_GATHER, 4, 3000),
        (Op.REDUCE_SCATTER, 4, 3000),
        (Op.BROADCAST, 4, 1000),
        (Op.BARRIER, 4, 1000),
    ],
)
def test_a_link_of_the_ring_carries_what_the_operation_needs(op: Op, size: int, carried: float) -> None:
    assert link_bytes(op, 1000, size) == carried


def test_calls_of_a_communicator_add_up_and_sends_are_counted_by_peer() -> None:
    cycle = calls(
        (7, Op.ALL_REDUCE, -1, 1000),
        (7, Op.ALL_REDUCE, -1, 500),
        (7, Op.ALL_REDUCE, -1, 500),
        (7 | EXCHANGE, Op.ALL_TO_ALL, 3, 64),
        (9 | GRAPH, Op.UNKNOWN, -1, 10_000),
        (1 | POINT_TO_POINT, Op.SEND, 2, 300),
        (1 | POINT_TO_POINT, Op.SEND, 2, 300),
        (1 | POINT_TO_POINT, Op.SEND, 3, 5),
        (1 | POINT_TO_POINT, Op.RECV, 2, 800),
    )
    assert cycle_traffic(cycle, {7: 4}) == ({7: 3064}, {(1, 2): 600, (1, 3): 5})


def test_nothing_carries_nothing() -> None:
    assert cycle_traffic(calls(), {}) == ({}, {})


def test_noise_in_a_ring_stays_within_what_a_report_may_hold() -> None:
    cycle = calls((7, Op.ALL_GATHER, -1, 1), (1 | POINT_TO_POINT, Op.SEND, 2, 1))
    cycle["bytes"] = np.iinfo(np.uint64).max
    assert cycle_traffic(cycle, {7: 1 << 32}) == ({7: MOST_BYTES}, {(1, 2): MOST_PAYLOAD})
