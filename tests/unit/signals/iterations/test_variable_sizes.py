"""Jobs whose sizes vary: the period, a straggler among long and short batches, and tables that do not grow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from falcon_core.signals.calls.stream import Calls, Tokenizer
from falcon_core.signals.iterations.period import find_period
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray
from tests.unit.signals.members import Job
from tests.unit.signals.streams import MS, Call, Script, ddp

WORLD, LAYERS, NEXT = 7, 8, 9  # communicators


def recommendation(script: Script, slowdown: float = 1.0) -> None:
    """Run an iteration of a model with sharded tables: the batch decides all sizes but the gradients'."""
    samples = int(script.rng.integers(500, 1500))
    for share in (1.0, 0.7, 1.3, 0.9):
        size = int(1024 * samples * share * script.rng.uniform(0.9, 1.1))
        script.call(Call(Op.ALL_TO_ALL, size, int(samples * share * 0.05 * MS), comm=WORLD), slowdown)
    script.cycle(ddp(3, 20 * MS), slowdown=slowdown)


def padded(script: Script, slowdown: float = 1.0) -> None:
    """Run an iteration whose sequences are padded to a few lengths: layers sum activations up, all of one size."""
    length = int(script.rng.choice((512, 768, 1024, 1536, 2048, 3072, 4096, 6144)))
    layer = Call(Op.ALL_REDUCE, length * 4096, int(length * 0.003 * MS), comm=LAYERS)
    script.cycle([layer] * 24, slowdown=slowdown)
    script.cycle(ddp(2, 10 * MS), slowdown=slowdown)


def stage(script: Script, slowdown: float = 1.0) -> None:
    """Run an iteration of a pipeline's stage: eight micro-batches of packed sequences, each of its own length."""
    for length in script.rng.integers(500, 4000, 8).tolist():
        script.call(Call(Op.RECV, length * 2048, 2 * MS, comm=NEXT), slowdown)
        script.call(Call(Op.SEND, length * 2048, int(length * 0.01 * MS), comm=NEXT), slowdown)
    script.cycle(ddp(2, 20 * MS), slowdown=slowdown)


def sparse(script: Script, slowdown: float = 1.0) -> None:
    """Run an iteration that sums up fixed buckets, and sparse gradients of any size by the same operation."""
    rows = int(script.rng.integers(1000, 9000))
    script.cycle(ddp(3, 60 * MS), slowdown=slowdown)
    for part in (3, 5):
        script.call(Call(Op.ALL_REDUCE, rows * 64 * part, int(rows * 0.02 * MS)), slowdown)


JOBS: dict[str, tuple[Callable[[Script, float], None], int]] = {
    "recommendation": (recommendation, 7),
    "padded to eight lengths": (padded, 26),
    "stage": (stage, 18),
    "sparse": (sparse, 5),
}


def _fed(records: RecordArray, batch: int = 61) -> RankChain:
    chain = RankChain(Detection())
    for at in range(0, len(records), batch):
        chain.feed(records[at : at + batch])
    return chain


def _run(name: str, iterations: int, *, slow_from: int | None = None, seed: int = 0) -> Script:
    script = Script(seed=seed, jitter=0.03)
    for size in (3, 1, 4, 1, 5):
        script.call(Call(Op.BROADCAST, size, 10 * MS))
    for iteration in range(iterations):
        JOBS[name][0](script, 1.5 if slow_from is not None and iteration >= slow_from else 1.0)
    return script


@pytest.mark.parametrize("name", JOBS)
def test_sizes_that_vary_have_a_period(name: str) -> None:
    chain = _fed(_run(name, 40).records)
    assert chain.period_calls == JOBS[name][1]
    assert chain.iterations >= 36


@pytest.mark.parametrize("name", JOBS)
def test_a_straggler_among_long_and_short_batches_is_found_with_its_onset(name: str) -> None:
    script = _run(name, 200, slow_from=150)
    slowdown = _fed(script.records).slowdown
    assert slowdown is not None
    assert abs(slowdown.first_iteration - 151) <= 3
    assert slowdown.reported_iteration <= 165
    assert slowdown.after_ns / slowdown.before_ns == pytest.approx(1.5, rel=0.12)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("seed", range(2))
def test_long_batches_are_no_slowdown(name: str, seed: int) -> None:
    records = _run(name, 250, seed=seed).records
    chain = RankChain(Detection())
    for at in range(0, len(records), 37):
        chain.feed(records[at : at + 37])
        assert chain.slowdown is None
    assert chain.healthy_ns is not None
    assert chain.iterations >= 245


@pytest.mark.parametrize("sampled", [None, 4], ids=["blocking", "sampled"])
def test_a_rank_that_is_slow_computes_longer_than_its_bytes_explain(sampled: int | None) -> None:
    """Check four ranks, each with its own share of a batch; rank 2 is slow from iteration 400 on."""
    job = Job(4, sampled=sampled, window=5)
    rng = np.random.default_rng(3)
    for cycle in range(440):
        share = rng.integers(90, 110, 4) * int(rng.integers(1, 4))
        for _ in range(3):
            job.compute((share * MS).tolist(), {2: 1.5} if cycle >= 400 else None)
            job.meet(Op.ALL_TO_ALL, (share * 4096).tolist(), [range(4)], comm=7)
        for size in (1 << 20, 1 << 12):
            job.compute(5 * MS)
            job.meet(Op.ALL_REDUCE, size, [range(4)], comm=7)
        job.end_cycle()
    chains = [_fed(job.records(rank)) for rank in range(4)]
    assert {chain.iterations for chain in chains} == {439}, "numbers of iterations agree"
    for rank, chain in enumerate(chains):
        assert chain.slowdown is not None
        assert abs(chain.slowdown.first_iteration - 401) <= 2
        signals = chain.signals(rank, 0)
        assert signals.healthy_compute_ns is not None
        gained = np.median(signals.compute_ns[-5:]) / signals.healthy_compute_ns
        assert gained == pytest.approx(1.5 if rank == 2 else 1.0, abs=0.05)


