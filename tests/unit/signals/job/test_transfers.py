"""Profile mode: durations of all members, matched call by call, on records as Gloo and NCCL produce them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.signals.job.transfers import Matched, edges, match, slow_links, timed, transfer_medians, waits
from falcon_core.wire.ring import RECORD_DTYPE, Flag, Kind, Op, RecordArray
from tests.unit.signals.members import Job, data_parallel
from tests.unit.signals.streams import MS

TENSOR, DATA = 3, 9  # communicator ids, the same number in every process for different groups


def grid(
    job: Job, *, tensor: int, cycles: int, slow_tp: int | None = None, slow_dp: int | None = None
) -> list[Matched]:
    """Run cycles of tensor-parallel all-reduces and one data-parallel reduce-scatter, and match their calls."""
    tensor_groups = [tuple(range(first, first + tensor)) for first in range(0, job.ranks, tensor)]
    data_groups = [tuple(range(first, job.ranks, tensor)) for first in range(tensor)]
    for _ in range(cycles):
        for _ in range(4):
            job.compute(5 * MS)
            job.meet(Op.ALL_REDUCE, 1 << 16, tensor_groups, TENSOR, lambda place: MS * (2 if place == slow_tp else 1))
        job.meet(Op.REDUCE_SCATTER, 1 << 20, data_groups, DATA, lambda place: MS * (24 if place == slow_dp else 20))
        job.end_cycle()
    return match(*named(job, tensor_groups, data_groups))


def named(
    job: Job, tensor_groups: list[tuple[int, ...]], data_groups: list[tuple[int, ...]]
) -> tuple[dict[int, RecordArray], dict[tuple[int, int], str], dict[str, tuple[int, ...]]]:
    names = {(rank, TENSOR): f"tp{place}" for place, group in enumerate(tensor_groups) for rank in group}
    names |= {(rank, DATA): f"dp{place}" for place, group in enumerate(data_groups) for rank in group}
    members = {f"tp{place}": group for place, group in enumerate(tensor_groups)}
    members |= {f"dp{place}": group for place, group in enumerate(data_groups)}
    return {rank: job.records(rank) for rank in range(job.ranks)}, names, members


@pytest.mark.parametrize("sampled", [None, 1], ids=["Gloo", "NCCL"])
def test_transfer_is_the_fastest_members_duration_and_wait_the_rest(sampled: int | None) -> None:
    job = Job(4, sampled=sampled)
    data_parallel(job, 10, {1: 1.5})
    found = match(
        {rank: job.records(rank) for rank in range(4)},
        {(rank, 7): "world" for rank in range(4)},
        {"world": (0, 1, 2, 3)},
    )
    assert sum(len(matched.numbers) for matched in found) == 40
    waits_by_rank = waits(found, cycles=10)
    assert waits_by_rank[1][0].excess_ns == pytest.approx(0, abs=2 * MS)
    for rank in (0, 2, 3):
        assert waits_by_rank[rank][0].excess_ns == pytest.approx(50 * MS, rel=0.1)
    for matched in found:
        assert np.median(matched.transfers_ns) == pytest.approx(2 * MS, rel=0.1)
        assert matched.waits_ns.min(axis=0).max() == 0


@pytest.mark.parametrize("sampled", [None, 1], ids=["Gloo", "NCCL"])
def test_a_slow_link_stands_out_of_its_kind_and_a_straggler_does_not(sampled: int | None) -> None:
    assert slow_links(grid(Job(16, sampled=sampled), tensor=4, cycles=8)) == []
    found = slow_links(grid(Job(16, sampled=sampled), tensor=4, cycles=8, slow_tp=2))
    assert [(link.comm, link.members) for link in found] == [("tp2", (8, 9, 10, 11))]
    assert found[0].ratio == pytest.approx(2.0, rel=0.05)
    found = slow_links(grid(Job(16, sampled=sampled), tensor=4, cycles=8, slow_dp=1))
    assert [(link.comm, link.siblings) for link in found] == [("dp1", 3)]


def test_without_siblings_its_own_healthy_transfer_is_the_reference() -> None:
    healthy = grid(Job(4), tensor=4, cycles=8)
    sick = grid(Job(4, seed=1), tensor=4, cycles=8, slow_tp=0)
    assert slow_links(sick) == []
    assert [link.comm for link in slow_links(sick, transfer_medians(healthy))] == ["tp0"]


def _calls(*rows: tuple[int, int, int, int]) -> RecordArray:
    """Return records of calls; each call is (comm, comm_seq, start, duration), times in ms."""
    records = np.zeros(len(rows), dtype=RECORD_DTYPE)
    for column, name in enumerate(("comm", "comm_seq", "t_start_ns", "duration_ns")):
        records[name] = [row[column] * (MS if column > 1 else 1) for row in rows]
    records["kind"], records["op"], records["bytes"] = Kind.BLOCKING, Op.ALL_REDUCE, 64
    return records


def test_transfers_that_overlap_are_not_scored_but_waits_that_overlap_are() -> None:
    names = {(rank, comm): f"c{comm}" for rank in (0, 1) for comm in (1, 2)}
    members = {"c1": (0, 1), "c2": (0, 1)}
    together = [(1, k, 100 * k, 10) for k in range(4)] + [(2, k, 100 * k + 5, 10) for k in range(4)]
    apart = [(1, k, 100 * k, 10) for k in range(4)] + [(2, k, 100 * k + 10, 10) for k in range(4)]
    for calls, overlapped in ((together, True), (apart, False)):
        found = match({0: _calls(*calls), 1: _calls(*calls)}, names, members)
        assert [matched.overlapped.all() for matched in found] == [overlapped] * 2
        assert [matched.overlapped.any() for matched in found] == [overlapped] * 2
    waiting = [(1, k, 100 * k, 50) for k in range(4)] + [(2, k, 100 * k + 20, 10) for k in range(4)]
    late = [(1, k, 100 * k + 40, 10) for k in range(4)] + [(2, k, 100 * k + 20, 10) for k in range(4)]
    found = match({0: _calls(*waiting), 1: _calls(*late)}, names, members)
    assert not any(matched.overlapped.any() for matched in found)


def test_what_a_member_did_not_report_is_left_out_and_so_is_what_failed() -> None:
    rows = [(1, k, 100 * k, 10) for k in range(6)]
    names, members = {(0, 1): "c", (1, 1): "c"}, {"c": (0, 1)}
    assert match({0: _calls(*rows)}, names, members) == []
    failed = _calls(*rows)
    failed["flags"][2] = Flag.FAILED
    found = match({0: _calls(*rows[1:]), 1: failed[:5]}, names, members)
    assert [matched.numbers.tolist() for matched in found] == [[1, 3, 4]]


def test_roots_leave_early_so_broadcasts_do_not_count() -> None:
    calls = _calls(*[(1, k, 100 * k, 10) for k in range(4)])
    calls["op"] = Op.BROADCAST
    assert match({0: calls, 1: calls}, {(0, 1): "c", (1, 1): "c"}, {"c": (0, 1)}) == []


def test_a_completion_gives_the_enqueued_call_its_time() -> None:
    calls = _calls((1 << 63, 0, 5, 0), (1 << 63, 1, 6, 0), (1 << 63, 0, 9, 3), (77, 1, 9, 3))
    calls["kind"] = [Kind.ENQUEUED, Kind.ENQUEUED, Kind.COMPLETED, Kind.COMPLETED]
    records = timed(calls)
    times = [(int(record["comm_seq"]), int(record["t_start_ns"]), int(record["duration_ns"])) for record in records]
    assert times == [(0, 9 * MS, 3 * MS)]


def test_receives_give_wait_for_edges() -> None:
    calls = _calls(*[(1, k, 100 * k, 2 if k % 2 else 42) for k in range(8)])
    calls["op"], calls["peer_or_root"] = Op.RECV, 0
    sends = _calls(*[(1, k, 100 * k, 2) for k in range(8)])
    sends["op"], sends["peer_or_root"] = Op.SEND, 1
    found = edges({5: calls, 4: sends}, {(5, 1, 0): 4, (4, 1, 1): 5}, cycles=4)
    assert (found[0].waiter, found[0].peer, found[0].receiving, found[0].excess_ns) == (5, 4, True, 40 * MS)
    assert found[1].excess_ns == 0


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=3, max_size=3), min_size=1, max_size=30))
def test_every_call_has_a_member_that_does_not_wait(durations: list[list[int]]) -> None:
    profiles = {}
    for rank in range(3):
        records = _calls(*[(1, k, 0, 0) for k in range(len(durations))])
        records["duration_ns"] = [row[rank] for row in durations]
        profiles[rank] = records
    (found,) = match(profiles, {(rank, 1): "c" for rank in range(3)}, {"c": (0, 1, 2)})
    assert (found.waits_ns >= 0).all()
    assert (found.waits_ns.min(axis=0) == 0).all()
    assert found.transfers_ns.tolist() == [min(row) for row in durations]
