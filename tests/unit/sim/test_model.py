"""The job's model and the records it leaves: faults cost what they should, and core's chain reads them back."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_sim.job.model import NORM_SECONDS, Block, Conditions, JobModel
from falcon_sim.job.records import RingWriter
from falcon_sim.job.scenario import parse

replace = msgspec.structs.replace


def _model(**job: object) -> JobModel:
    plain = {"noise": 0.0, "transfer_noise": 0.0, "procs_per_node": 2, "parallelism": {"data": 4, "pipeline": 2}}
    return JobModel(
        parse(msgspec.json.encode({"name": "x", "job": plain | job}).decode()).job, np.random.default_rng(0)
    )


def _begins(block: Block) -> np.ndarray:
    return (np.concatenate(([0.0], np.cumsum(block.seconds)[:-1])) * 1e9).astype(np.int64)


def _slow(model: JobModel, rank: int, factor: float) -> Conditions:
    healthy = model.healthy()
    compute = healthy.compute.copy()
    compute[rank] = factor
    return replace(healthy, compute=compute)


def test_a_healthy_iteration_is_the_closed_form_and_what_follows() -> None:
    model = _model()
    job = model.job
    expected = (8 + 2 - 1) * (0.05 + 0.1) + job.reduce_seconds + NORM_SECONDS + job.optimizer_seconds
    assert model.block(3, model.healthy()).seconds == pytest.approx(expected)


def test_a_slow_stage_sets_the_pace_of_its_replica_alone() -> None:
    model = _model()
    block = model.block(1, _slow(model, 1, 2.0))  # stage 0, replica 1
    slow, other_replicas = block.finished[0, :, 1].max(), np.delete(block.finished[0], 1, axis=1).max()
    assert 8 * 2 * 0.15 < slow <= (8 * 2 + 1) * 0.15  # busy with all its passes, and a bubble of at most one pass
    assert other_replicas == pytest.approx(9 * 0.15)


def test_fewer_micro_batches_for_the_slow_replica_shorten_the_iteration() -> None:
    model = _model()
    slow = _slow(model, 1, 2.0)
    shared = replace(slow, counts=(9, 5, 9, 9))
    assert model.block(1, shared).seconds[0] < 0.75 * model.block(1, slow).seconds[0]


def test_a_congested_link_slows_the_ring_that_crosses_it() -> None:
    model = _model(reduce_seconds=0.4)
    healthy = model.healthy()
    links = healthy.links.copy()
    links[0, 1] = links[1, 0] = 3.0  # within stage 0's four replicas
    grown = model.block(1, replace(healthy, links=links)).seconds - model.block(1, healthy).seconds
    assert grown[0] == pytest.approx(2 * 0.4)


def test_a_link_that_nobody_uses_for_anything_heavy_costs_nothing() -> None:
    model = _model(reduce_seconds=0.4)  # no transfer time: only reductions weigh
    healthy = model.healthy()
    links = healthy.links.copy()
    links[0, 2] = links[2, 0] = 3.0  # between the stages
    assert model.block(1, replace(healthy, links=links)).seconds == pytest.approx(model.block(1, healthy).seconds)


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"parallelism": {"tensor": 2, "data": 2, "pipeline": 2}, "tensor_seconds": 0.01},
        {"parallelism": {"data": 4, "expert": 2, "pipeline": 1}, "expert_seconds": 0.01},
        {"schedule": "Interleaved", "chunks": 2},
    ],
    ids=["dp-pp", "tp", "ep", "interleaved"],
)
def test_cores_chain_reads_the_iteration_time_back(job: dict[str, object]) -> None:
    model = _model(noise=0.01, **job)
    block = model.block(40, model.healthy())
    for rank in (0, model.job.parallelism.world - 1):
        chain = RankChain(Detection())
        chain.feed(RingWriter(model, rank).records(block, _begins(block), 0, 40))
        signals = chain.signals(rank, 0)
        assert signals.tracking == "Tracking"
        assert signals.iterations >= 36
        assert np.median(signals.iteration_ns) / 1e9 == pytest.approx(np.median(block.seconds), rel=0.02)


def test_the_slow_rank_computes_longer_and_nobody_else_does() -> None:
    model = _model(parallelism={"tensor": 2, "data": 2, "pipeline": 2}, tensor_seconds=0.01)
    block = model.block(24, _slow(model, 5, 2.0))
    own = {}
    for rank in range(8):
        chain = RankChain(Detection())
        chain.feed(RingWriter(model, rank).records(block, _begins(block), 0, 24))
        own[rank] = np.median(chain.signals(rank, 0).compute_ns)
    other_ranks = [value for rank, value in own.items() if rank != 5]
    assert own[5] > 1.8 * max(other_ranks)
    assert max(other_ranks) < 1.1 * min(other_ranks)


def test_records_that_were_never_made_leave_no_hole() -> None:
    model = _model()
    writer = RingWriter(model, 3)
    first, second = model.block(8, model.healthy()), model.block(8, model.healthy())
    found = np.concatenate(
        [
            writer.records(first, _begins(first), 0, 2),
            writer.records(first, _begins(first), 2, 5),  # the rest of the block never happened
            writer.records(second, _begins(second), 0, 8),
        ]
    )
    assert np.array_equal(found["seq"], 1 + np.arange(len(found)))
    for comm in np.unique(found["comm"]):
        numbers = found["comm_seq"][found["comm"] == comm]
        assert np.array_equal(numbers, np.arange(len(numbers)))
