"""A rank's own part of the attribution: compute and wait by position, on records as Gloo and NCCL produce them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.signals.attribution.compute_and_wait import Excess, attribute, compute_ns, inside_outside
from falcon_core.signals.calls.stream import Tokenizer, Trait
from falcon_core.signals.iterations.device_times import in_turn
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.signals.job.culprits import RankView, Wait, attribute_slowdown
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Kind, Op
from tests.unit.signals.members import TRANSFER_NS, Job, data_parallel
from tests.unit.signals.streams import MS, Call, Script

RANKS = 4
SLOW = 2


def _chains(job: Job, batch: int = 50) -> list[RankChain]:
    chains = []
    for rank in range(job.ranks):
        chain, records = RankChain(Detection()), job.records(rank)
        for at in range(0, len(records), batch):
            chain.feed(records[at : at + batch])
        chains.append(chain)
    return chains


def _views(chains: list[RankChain]) -> list[RankView]:
    views = []
    for rank, chain in enumerate(chains):
        track = chain.track()
        assert track is not None
        views.append(
            RankView(
                rank=rank,
                iteration_ns=track.iteration_ns,
                compute_ns=track.compute_ns,
                healthy_compute_ns=track.healthy_compute_ns,
                waits=tuple(
                    Wait(comm=str(comm), members=tuple(range(RANKS)), excess_ns=sum(parts), parts_ns=parts)
                    for comm, parts in track.excess_ns.items()
                ),
            )
        )
    return views


def _iteration(script: Script) -> Iteration:
    return Iteration(1, script.calls.starts_ns[0], script.now_ns, False, script.calls)


def test_time_in_a_receive_is_no_computation() -> None:
    script = Script()
    for call in (Call(Op.RECV, 8, 5 * MS, 300 * MS), Call(Op.ALL_REDUCE, 8, 20 * MS, 40 * MS)):
        script.call(call)
    script.now_ns += 7 * MS
    assert compute_ns(_iteration(script)) == 27 * MS


def test_what_was_waited_for_before_the_iterations_first_call_takes_none_of_its_time() -> None:
    script = Script()
    for call in (Call(Op.SEND, 8, 5 * MS, 0), Call(Op.ALL_REDUCE, 8, 20 * MS, 40 * MS)):
        script.call(call)
    calls = msgspec.structs.replace(script.calls, starts_ns=script.calls.starts_ns - np.array([0, 30 * MS]))
    start = int(calls.starts_ns[0])
    iteration = Iteration(1, start, start + 100 * MS, False, calls)
    inside = int(calls.ends_ns[1]) - start
    assert 0 < inside < 100 * MS
    assert compute_ns(iteration) == 100 * MS - inside


_SPAN = st.tuples(st.integers(-3, 6), st.integers(0, 9), st.sampled_from([True, True, True, False]))


@given(st.lists(st.lists(_SPAN, min_size=1, max_size=5), min_size=1, max_size=5), st.booleans())
def test_several_iterations_at_once_are_attributed_as_each_by_itself(
    spans: list[list[tuple[int, int, bool]]], alike: bool
) -> None:
    if alike:  # as many calls each
        spans = [each[: min(map(len, spans))] for each in spans]
    every = [span for each in spans for span in each]
    starts = 1000 + np.cumsum([0, *(step for step, _, _ in every)])
    calls = msgspec.structs.replace(
        Script().calls,
        starts_ns=starts[:-1],
        ends_ns=starts[:-1] + np.array([length for _, length, _ in every]),
        measured=np.array([measured for _, _, measured in every]),
        traits=np.full(len(every), Trait.SYNCHRONISING, dtype=np.uint8),
        tokens=np.zeros(len(every), dtype=np.int64),
    )
    iterations, first = [], 0
    for each in spans:
        last = first + len(each)
        begin, over = int(starts[first]), int(starts[last])
        iterations.append(Iteration(1, begin, max(begin, over), False, calls, None, (first, last)))
        first = last
    for iteration, found in zip(iterations, attribute(iterations), strict=True):
        assert found.compute_ns == compute_ns(iteration)
        np.testing.assert_equal(found.times, inside_outside(iteration))


def test_calls_without_an_end_give_neither_compute_nor_wait() -> None:
    script = Script()
    script.cycle([Call(Op.ALL_REDUCE, 8, 20 * MS, 0)] * 3)
    records = script.records
    records["kind"] = Kind.ENQUEUED
    iteration = Iteration(1, int(records["t_start_ns"][0]), script.now_ns, False, Tokenizer().calls(records))
    assert compute_ns(iteration) is None
    assert inside_outside(iteration) is None


@pytest.mark.parametrize("before", [0, 1, 3], ids=lambda calls: f"{calls} calls before")
@pytest.mark.parametrize("sampled", [None, 1, 4], ids=["Gloo", "NCCL, all sampled", "NCCL, one window in 4"])
def test_the_straggler_computes_longer_and_the_others_wait(sampled: int | None, before: int) -> None:
    job = Job(RANKS, sampled=sampled)
    for _ in range(before):  # windows then begin inside a cycle
        job.meet(Op.BARRIER, 0, [range(RANKS)], comm=7)
    data_parallel(job, 80)
    data_parallel(job, 40, {SLOW: 1.6})
    chains = _chains(job)
    for rank, chain in enumerate(chains):
        track = chain.track()
        assert track is not None
        assert track.compute_ns is not None
        assert track.healthy_compute_ns == pytest.approx(106 * MS, rel=0.05)
        grown = 60 * MS if rank == SLOW else 0
        assert track.compute_ns - track.healthy_compute_ns == pytest.approx(grown, abs=6 * MS)
        assert sum(track.excess_ns[7]) == pytest.approx(60 * MS - grown, abs=6 * MS)
    assert all(chain.slowdown is not None for chain in chains)
    found = attribute_slowdown(_views(chains), loss_ns=60 * MS)
    assert [(verdict.kind, verdict.ranks) for verdict in found] == [("Computation", (SLOW,))]


def test_ends_that_a_poll_noticed_late_make_no_computation() -> None:
    job = Job(RANKS, sampled=2, poll_ns=25 * MS)  # the whole burst ends within one poll or two
    data_parallel(job, 80)
    for chain in _chains(job):
        computes = chain.signals(0, 0).compute_ns
        assert len(computes) == 16
        assert np.median(computes) == pytest.approx(106.8 * MS, abs=1.5 * MS)


def test_calls_of_one_communicator_run_in_turn_and_the_calls_of_a_group_run_together() -> None:
    starts, durations = np.array([0, 7, 8, 8, 20]), np.array([5, 3, 2, 2, 1])
    assert in_turn(starts, durations).tolist() == [0, 5, 8, 8, 20]
    assert in_turn(starts[:0], durations[:0]).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 30)), max_size=30))
def test_in_turn_moves_starts_back_only_as_far_as_it_must(calls: list[tuple[int, int]]) -> None:
    starts = np.cumsum(np.array([gap for gap, _ in calls], dtype=np.int64))
    durations = np.array([duration * 31 + place for place, (_, duration) in enumerate(calls)], dtype=np.int64)
    moved = in_turn(starts, durations)
    assert (moved <= starts).all()
    assert (moved[:-1] + durations[:-1] <= moved[1:]).all()
    apart = (np.cumsum(durations) - durations) * 2
    assert (in_turn(apart, durations) == apart).all()


@pytest.mark.parametrize("sampled", [None, 4], ids=["Gloo", "NCCL"])
def test_a_link_that_became_slow_grows_everybodys_excess(sampled: int | None) -> None:
    job = Job(RANKS, sampled=sampled)
    data_parallel(job, 80)
    for _ in range(40):
        job.compute(100 * MS)
        for size in (1 << 20, 1 << 20, 1 << 12):
            job.meet(Op.ALL_REDUCE, size, [range(RANKS)], 7, lambda _: TRANSFER_NS + 10 * MS)
            job.compute(2 * MS)
        job.meet(Op.ALL_REDUCE, 4, [range(RANKS)], 7, lambda _: TRANSFER_NS + 10 * MS)
        job.end_cycle()
    found = attribute_slowdown(_views(_chains(job)), loss_ns=40 * MS)
    assert [(verdict.kind, verdict.ranks) for verdict in found] == [("Communication", (0, 1, 2, 3))]


def test_enqueue_times_alone_give_iterations_and_onset_but_no_attribution() -> None:
    job = Job(RANKS, sampled=10**9)  # only the very first cycle
    data_parallel(job, 80)
    data_parallel(job, 40, {SLOW: 1.6})
    for chain in _chains(job):
        assert chain.slowdown is not None
        signals = chain.signals(0, 0)
        assert signals.iterations > 100
        assert len(signals.compute_ns) <= 1
        assert signals.healthy_compute_ns is None


def test_the_track_does_not_depend_on_how_the_records_are_split() -> None:
    job = Job(RANKS, sampled=4)
    data_parallel(job, 80)
    assert [chain.track() for chain in _chains(job, 1)] == [chain.track() for chain in _chains(job, 10_000)]


def _excess(outside: list[float], healthy: list[float]) -> Excess:
    return Excess(np.zeros(len(outside)), np.array(outside), np.array(healthy))


def test_a_stall_at_one_place_is_distinguished_from_work_that_is_slow_everywhere() -> None:
    healthy = [40.0, 30.0, 20.0, 10.0]
    assert _excess([20.0, 15.0, 10.0, 5.0], healthy).stall_share == pytest.approx(0.0)
    assert _excess([0.0, 0.0, 0.0, 50.0], healthy).stall_share == pytest.approx(1.0)
    assert _excess([50.0, 0.0, 0.0, 0.0], healthy).stall_share == pytest.approx(1.0)
    assert _excess([35.0, 15.0, 10.0, 5.0], healthy).stall_share == pytest.approx((35 / 65 - 0.4) / 0.6)
    assert _excess([50.0, 0.0], [80.0, 20.0]).stall_share is None  # one gap is all the work there is
    assert _excess([-1.0, 0.0], [50.0, 50.0]).stall_share is None
