"""Pods that end or do not start: cut short, failing init containers, limits of their own, broken nodes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import RESTRICTED, TRAINER_IMAGE, Job, condition, training_job

LAUNCHER = "/falcon/bin/falcon-launch run"
SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
while True:
    time.sleep(0.1)
"""
FILLS = 'import time; time.sleep(5); open("/scratch/full", "wb").write(b"x" * (60 << 20)); time.sleep(100_000)'


def _plain(name: str, program: str, *, replicas: int, spec: Json | None = None) -> Json:
    """Return a job whose ranks run a short program instead of training."""
    manifest = training_job(name, steps=1, replicas=replicas, spec=spec)
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["python3", "-u", "-c", program]
    return manifest


def _restarted(job: Job, generation: int) -> Json:
    def look(status: Json) -> bool:
        assert status.get("state") not in ("Succeeded", "Failed"), status
        # Before the job's first state there is no TrainingRun.
        return status.get("state") == "Running" and job.generation() == generation

    return job.wait(f"generation {generation} runs", look, 90)


def test_pods_that_are_cut_short_and_save_are_restarted_and_never_a_success(
    nodes: None, start: Callable[[Json], Job]
) -> None:
    job = start(_plain("cutshort", SAVES, replicas=3, spec={"warmPoolRef": {"name": "spares"}}))
    _restarted(job, 1)
    one = job.member(1)
    assert faults.send_signal(one["node"], LAUNCHER, signal.SIGTERM, one["podUid"]) == 1
    _restarted(job, 2)
    before = job.pod_uids()
    for member in job.members():  # as when all three nodes shut down at once
        assert faults.send_signal(member["node"], LAUNCHER, signal.SIGTERM, member["podUid"]) == 1
    status = _restarted(job, 3)
    assert not set(before.values()) & set(job.pod_uids().values()), "each pod was made anew"
    assert "exclusions" not in job.run() or not job.run()["exclusions"]
    assert [note["cause"] for note in job.diagnoses(status)] == ["PodLost", "PodLost"]
    assert "SIGTERM from outside" in job.diagnoses(status)[0]["why"]


def test_a_failing_init_container_is_named_and_costs_no_node(nodes: None, start: Callable[[Json], Job]) -> None:
    manifest = _plain("badinit", SAVES, replicas=2, spec={"recovery": {"restarts": 1}})
    manifest["spec"]["template"]["spec"]["initContainers"] = [
        {
            "name": "fetch",
            "image": TRAINER_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", "echo FileNotFoundError: no such dataset: /data/train.bin; exit 3"],
            "securityContext": {**RESTRICTED, "runAsUser": 65532},
        }
    ]
    job = start(manifest)
    status = job.wait("the job is given up", lambda s: s.get("state") == "Failed", 120)
    message = condition(status, "Failed")["message"]
    assert "init container fetch failed first: Error 3: FileNotFoundError: no such dataset" in message
    assert "-c fetch" in message
    assert "falcon-agent" not in message
    assert job.diagnoses(status)[0]["cause"] == "ContainerFailed"
    assert not job.run().get("exclusions")


@pytest.mark.long  # it costs a spare's test afterwards; stories/failures/test_starts decides the same
def test_a_pod_that_its_node_does_not_start_is_moved_to_a_spare(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job], checkpoints: str
) -> None:
    """Check a folder that one node cannot give its pod: a file stands in its place there."""
    workers = [
        node["metadata"]["name"]
        for node in cluster.items("nodes")
        if not node["spec"].get("taints") and not node["spec"].get("unschedulable")
    ]
    victim = workers[0]
    (Path(checkpoints) / victim).touch()
    spec = {"warmPoolRef": {"name": "spares"}, "schedulingDeadlineSeconds": 20}
    manifest = _plain("notstarted", SAVES, replicas=len(workers), spec=spec)
    pod = manifest["spec"]["template"]["spec"]
    [trainer] = pod["containers"]
    pod["volumes"].append({"name": "data", "hostPath": {"path": checkpoints, "type": "Directory"}})
    trainer["env"].append({"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    trainer["volumeMounts"].append({"name": "data", "mountPath": "/data", "subPathExpr": "$(NODE)/own"})
    begun = time.monotonic()
    job = start(manifest)
    status = job.wait("all ranks run", lambda s: s.get("state") == "Running", 120)
    print(f"a pod that does not start: all ranks run after {time.monotonic() - begun:.0f} s")
    assert victim not in job.nodes()
    note = job.diagnoses(status)[0]
    assert (note["cause"], note["node"]) == ("NotStarted", victim)
    assert "has not started within 20 s" in note["why"]
    assert [entry["node"] for entry in job.run()["exclusions"]] == [victim]


@pytest.mark.long  # a kubelet looks at a pod's storage each minute or so
def test_evictions_by_the_jobs_own_limit_are_given_up(nodes: None, start: Callable[[Json], Job]) -> None:
    manifest = _plain("evicted", FILLS, replicas=1, spec={"recovery": {"restarts": 1}})
    pod = manifest["spec"]["template"]["spec"]
    [trainer] = pod["containers"]
    pod["volumes"].append({"name": "scratch", "emptyDir": {}})
    trainer["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    trainer["resources"] = {"limits": {"ephemeral-storage": "20Mi"}}
    job = start(manifest)
    status = job.wait("the job is given up", lambda s: s.get("state") == "Failed", 400)
    message = condition(status, "Failed")["message"]
    assert "ephemeral local storage usage exceeds" in message
    assert "limits.ephemeral-storage" in message
    assert job.diagnoses(status)[0]["errorClass"] == "LocalStorageLimit"
    assert (job.generation(), job.run().get("exclusions") or []) == (2, [])
