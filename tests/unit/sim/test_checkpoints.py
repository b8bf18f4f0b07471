"""A replacement throws away the work since the last checkpoint: Falcon must not pay that for a short slowdown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.planning.goodput import Goodput
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import parse

JOB = {
    "parallelism": {"data": 4},
    "procs_per_node": 1,
    "microbatches": 16,  # iterations of 2.4 s
    "checkpoint_every_iterations": 250,  # 600 s
}


def _run(seed: int, at: float, **mitigation: Any) -> Goodput:
    faults = [
        {"at_seconds": at, "duration_seconds": 240, "factor": 1.6, "node": 1},
        {"at_seconds": at + 1000, "duration_seconds": 240, "factor": 1.6, "node": 2},
    ]
    body = {
        "name": "x",
        "seed": seed,
        "run": {"iterations": 1000},
        "job": JOB,
        "cluster": {"spares": 2},
        "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode"}], **mitigation},
        "faults": {"slow": faults},
    }
    engine = Engine(parse(msgspec.json.encode(body).decode()))
    engine.run()
    return engine.timeline.goodput(engine.scenario.job, engine.healthy_seconds)


@pytest.mark.parametrize("interval", [None, 600.0], ids=["not declared", "declared"])
@pytest.mark.slow
def test_falcon_is_no_worse_than_fail_stop_alone(interval: float | None) -> None:
    starts = [(seed, 400.0 + 150 * seed) for seed in range(4)]  # all over the interval between two checkpoints
    alone = sum(_run(seed, at, falcon="FailStop").ettr for seed, at in starts)
    everything = sum(_run(seed, at, checkpoint_interval_seconds=interval).ettr for seed, at in starts)
    assert everything >= alone * (1 - 1e-9)
