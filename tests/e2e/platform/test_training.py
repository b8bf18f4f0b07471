"""A healthy job: ends with the loss of a plain torchrun, in any namespace, on any PyTorch, and leaves nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

import pytest

from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.bus import bus_keys
from tests.e2e.jobs import RESTRICTED, SCRIPT, TRAINER_IMAGE, Job, condition, training_job

STEPS = 15  # the plain one has three ranks on one node, whose CPU is limited


def _final_loss(kubectl: Kubectl, pod: str) -> str:
    text = kubectl.run("logs", pod, "-c", "trainer")
    return next(str(json.loads(line)["final_loss"]) for line in text.splitlines() if '"final_loss"' in line)


def _plain_torchrun(kubectl: Kubectl) -> str:
    """Run the same script under torchrun and without Falcon, three ranks in one pod; return its final loss."""
    command = ["python3", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3", SCRIPT]
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "plain"},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "trainer",
                        "image": TRAINER_IMAGE,
                        "imagePullPolicy": "Never",
                        "command": [*command, "--steps", str(STEPS), "--seed", "1", "--log-json"],
                        "securityContext": {**RESTRICTED, "runAsUser": 65532},
                    }
                ],
            },
        }
    )
    wait_for(
        "the plain torchrun pod succeeds",
        lambda: (kubectl.get("pod", "plain") or {}).get("status", {}).get("phase") == "Succeeded",
        timeout_seconds=110,
        last_seen=lambda: kubectl.run("logs", "plain", "--tail", "5"),
    )
    return _final_loss(kubectl, "plain")


def test_succeeds_with_the_loss_of_a_plain_torchrun_and_leaves_nothing(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], system: Kubectl
) -> None:
    job = start(training_job("gpt", steps=STEPS))
    done = job.wait("Succeeded", lambda s: s.get("state") == "Succeeded", 120)
    assert condition(done, "Succeeded")["status"] == "True"
    first = next(pod for pod in job.pods() if pod["metadata"]["labels"]["falcon.dev/replica"] == "0")
    with_falcon = _final_loss(namespace, first["metadata"]["name"])
    assert with_falcon == _plain_torchrun(namespace)
    uid = job.get()["metadata"]["uid"]
    job.delete()
    for kind in ("pods", "services", "secrets"):
        wait_for(f"no {kind} outlive the job", partial(_are_gone, namespace, kind), timeout_seconds=30)
    wait_for("the bus forgets the job", lambda: not _keys_of(system, uid), timeout_seconds=60)


def _are_gone(namespace: Kubectl, kind: str) -> bool:
    return [item["metadata"]["name"] for item in namespace.items(kind) if item["metadata"]["name"] != "plain"] == []


def _keys_of(system: Kubectl, uid: str) -> list[str]:
    return [line for line in bus_keys(system, "/falcon/v1/") if uid in line]


def test_injected_containers_pass_pod_security_restricted(
    nodes: None, cluster: Kubectl, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    cluster.run("label", "namespace", namespace.namespace, "pod-security.kubernetes.io/enforce=restricted")
    job = start(training_job("restricted", steps=10, replicas=1))
    job.wait("Succeeded", lambda s: s.get("state") == "Succeeded", 90)


@pytest.mark.soak
def test_a_healthy_job_of_ten_minutes_raises_nothing(nodes: None, start: Callable[[Json], Job]) -> None:
    job = start(training_job("healthy", steps=100_000))
    job.wait_training()
    for minute in range(10):
        begun = job.status()["iterations"]["count"]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            status = job.status()
            assert job.diagnoses(status) == [], "a healthy job has a diagnosis"
            assert status.get("diagnoses") or condition(status, "Degraded").get("status") != "True"
            assert status["state"] == "Running" or status.get("diagnoses")
            time.sleep(1)
        assert job.status()["iterations"]["count"] > begun, f"no iteration in minute {minute}"
    assert job.status()["counters"] == {"restarts": 0, "replacements": 0}
