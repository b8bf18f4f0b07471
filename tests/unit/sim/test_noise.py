"""Noise of micro-batches and passes, and payloads that follow the work."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from falcon_core.wire.ring import Kind, Op
from falcon_sim.job.model import Conditions, JobModel
from falcon_sim.job.records import DATA, SEND_NS, WORLD, RingWriter
from falcon_sim.job.scenario import Degrees, Job, Scenario, ScenarioError, checked

JOB = Job(
    parallelism=Degrees(tensor=2, data=2, pipeline=2), microbatches=4, procs_per_node=2, noise=0.0, transfer_noise=0.0
)
replace = msgspec.structs.replace


def _model(job: Job) -> JobModel:
    return JobModel(job, np.random.default_rng(1))


def test_work_of_micro_batches_makes_a_pipeline_slower_than_its_mean() -> None:
    even, uneven = _model(JOB), _model(replace(JOB, work_noise=0.3))
    steady = even.block(200, even.healthy()).seconds.mean()
    work_mean = np.exp(0.3**2 / 2)
    assert uneven.block(200, uneven.healthy()).seconds.mean() > 1.1 * work_mean * steady


def test_common_noise_moves_all_ranks_alike() -> None:
    model = _model(replace(JOB, common_noise=0.05))
    compute = model.block(50, model.healthy()).compute.reshape(50, -1)
    assert np.ptp(compute, axis=1).max() == 0
    assert compute[:, 0].std() > 0.02


def test_given_work_is_longer_and_larger() -> None:
    job = replace(JOB, sizes="ByWork", tensor_seconds=0.01)
    model = _model(job)
    work = np.ones((8, 2))
    work[4:] = 2.0
    healthy = model.healthy()
    block = model.block(8, Conditions(healthy.compute, healthy.links, healthy.counts, work))
    records = RingWriter(model, 0).records(block, np.arange(8) * 10**10, 0, 8).reshape(8, -1)
    passes = np.isin(records["op"][0], (Op.SEND, Op.RECV)) | ~np.isin(records["comm"][0], (DATA, WORLD))
    assert (records["bytes"][4:, passes] == 2 * records["bytes"][:4, passes]).all()
    assert (records["bytes"][4:, ~passes] == records["bytes"][:4, ~passes]).all()
    assert (block.seconds[4:] > 1.7 * block.seconds[:4]).all()


@pytest.mark.parametrize("calls", ["Blocking", "Enqueued"])
def test_calls_of_a_pass_do_not_overlap(calls: str) -> None:
    job = replace(JOB, work_noise=0.2, pass_noise=0.1, sizes="ByWork", tensor_seconds=0.01, buckets=3, calls=calls)
    model = _model(job)
    block = model.block(5, model.healthy())
    begins = (np.concatenate(([0.0], np.cumsum(block.seconds)[:-1])) * 1e9).astype(np.int64)
    for rank in range(8):
        records = RingWriter(model, rank).records(block, begins, 0, 5)
        timed = records[records["kind"] == (Kind.BLOCKING if calls == "Blocking" else Kind.COMPLETED)]
        if calls == "Blocking":
            ends = timed["t_start_ns"][:-1] + timed["duration_ns"][:-1]
            assert (timed["t_start_ns"][1:].astype(np.int64) - ends.astype(np.int64) >= -SEND_NS - 2).all()
        assert (timed["comm"] == DATA).sum() == 15


def test_compute_may_differ_from_iteration_to_iteration() -> None:
    model = _model(JOB)
    healthy = model.healthy()
    compute = np.ones((6, 8))
    compute[3:, 1] = 2.0
    block = model.block(6, Conditions(compute, healthy.links, healthy.counts))
    assert np.allclose(block.seconds[:3], block.seconds[0])
    assert (block.seconds[3:] > 1.3 * block.seconds[0]).all()


def test_introductions_and_asides_are_numbered_with_the_calls() -> None:
    model = _model(JOB)
    writer = RingWriter(model, 3)
    first = writer.introductions(0)
    assert dict(zip(first["comm"].tolist(), first["group"].tolist(), strict=True)) == {1: 2, 3: 2, 4: 2, 5: 8}
    begins = np.arange(4) * 10**10
    block = model.block(4, model.healthy())
    trained = writer.records(block, begins, 0, 2)
    aside = writer.aside(np.array([1, 5]), np.array([2, 6]))
    again = writer.records(model.block(1, model.healthy()), begins[:1], 0, 1)
    whole = np.concatenate([first, trained, aside, again])
    assert (np.diff(whole["seq"].astype(np.int64)) == 1).all()
    assert whole["seq"][0] == 1
    of_all = whole[(whole["comm"] == WORLD) & (whole["kind"] != Kind.DESCRIPTOR)]
    assert of_all["comm_seq"].tolist() == list(range(len(of_all)))


@pytest.mark.parametrize("field", ["noise", "common_noise", "work_noise", "pass_noise"])
def test_negative_noise_is_refused(field: str) -> None:
    with pytest.raises(ScenarioError, match=f"job.{field}"):
        checked(Scenario(name="x", job=replace(JOB, **{field: -0.1})))


def test_a_job_without_buckets_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"job\.buckets"):
        checked(Scenario(name="x", job=replace(JOB, buckets=0)))
