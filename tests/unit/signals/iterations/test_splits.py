"""What is known after a call depends only on the calls up to that call, not on the reads in which they came.

Each stream is fed record by record, and then in reads of random lengths. After each read, everything that the chain
knows has to equal what it knew after the same record in the first run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from falcon_core.signals.calls.stream import LOG_CALLS, CallLog, Calls
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Kind, Op, RecordArray
from tests.unit.signals.members import Job
from tests.unit.signals.streams import MS, Call, Script, ddp, ddp_start, fsdp, pipeline

MEAN_LOSS = Call(Op.ALL_REDUCE, 4, 5 * MS)
EVALUATION = Call(Op.ALL_GATHER, 8, 30 * MS)


def _interrupted() -> RecordArray:
    """Return a stream with a checkpoint's barrier, evaluations, a slowdown, and calls of other sizes."""
    script = Script(seed=1, jitter=0.05)
    script.cycle(ddp_start())
    for episode in range(6):
        script.cycle([*ddp(4), MEAN_LOSS], times=13 + episode, slowdown=2.0 if episode == 3 else 1.0)
        script.cycle([EVALUATION], times=3 + 11 * episode)
        script.now_ns += 700 * MS
    return script.records


def _other_phase() -> RecordArray:
    script = Script(seed=2, jitter=0.05)
    script.cycle([*ddp(4), MEAN_LOSS], times=30)
    script.cycle(pipeline(8), times=20)
    script.cycle(ddp(3), times=20)
    return script.records


def _micro_batches() -> RecordArray:
    """Return a stream of micro-batches with the optimizer's calls between them.

    Each micro-batch is long enough to be taken for an iteration until the optimizer's call. That call comes once after
    40 micro-batches, and then after every six or seven.
    """
    script = Script(seed=3, jitter=0.05)
    for number in (40, 6, 6, 6, 7, 6, 6, 6):
        script.cycle([Call(Op.ALL_GATHER, 64, 40 * MS), Call(Op.REDUCE_SCATTER, 64, 40 * MS)], times=number)
        script.call(MEAN_LOSS)
    return script.records


def _slow_layers() -> RecordArray:
    script = Script(seed=4, jitter=0.05)
    layers = [call._replace(before_ns=80 * MS) for call in fsdp(24)]
    script.cycle(layers, times=6)
    return script.records


def _buckets_alike() -> RecordArray:
    """Return a stream of equal buckets: only the gaps show the phase, and an extra call shifts it."""
    script = Script(seed=5, jitter=0.05)
    script.cycle(ddp(5, equal=True), times=25)
    script.call(ddp(5, equal=True)[1])
    script.cycle(ddp(5, equal=True), times=25)
    return script.records


def _flipped() -> RecordArray:
    script = Script(seed=6, jitter=0.05)
    cycle = [*ddp(6), MEAN_LOSS]
    for at in range(600):
        size = int(script.rng.integers(90, 95)) if script.rng.random() < 0.05 else cycle[at % len(cycle)].size
        script.call(cycle[at % len(cycle)]._replace(size=size))
    return script.records


def _varying() -> RecordArray:
    """Return a stream whose sizes depend on the data; they double once, an evaluation interrupts, a rank is slow."""
    script = Script(seed=9, jitter=0.03)
    for iteration in range(110):
        samples = int(script.rng.integers(50, 150)) * (2 if iteration > 60 else 1)
        for _ in range(2):
            script.call(Call(Op.ALL_TO_ALL, samples * 1000, samples * MS), slowdown=1.6 if iteration > 95 else 1.0)
        script.cycle(ddp(2, 20 * MS))
        if iteration == 50:
            script.cycle([EVALUATION], times=30)
    return script.records


def _out_of_order() -> RecordArray:
    """Return a stream in which long calls are published after short calls that began later."""
    records = _interrupted()
    rng = np.random.default_rng(7)
    published = np.argsort(np.arange(len(records)) + 2.5 * (rng.random(len(records)) < 0.2), kind="stable")
    records = records[published]
    records["seq"] = np.arange(1, len(records) + 1)
    return records


