"""A node is lost and none is free: the job trains on with two of its three replicas, and with three when it returns."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, wait_for
from tests.e2e.jobs import Job, condition, training_job

MANY = 100_000


@pytest.mark.long  # four minutes: a node is lost, and has to be Ready for a minute before it is used again
def test_a_job_shrinks_by_a_lost_node_and_grows_when_it_returns(
    nodes: None, checkpoints: str, start: Callable[[Json], Job]
) -> None:
    spec = {
        "elastic": {"minReplicas": 2},
        "mitigation": {"mode": "Enforce"},
        "checkpoint": {"intervalSeconds": 30},
    }
    job = start(training_job("elastic", steps=MANY, checkpoints=checkpoints, spec=spec))
    job.wait_training()
    victim = job.member(1)

    killed_at = time.time()
    faults.kill(victim["node"])
    healed = False
    try:
        job.wait("two ranks train", lambda s: (s["ready"], s["state"]) == ("2/2", "Running"), 240)
        resumed_at = wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=60)
        print(f"a node lost: two ranks train after {resumed_at - killed_at:.1f} s")
        print(job.kubectl.run("describe", "trainingjob", job.name))
        status = job.status()
        assert (status["elastic"]["replicas"], status["elastic"]["wanted"]) == (2, 3)
        assert condition(status, "Elastic")["status"] == "False"
        faults.heal(victim["node"])
        healed = True
        healed_at = time.time()
        job.wait("three ranks train", lambda s: (s["ready"], s["state"]) == ("3/3", "Running"), 300)
        print(f"the node is back: three ranks train after {time.time() - healed_at:.1f} s")
        print(job.kubectl.run("describe", "trainingjob", job.name))
        assert condition(job.status(), "Elastic")["status"] == "True"
    finally:
        if not healed:
            faults.heal(victim["node"])
