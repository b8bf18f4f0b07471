"""A node that is lost: its replica goes on in a pod that stands by, whose interpreter has done its imports."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, wait_for
from tests.e2e.jobs import Job, condition, training_job

MANY = 100_000


def _stands_by(status: Json) -> bool:
    found = condition(status, "StandbyReady")
    return found.get("status") == "True" and ", 1 with all imports done" in found["message"]


@pytest.mark.long  # two minutes, and it takes the pool's spare
def test_a_lost_nodes_replica_goes_on_in_the_pod_that_stands_by(nodes: None, start: Callable[[Json], Job]) -> None:
    recovery = {"standby": "Imports", "standbyReplicas": 1}
    spec = {"recovery": recovery, "warmPoolRef": {"name": "spares"}}
    job = start(training_job("ready", steps=MANY, spec=spec))
    job.wait_training()
    status = job.wait("a pod stands by with its imports done", _stands_by, 180)
    print(condition(status, "StandbyReady")["message"])
    before = {pod["metadata"]["name"] for pod in job.pods()}
    victim = job.member(1)

    killed_at = time.time()
    faults.kill(victim["node"])
    try:
        resumed_at = wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=120)
        print(f"a node lost: the ranks train again after {resumed_at - killed_at:.1f} s")
        after = job.member(1)
        assert after["podName"] in before, "no pod was made for the restart"
        assert after["node"] != victim["node"]
        job.wait("it is resolved", lambda s: s["state"] == "Running" and job.diagnoses(s), 60)
        print(job.kubectl.run("describe", "trainingjob", job.name))
    finally:
        faults.heal(victim["node"])
