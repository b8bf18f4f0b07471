"""S2 and S3: from what is measured to what is done."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from falcon_sim.agents import Agents
from falcon_sim.engine import Engine
from falcon_sim.job.model import JobModel
from falcon_sim.job.scenario import Watch, parse
from falcon_sim.policies import rungs
from tests.unit.sim.jobs import TWO_STAGES


def _scenario(**fields: object) -> str:
    return msgspec.json.encode(
        {"name": "x", "seed": 1, "run": {"iterations": 200}, "job": TWO_STAGES, **fields}
    ).decode()


def _model() -> JobModel:
    return JobModel(parse(_scenario()).job, np.random.default_rng(0))


def test_profile_mode_names_the_communicator_with_the_slow_link() -> None:
    model = _model()
    healthy = model.healthy()
    links = healthy.links.copy()
    links[0, 1] = links[1, 0] = 4.0  # the two nodes of the first stage
    block = model.block(8, msgspec.structs.replace(healthy, links=links))
    agents = Agents(model, Watch())
    agents.start()
    agents.feed(block, (np.cumsum(block.seconds) * 1e9).astype(np.int64), 0, 8)
    records, iterations = agents.profile(8)
    assert iterations == 8
    assert rungs.slow_communicators(model, records) == [tuple(range(8))]


def test_a_healthy_job_has_no_slow_communicator() -> None:
    model = _model()
    block = model.block(8, model.healthy())
    agents = Agents(model, Watch())
    agents.start()
    agents.feed(block, (np.cumsum(block.seconds) * 1e9).astype(np.int64), 0, 8)
    assert rungs.slow_communicators(model, agents.profile(8)[0]) == []


def test_a_congested_link_leaves_the_rings_of_the_reductions() -> None:
    model = _model()
    plan = rungs.placed(model.job, model, model.even, np.ones(4), {(0, 1): 4.0}, iterations=1000, overhead_seconds=30.0)
    assert plan is not None
    first_stage = set(plan.nodes[:2])
    assert first_stage not in ({0, 1}, {2, 3})  # neither stage has both ends of the link
    assert plan.seconds < plan.current_seconds


def test_what_will_not_last_is_not_moved_for() -> None:
    model = _model()
    assert rungs.placed(model.job, model, model.even, np.ones(4), {(0, 1): 4.0}, 5, 30.0) is None


def test_micro_batches_follow_the_measured_times_and_wait_for_all_stages() -> None:
    model = _model()
    times = dict.fromkeys(range(16), 1.2)
    times[3] = 2.4
    plan = rungs.shares(model, times, model.even)
    assert plan is not None
    assert plan.counts[3] < 8
    assert sum(plan.counts) == 64
    del times[12]
    assert rungs.shares(model, times, model.even) is None


@pytest.mark.parametrize("falcon", ["All", "FailStop"])
def test_the_exchange_pays_for_itself(falcon: str) -> None:
    fault = {
        "at_seconds": 100,
        "duration_seconds": 100_000,
        "factor": 5.0,
        "node": 0,
        "peer": 1,
        "kind": "Communication",
    }
    strategies = [{"type": "Ignore"}, {"type": "SwapNodes", "overhead_seconds": 20}]
    body = {"faults": {"slow": [fault]}, "mitigation": {"falcon": falcon, "strategies": strategies}}
    engine = Engine(parse(_scenario(**body)))
    engine.run()
    exchanged = any(note.text.startswith("nodes exchanged") for note in engine.timeline.notes)
    assert exchanged == (falcon == "All")
    last = float(engine.timeline.iteration_seconds[-1][-1])
    assert (last < 1.1 * engine.healthy_seconds) == exchanged
