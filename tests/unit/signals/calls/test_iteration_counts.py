"""Counts at the start of an iteration, from the records of one iteration and the counters."""

from __future__ import annotations

import numpy as np

from falcon_core.signals.calls.iteration_counts import IterationCounts, iteration_counts
from falcon_core.wire.ring import (
    COUNTER_DTYPE,
    GRAPH,
    POINT_TO_POINT,
    RECORD_DTYPE,
    CounterArray,
    Op,
    RecordArray,
    Traffic,
    counter_key,
)

WORLD = counter_key(1, Traffic.COLLECTIVE)
TO, FROM, ANY = counter_key(1, Traffic.SEND, 3), counter_key(1, Traffic.RECV, 2), counter_key(1, Traffic.RECV_ANY)


def _records(*calls: tuple[int, int, Op, int]) -> RecordArray:
    """Return records of calls; each call is (comm, comm_seq, op, peer)."""
    records: RecordArray = np.zeros(len(calls), dtype=RECORD_DTYPE)
    for place, (comm, number, op, peer) in enumerate(calls):
        records[place]["comm"], records[place]["comm_seq"] = comm, number
        records[place]["op"], records[place]["peer_or_root"] = op, peer
    return records


def _counters(counts: dict[int, int | tuple[int, int]]) -> CounterArray:
    counters: CounterArray = np.zeros(len(counts), dtype=COUNTER_DTYPE)
    for place, (key, calls) in enumerate(counts.items()):
        counters[place]["key"] = key
        counters[place]["entered"], counters[place]["finished"] = calls if isinstance(calls, tuple) else (calls, calls)
    return counters


def test_collectives_are_counted_by_their_numbers() -> None:
    cycle = _records((1, 11, Op.ALL_REDUCE, -1), (1, 10, Op.ALL_REDUCE, -1), (3 | GRAPH, 4, Op.UNKNOWN, -1))
    found = iteration_counts(
        cycle, _counters({WORLD: 14, counter_key(3, Traffic.GRAPH): 5, counter_key(9, Traffic.SEND, 1): 7})
    )
    launches = counter_key(3, Traffic.GRAPH)
    assert found == IterationCounts(starts={WORLD: 12, launches: 5}, calls={WORLD: 2, launches: 1})


def test_numbers_of_32_bits_stand_for_counts_of_64() -> None:
    cycle = _records((1, 2**32 - 1, Op.ALL_REDUCE, -1), (1, 0, Op.ALL_REDUCE, -1))
    found = iteration_counts(cycle, _counters({WORLD: 2**32 + 2}))
    assert found is not None
    assert found.starts == {WORLD: 2**32 + 1}


def test_pairs_are_counted_back_from_the_counters() -> None:
    """Check pairs: 20 point-to-point calls until the iteration ended, and four calls since then.

    These are send, receive, receive, and a send of the next iteration. So far, only the first of them is waited for.
    """
    comm = 1 | POINT_TO_POINT
    cycle = _records((comm, 17, Op.SEND, 3), (comm, 18, Op.RECV, 2), (comm, 19, Op.RECV, 2))
    found = iteration_counts(cycle, _counters({WORLD: 3, TO: 8 + 2, FROM: 12 + 2}))
    assert found == IterationCounts(starts={TO: 8, FROM: 12}, calls={TO: 1, FROM: 2})


def test_of_receives_from_anyone_only_the_sends_among_them_have_a_start() -> None:
    comm = 1 | POINT_TO_POINT
    cycle = _records((comm, 0, Op.RECV, 2), (comm, 1, Op.RECV, 4), (comm, 2, Op.SEND, 3))
    from_4 = counter_key(1, Traffic.RECV, 4)
    # Of the receives begun since then, one has arrived and one has not. The send was not begun.
    found = iteration_counts(cycle, _counters({FROM: 1, from_4: 2, TO: 1, ANY: (4, 3)}))
    assert found == IterationCounts(starts={TO: 1}, calls={FROM: 1, from_4: 1, TO: 1})


def test_no_counts_where_calls_are_missing() -> None:
    assert iteration_counts(_records((1, 10, Op.BARRIER, -1), (1, 12, Op.BARRIER, -1)), _counters({WORLD: 13})) is None