def test_a_longer_batch_is_expected_to_take_longer_once_it_goes_on() -> None:
    """Check a batch that grows in steps, beside sizes that vary a little."""
    script = Script(jitter=0.02)
    chain = RankChain(Detection())
    fed = 0
    for iteration in range(500):
        samples = int(script.rng.integers(90, 110)) * (1 + iteration // 120)
        for _ in range(2):
            script.call(Call(Op.ALL_TO_ALL, samples * 4096, samples * MS))
        script.cycle(ddp(2, 20 * MS))
        if iteration % 10 == 0:
            records = script.records
            chain.feed(records[fed:])
            fed = len(records)
            assert chain.slowdown is None
    assert chain.iterations >= 485


def test_times_stay_as_they_are_where_they_do_not_follow_the_bytes() -> None:
    script = Script(jitter=0.05)
    for _ in range(200):
        script.call(Call(Op.ALL_TO_ALL, int(script.rng.integers(1, 1 << 30)), 50 * MS))
        script.cycle(ddp(2, 40 * MS))
    chain = _fed(script.records)
    slope = chain.memory().expected
    assert slope is not None
    assert slope.per_byte == 0.0
    starts = script.records["t_start_ns"][::3].astype(np.int64)
    newest = chain.signals(0, 0).iteration_ns
    assert newest == np.diff(starts)[-len(newest) :].tolist()


def test_an_earlier_agents_slope_is_used() -> None:
    """Check that a successor, which reads the ring from its middle, does not take a long batch for a slowdown."""
    script = _run("recommendation", 400)
    memory = _fed(script.records[: 7 * 150]).memory()
    assert memory.expected is not None
    assert memory.expected.per_byte > 0.0
    chain = RankChain(Detection(), memory)
    records = script.records[7 * 100 :]
    for at in range(0, len(records), 7):
        chain.feed(records[at : at + 7])
        assert chain.slowdown is None
    assert chain.iterations == 399


def _buckets(count: int, *, after: list[Call] | None = None) -> list[Call]:
    return [*ddp(count), *(after or [])]


def _calls(script: Script) -> Calls:
    return Tokenizer().calls(script.records)


def test_many_fixed_sizes_stay_exact() -> None:
    script = Script(jitter=0.05)
    script.cycle(_buckets(100), times=4)
    found = find_period(_calls(script))
    assert found is not None
    assert (found.calls, found.varying) == (100, None)


def test_fixed_buckets_beside_calls_that_vary_stay_apart() -> None:
    script = Script(jitter=0.05)
    for _ in range(20):
        script.cycle(_buckets(100))
        for _ in range(25):
            script.call(Call(Op.ALL_TO_ALL, int(script.rng.integers(1, 1 << 30)), 3 * MS))
    calls = _calls(script)
    found = find_period(calls)
    assert found is not None
    assert found.calls == 125
    assert found.varying is not None
    assert np.unique(found.varying.tokens(calls)).shape[0] == 101


def test_the_first_iteration_of_many_fixed_sizes_shows_nothing() -> None:
    """Check that sizes which have not come twice are not taken for sizes that vary."""
    script = Script(jitter=0.05)
    script.cycle([Call(Op.ALL_REDUCE, 4096 + index, 25 * MS) for index in range(400)])
    assert find_period(_calls(script)) is None


def _varying(iterations: int, seed: int) -> RecordArray:
    """Return iterations of two calls whose sizes are new each time, and one that is always alike."""
    rng = np.random.default_rng(seed)
    records = np.zeros(3 * iterations, dtype=RECORD_DTYPE)
    records["seq"] = np.arange(1, len(records) + 1)
    records["comm_seq"] = np.arange(len(records))
    records["op"] = np.tile([int(Op.ALL_TO_ALL), int(Op.ALL_GATHER), int(Op.ALL_REDUCE)], iterations)
    records["bytes"] = rng.integers(1, 1 << 40, len(records))
    records["bytes"][2::3] = 1 << 20
    records["comm"], records["dtype"], records["kind"] = WORLD, DType.FLOAT32, Kind.BLOCKING
    records["duration_ns"] = MS
    records["t_start_ns"] = 30 * MS * np.arange(len(records))
    return records


def test_tables_are_bounded() -> None:
    """Check 100 000 iterations of sizes that never come twice."""
    tokenizer = Tokenizer()
    known = 0
    for part in range(100):
        tokenizer.calls(_varying(1000, seed=part))
        if part == 49:
            known = len(tokenizer)
    assert len(tokenizer) == known <= 3000


def test_a_chain_follows_sizes_that_never_come_twice() -> None:
    chain = RankChain(Detection())
    for part in range(8):
        records = _varying(1000, seed=part)
        records["seq"] += 3000 * part
        records["comm_seq"] += 3000 * part
        records["t_start_ns"] += 3000 * part * 30 * MS
        chain.feed(records)
    assert chain.period_calls == 3
    assert chain.iterations == 7_999
    assert chain.slowdown is None


def test_communicators_without_end_are_bounded() -> None:
    tokenizer = Tokenizer()
    records = _varying(50_000, seed=0)
    records["comm"] = np.arange(len(records))
    for at in range(0, len(records), 500):
        tokenizer.calls(records[at : at + 500])
    assert len(tokenizer) <= 1 << 15
