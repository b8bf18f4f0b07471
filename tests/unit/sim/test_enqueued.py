"""Records as NCCL leaves them: what the host enqueued, and the device's times of one cycle in N."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Kind
from falcon_sim.engine import Engine
from falcon_sim.job.model import Block, JobModel
from falcon_sim.job.records import RingWriter
from falcon_sim.job.scenario import parse
from tests.unit.sim.test_engine import PRICED

JOB = {
    "calls": "Enqueued",
    "parallelism": {"data": 2, "pipeline": 2, "tensor": 2},
    "procs_per_node": 2,
    "microbatches": 4,
    "tensor_seconds": 0.005,
    "noise": 0.01,
}


def _model(calls: str = "Enqueued") -> JobModel:
    scenario = parse(msgspec.json.encode({"name": "x", "job": {**JOB, "calls": calls}}).decode())
    return JobModel(scenario.job, np.random.default_rng(0))


def _begins(block: Block) -> np.ndarray:
    return (np.concatenate(([0.0], np.cumsum(block.seconds)[:-1])) * 1e9).astype(np.int64)


def test_the_device_is_timed_in_one_iteration_of_n() -> None:
    model = _model()
    first, second = model.block(8, model.healthy()), model.block(8, model.healthy())
    writer = RingWriter(model, 3, sample_every=3)
    pieces = [
        writer.records(first, _begins(first), 0, 2),
        writer.records(first, _begins(first), 2, 5),  # the rest of the block never happened
        writer.records(second, _begins(second), 0, 8),
    ]
    found = np.concatenate(pieces)
    assert np.array_equal(found["seq"], 1 + np.arange(len(found)))
    enqueued, completed = found[found["kind"] == Kind.ENQUEUED], found[found["kind"] == Kind.COMPLETED]
    assert len(enqueued) + len(completed) == len(found)
    assert not enqueued["duration_ns"].any()
    width = len(enqueued) // 13
    number = {(record["comm"], record["comm_seq"]): place // width for place, record in enumerate(enqueued)}
    assert {number[record["comm"], record["comm_seq"]] for record in completed} == {0, 3, 6, 9, 12}
    assert len(completed) == 5 * width
    started = {(record["comm"], record["comm_seq"]): record["t_start_ns"] for record in enqueued}
    assert all(started[record["comm"], record["comm_seq"]] <= record["t_start_ns"] for record in completed)


def test_the_chain_reads_the_same_from_both_kinds() -> None:
    """Check iteration times from the host alone, and computation from the sampled cycles."""
    computes = {}
    for calls in ("Blocking", "Enqueued"):
        model = _model(calls)
        slow = model.healthy()
        slow.compute[5] = 2.0
        block = model.block(64, slow)
        for rank in range(model.job.parallelism.world):
            chain = RankChain(Detection())
            chain.feed(RingWriter(model, rank, sample_every=4).records(block, _begins(block), 0, 64))
            signals = chain.signals(rank, 0)
            assert signals.tracking == "Tracking"
            assert np.median(signals.iteration_ns) / 1e9 == pytest.approx(np.median(block.seconds), rel=0.02)
            computes[calls, rank] = np.median(signals.compute_ns)
    for rank in range(8):
        # a start that is noticed half a millisecond late is computation to the reader
        assert computes["Enqueued", rank] == pytest.approx(computes["Blocking", rank], rel=0.03)


def test_a_straggler_is_named_from_sampled_cycles() -> None:
    fault = {"at_seconds": 150, "duration_seconds": 100_000, "factor": 2.5, "node": 1, "proc": 1}
    body = {
        "name": "x",
        "seed": 3,
        "run": {"iterations": 320},
        "job": JOB,
        "detection": {"sample_every": 4},
        "cluster": {"spares": 1},
        "mitigation": {"strategies": PRICED},
        "faults": {"slow": [fault]},
    }
    engine = Engine(parse(msgspec.json.encode(body).decode()))
    engine.run()
    located = [note.text for note in engine.timeline.notes if note.kind == "located"]
    assert located
    assert set(located) == {"rank 3 is the culprit"}
    assert engine.machines.roles[1] == 4