def _sampled() -> RecordArray:
    """Return calls as NCCL makes them.

    The device times one window in four, and the completions are noticed in any order.
    """
    job = Job(4, sampled=4)
    job.meet(Op.BARRIER, 0, [range(4)], comm=7)
    for cycle in range(80):
        job.compute(60 * MS, {2: 1.6} if cycle > 60 else None)
        job.meet(Op.ALL_REDUCE, 1 << 20, [range(4)], comm=7)
        for op in (Op.SEND, Op.RECV):  # their times are reported where they are known; no reader waits for them
            job.meet(op, 1 << 10, [[rank] for rank in range(4)], comm=8 + op)
        job.meet(Op.ALL_REDUCE, 4, [range(4)], comm=7)
        job.end_cycle()
    records = job.records(0)
    completed = records["kind"] == Kind.COMPLETED
    rng = np.random.default_rng(8)
    run = np.cumsum(~completed)
    records = records[np.lexsort((rng.random(len(records)), completed, run))]
    records["seq"] = np.arange(1, len(records) + 1)
    return records


STREAMS: dict[str, Callable[[], RecordArray]] = {
    make.__name__.strip("_"): make
    for make in (
        _interrupted,
        _other_phase,
        _micro_batches,
        _slow_layers,
        _buckets_alike,
        _flipped,
        _varying,
        _out_of_order,
        _sampled,
    )
}


def _known(chain: RankChain) -> tuple[object, ...]:
    return chain.signals(0, 0), chain.memory(), chain.period_calls, chain.track()


@functools.cache
def _one_by_one(name: str) -> tuple[RecordArray, list[tuple[object, ...]]]:
    """Return the stream, and what is known after each record."""
    records = STREAMS[name]()
    chain = RankChain(Detection())
    known = []
    for at in range(len(records)):
        chain.feed(records[at : at + 1])
        known.append(_known(chain))
    return records, known


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 20), longest=st.sampled_from((3, 12, 50, 300, 2000)))
def test_what_is_known_does_not_depend_on_the_reads(name: str, seed: int, longest: int) -> None:
    records, known = _one_by_one(name)
    rng = np.random.default_rng(seed)
    chain = RankChain(Detection())
    at = 0
    while at < len(records):
        end = min(len(records), at + int(rng.integers(1, longest + 1)))
        chain.feed(records[at:end])
        assert _known(chain) == known[end - 1], f"{end} records, in reads of up to {longest}"
        at = end


@pytest.mark.parametrize("name", STREAMS)
def test_the_streams_show_what_they_are_for(name: str) -> None:
    """Check that iterations are counted in each stream; otherwise the comparison would be empty."""
    records, known = _one_by_one(name)
    assert len({str(state[0]) for state in known}) > len(records) // 20
    assert known[-1][2] is not None


def fill(log: CallLog, calls: Calls) -> None:
    while len(calls):
        count = log.append(calls)
        log.reveal(count)
        calls = calls.cut(count, len(calls))


def test_what_the_log_remembers_does_not_depend_on_the_reads() -> None:
    script = Script()
    script.cycle(ddp(100), times=10)
    calls = script.calls
    whole, split = CallLog(), CallLog()
    total = 0
    while total < LOG_CALLS + 40_000:
        fill(whole, calls)
        for at in range(0, len(calls), 130):
            fill(split, calls.cut(at, at + 130))
        total += len(calls)
        assert (whole.base, whole.end) == (split.base, split.end)
    assert whole.base > 0


@pytest.mark.parametrize("place", [0, 3, 9])
def test_the_log_holds_its_newest_calls_however_often_older_ones_were_dropped(place: int) -> None:
    script = Script()
    script.cycle(ddp(100), times=10)
    calls, log = script.calls, CallLog(place)
    numbered = replace(calls, sizes=np.arange(len(calls)))
    for turn in range(400_000 // len(calls)):
        fill(log, replace(numbered, sizes=numbered.sizes + turn * len(calls)))
        seen = log.view(log.base, log.end)
        assert np.array_equal(seen.sizes, np.arange(log.base, log.end))
        assert np.array_equal(seen.tokens, np.resize(np.roll(calls.tokens, -log.base), len(seen)))
    assert len(seen) >= LOG_CALLS
