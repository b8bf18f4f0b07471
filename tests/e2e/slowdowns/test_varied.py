"""Jobs whose work varies: neither lengths drawn anew in each step nor a batch that grows are anybody's fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, condition, training_job

SCRIPTS = Path(__file__).parents[1] / "scripts"
FOLDER = "/opt/scripts"
MANY = 100_000


def _varied(kubectl: Kubectl, name: str, *options: str, steps: int = MANY) -> Json:
    """Return a job that runs ``scripts/varied.py``, which it reads from a ConfigMap."""
    script = (SCRIPTS / "varied.py").read_text()
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": {"varied.py": script}}
    )
    manifest = training_job(name, steps=steps)
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "scripts", "configMap": {"name": "scripts"}})
    [trainer] = pod["containers"]
    trainer["command"] = ["python3", f"{FOLDER}/varied.py", "--steps", str(steps), *options]
    trainer["volumeMounts"].append({"name": "scripts", "mountPath": FOLDER})
    return manifest


def _stays_well(job: Job, seconds: float) -> None:
    """Watch the job for so long; fail at the first diagnosis."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        status = job.status()
        assert job.diagnoses(status) == [], "a healthy job has a diagnosis"
        assert status["state"] == "Running" or status.get("diagnoses")
        time.sleep(1)


@pytest.mark.soak
@pytest.mark.timeout(1200)  # ten minutes of them healthy
def test_lengths_that_vary_raise_nothing_in_ten_minutes_and_a_slow_node_among_them_is_named(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(_varied(namespace, "lengths", "--spread", "0.3"))
    job.wait_training()
    _stays_well(job, 600)
    assert job.status()["counters"] == {"restarts": 0, "replacements": 0}
    victim = job.member(1)
    faults.slow(victim["node"], 1 / 2)
    named = job.wait(
        "the slow node is named",
        lambda s: any(entry.get("node") == victim["node"] for entry in s.get("diagnoses", [])),
        120,
    )
    assert named["diagnoses"][0]["rank"] == 1


@pytest.mark.soak
def test_a_batch_that_grows_in_steps_raises_no_diagnosis(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(_varied(namespace, "growth", "--growth", "150:3,400:4"))
    job.wait_training()
    while job.steps()[-1]["step"] < 550:
        _stays_well(job, 5)
    status = job.status()
    assert condition(status, "JobChanged").get("status") == "True", condition(status, "JobChanged")
    assert status["counters"] == {"restarts": 0, "replacements": 0}
