"""What a rank's agent reports of its communicators: places, counts and the next call.

The report is bounded, and it survives the agent's own death.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from falcon_agent.rings.communicators import CommTable, Count, Shape, collective_counts, pairs
from falcon_agent.rings.tracker import Tracker
from falcon_core.wire import ring
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.reporting.messages import MAX_COMMS, MAX_PAIRS, MAX_SENDS, SentSignals
from tests.unit.agent.ring_files import descriptor, write_ring
from tests.unit.signals.calls.test_traffic import calls
from tests.unit.signals.streams import MS, Call, Script

KEY = ring.counter_key


def counters(counts: dict[int, tuple[int, int]]) -> ring.CounterArray:
    table: ring.CounterArray = np.zeros(len(counts), dtype=ring.COUNTER_DTYPE)
    for place, (key, (entered, finished)) in enumerate(counts.items()):
        table[place]["key"], table[place]["entered"], table[place]["finished"] = key, entered, finished
    return table


def test_descriptors_give_size_and_place_until_the_communicator_ends() -> None:
    table = CommTable()
    ended = descriptor(2, 4, 1)
    ended["flags"] = ring.Flag.ENDED
    point_to_point = descriptor(1 | ring.POINT_TO_POINT, 8, 3)
    table.feed(np.concatenate((descriptor(1, 8, 3), point_to_point, descriptor(2, 4, 1), ended)))
    assert table.shapes == [Shape(1, 8, 3)]


def test_the_call_that_a_rank_is_in_is_known_from_its_cycle() -> None:
    script = Script()
    script.cycle(
        [Call(ring.Op.ALL_REDUCE, 64, MS), Call(ring.Op.ALL_GATHER, 32, MS), Call(ring.Op.BARRIER, 0, MS, comm=9)], 5
    )
    table = CommTable([Shape(7, 2, 0)])
    table.feed(script.records)
    (first, second), left = table.comms(counts={7: Count(12, 11), 9: Count(5, 5)}, excess_ns={}, period_calls=3)
    assert (first.comm, first.size, first.entered, first.finished, left) == (7, 2, 12, 11, 0)
    assert (first.op, first.bytes) == (ring.Op.ALL_GATHER, 32), "call 11 is of the same kind as call 9"
    assert (second.comm, second.size, second.op) == (9, 0, ring.Op.BARRIER)
    ((largest,), _) = table.comms(counts={}, excess_ns={7: (1.0,)}, period_calls=3)
    assert (largest.op, largest.entered, largest.excess_ns) == (ring.Op.ALL_REDUCE, None, [1])


def test_what_a_slow_rank_puts_on_links_is_added_up_over_its_cycle() -> None:
    sends = [(7 | ring.POINT_TO_POINT, ring.Op.SEND, peer, 100 + peer) for peer in range(MAX_SENDS + 1)]
    cycle = calls((7, ring.Op.ALL_REDUCE, -1, 64), (7, ring.Op.ALL_REDUCE, -1, 36), *sends)
    cycle["kind"] = ring.Kind.BLOCKING
    table = CommTable([Shape(7, 2, 0)])
    table.feed(cycle)
    table.feed(cycle)
    period = len(cycle)
    ((slow,), _) = table.comms(counts={}, excess_ns={7: (1.0,)}, period_calls=period)
    assert slow.link_bytes == 100, "of a ring of two, a half there and a half back"
    ((silent,), _) = table.comms(counts={7: Count(8, 8)}, excess_ns={}, period_calls=period)
    assert silent.link_bytes is None, "the operator does not ask"
    told = table.sends(period)
    assert (len(told), told[0]) == (MAX_SENDS, SentSignals(comm=7, peer=MAX_SENDS, bytes=100 + MAX_SENDS))
    assert table.sends(None) == []


def test_communicators_with_a_waiting_rank_come_first_then_the_largest_excess_and_the_rest_is_counted() -> None:
    counts = {comm: Count(5 + (comm == 17), 5) for comm in range(1, 21)}
    comms, left = CommTable().comms(counts=counts, excess_ns={9: (1e6, 2e6), 4: (5e6,)}, period_calls=None)
    assert [comm.comm for comm in comms] == [17, 4, 9, 1, 2, 3, 5, 6]
    assert (len(comms), left) == (MAX_COMMS, 12)


def test_communicators_of_sends_and_receives_alone_come_last_where_there_is_room() -> None:
    table = CommTable([Shape(comm=30, size=8, place=5)])
    comms, left = table.comms(counts={1: Count(5, 5)}, excess_ns={}, period_calls=None, paired={30, 31})
    assert [(comm.comm, comm.size, comm.place, comm.entered) for comm in comms] == [(1, 0, -1, 5), (30, 8, 5, None)]
    full = {comm: Count(5, 5) for comm in range(1, MAX_COMMS + 1)}
    comms, left = table.comms(counts=full, excess_ns={}, period_calls=None, paired={30})
    assert (len(comms), left) == (MAX_COMMS, 0), "nothing is lost that counts"


def test_counts_by_traffic() -> None:
    table = counters(
        {
            KEY(3, ring.Traffic.COLLECTIVE): (8, 7),
            KEY(3, ring.Traffic.SEND, 1): (4, 4),
            KEY(3, ring.Traffic.RECV, 2): (3, 2),
            KEY(5, ring.Traffic.GRAPH): (1, 1),
        }
    )
    assert collective_counts(table, enqueues=False) == {3: Count(8, 7)}
    assert collective_counts(table, enqueues=True) == {3: Count(8, None)}, "finished lags behind the device"
    transfers, left = pairs(table, enqueues=False)
    assert [(pair.peer, pair.sending, pair.entered, pair.finished) for pair in transfers] == [
        (2, False, 3, 2),
        (1, True, 4, 4),
    ]
    assert left == 0
    many = counters({KEY(3, ring.Traffic.SEND, peer): (1, 1) for peer in range(20)})
    assert [len(pairs(many, enqueues=False)[0]), pairs(many, enqueues=False)[1]] == [MAX_PAIRS, 20 - MAX_PAIRS]


def test_a_successor_knows_the_places_from_its_predecessor(tmp_path: Path) -> None:
    script = Script(jitter=0.02)
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    (tmp_path / RINGS_DIR).mkdir(parents=True)

    def tracker(records: ring.RecordArray, memory: bytes = b"") -> Tracker:
        path = tmp_path / RINGS_DIR / "g1-r0-100.ring"
        write_ring(path, records, rank=0, world_size=2, counters={KEY(7, ring.Traffic.COLLECTIVE): (61, 60)})
        follower = Tracker(tmp_path, memory, monotonic_ns=lambda: script.now_ns + 5_000 * MS)
        follower.poll(["g1-r0-100.ring"])
        return follower

    first = tracker(np.concatenate((descriptor(7, 2, 1), script.records)))
    second = tracker(script.records[-30:], first.memory())
    for follower in (first, second):
        (comm,) = follower.signals(1)[0].comms
        assert (comm.comm, comm.size, comm.place, comm.entered, comm.finished) == (7, 2, 1, 61, 60)


def test_a_rank_that_is_not_slow_says_what_it_carries_where_it_is_asked(tmp_path: Path) -> None:
    script = Script(jitter=0.02)
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    records = np.concatenate((descriptor(7, 2, 1), script.records))
    (tmp_path / RINGS_DIR).mkdir(parents=True)
    write_ring(tmp_path / RINGS_DIR / "g1-r0-100.ring", records, rank=0, world_size=2)
    tracker = Tracker(tmp_path, monotonic_ns=lambda: script.now_ns + 100 * MS)
    tracker.poll(["g1-r0-100.ring"])
    assert tracker.signals(1, asked={1})[0].comms == []
    (comm,) = tracker.signals(1, asked={0})[0].comms
    assert (comm.comm, comm.size, comm.place, comm.link_bytes, comm.excess_ns) == (7, 2, 1, 64, [])


def test_the_ring_of_an_earlier_shim_has_no_counts_to_report(tmp_path: Path) -> None:
    script = Script()
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    (tmp_path / RINGS_DIR).mkdir(parents=True)
    write_ring(tmp_path / RINGS_DIR / "g1-r0-100.ring", script.records, rank=0, world_size=2)
    tracker = Tracker(tmp_path, monotonic_ns=lambda: script.now_ns + 5_000 * MS)
    tracker.poll(["g1-r0-100.ring"])
    assert tracker.signals(1)[0].comms == []


def test_a_rank_that_has_just_ended_says_how_far_it_had_come(tmp_path: Path) -> None:
    script = Script(jitter=0.02)
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    records = np.concatenate((descriptor(7, 2, 1), script.records))
    (tmp_path / RINGS_DIR).mkdir(parents=True)
    counted = {KEY(7, ring.Traffic.COLLECTIVE): (61, 60)}
    write_ring(tmp_path / RINGS_DIR / "g1-r0-100.ring", records, rank=0, world_size=2, counters=counted)
    tracker = Tracker(tmp_path, monotonic_ns=lambda: script.now_ns + 100 * MS)
    tracker.poll(["g1-r0-100.ring"])
    assert tracker.signals(1)[0].comms == [], "it is not silent yet"
    (comm,) = tracker.signals(1, ended={0})[0].comms
    assert (comm.size, comm.place, comm.entered, comm.finished) == (2, 1, 61, 60)
