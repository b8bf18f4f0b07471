"""A job goes on without what it has lost, and takes it back: a node, or one rank of a group that others go on in."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from itertools import chain

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import SCRIPTS_DIR, Job, condition, training_job, with_script

MANY = 100_000
LATE_SECONDS = 6.0  # from a process's start until it joins: the smaller group is read meanwhile
STEPS_AFTER = 20
MICRO_BATCHES = 8


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


def test_a_lost_rank_is_replaced_while_the_others_train_and_is_read_in_the_status(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], torch_site_packages: str
) -> None:
    """Two pods of two ranks; no pod and no other process is restarted, and each sample is computed once."""
    job = start(_group_job(namespace, "group", torch_site_packages, replicas=2, procs=2))
    script = f"{SCRIPTS_DIR}/growing.py"
    whole = job.wait("the group is whole", lambda s: s.get("group", {}).get("ranks") == 4, 180)
    assert condition(whole, "Elastic")["status"] == "True"
    uids, second = job.pod_uids(), job.member(1)

    rank = f"{_interpreter(second['node'], script)} {script}"
    assert len(faults.processes(second["node"], rank, second["podUid"])) == 2
    faults.send_signal(second["node"], rank, signal.SIGKILL, second["podUid"], oldest=True)
    fewer = job.wait("three ranks go on", lambda s: s["group"]["ranks"] == 3, 60)
    print(job.kubectl.run("describe", "trainingjob", job.name))
    (lost,) = fewer["group"]["lost"]
    assert (lost["pod"], lost["node"]) == (second["podName"], second["node"])
    assert lost["rank"] in (2, 3)
    assert (lost["cause"], lost["why"]) == ("ProcessKilled", "killed by SIGKILL")
    assert condition(fewer, "Elastic")["status"] == "False"
    assert f"lost rank {lost['rank']}" in condition(fewer, "Elastic")["message"]
    again = job.wait("the group is whole again", lambda s: s["group"]["ranks"] == 4, 60)
    assert condition(again, "Elastic")["status"] == "True"
    notes = {event["reason"]: event["message"] for event in job.kubectl.items("events")}
    assert "killed by SIGKILL" in notes["Shrunk"]
    assert f"rank {lost['rank']} joined" in notes["Grown"]
    assert again["counters"] == {"restarts": 0, "replacements": 0}
    assert (job.generation(), job.pod_uids()) == (1, uids)
    _check_samples(job, ranks=4)


def test_a_deleted_pod_restarts_no_rank_of_the_others_and_joins_them_again(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], torch_site_packages: str
) -> None:
    job = start(_group_job(namespace, "pods", torch_site_packages, replicas=3, procs=1))
    job.wait("the group is whole", lambda s: s.get("group", {}).get("ranks") == 3, 180)
    uids, second = job.pod_uids(), job.member(1)
    deleted_at = time.time()
    job.kubectl.run("delete", "pod", second["podName"], "--wait=false")
    fewer = job.wait("two ranks go on", lambda s: s["group"]["ranks"] == 2, 60)
    print(f"a pod was deleted: two ranks train after {time.time() - deleted_at:.1f} s")
    print(job.kubectl.run("describe", "trainingjob", job.name))
    assert fewer["group"]["lost"][-1]["pod"] == second["podName"]
    _check_joined(job, uids, second, 180)
    _check_samples(job, ranks=3)


@pytest.mark.long  # three minutes: a node is lost, and is NotReady after 40 s
def test_a_lost_node_restarts_no_rank_of_the_others(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], torch_site_packages: str
) -> None:
    job = start(_group_job(namespace, "node", torch_site_packages, replicas=2, procs=2))
    job.wait("the group is whole", lambda s: s.get("group", {}).get("ranks") == 4, 180)
    uids, second = job.pod_uids(), job.member(1)
    killed_at = time.time()
    faults.kill(second["node"])
    try:
        job.wait("two ranks go on", lambda s: s["group"]["ranks"] == 2, 60)
        print(f"a node lost: two ranks train after {time.time() - killed_at:.1f} s")
        _check_joined(job, uids, second, 300)
        print(f"four ranks train again after {time.time() - killed_at:.1f} s")
        _check_samples(job, ranks=4)
    finally:
        faults.heal(second["node"])


def _group_job(namespace: Kubectl, name: str, python_path: str, *, replicas: int, procs: int) -> Json:
    """Return a job whose ranks go on without a lost one, and join late."""
    manifest = training_job(name, steps=1, replicas=replicas, python_path=python_path)
    manifest["spec"] |= {"launcher": "Own", "procsPerReplica": procs}
    manifest = with_script(namespace, manifest, "growing.py")
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    script = f"{SCRIPTS_DIR}/growing.py"
    trainer["command"] = ["python3", "-m", "falcon_torch.elastic", script, str(MANY), str(LATE_SECONDS)]
    return manifest


def _check_joined(job: Job, uids: dict[int, str], lost: Json, seconds: float) -> None:
    """Check that the group gets whole again, with another pod in the place of the lost one, and without a restart."""
    again = job.wait("the group is whole again", lambda s: s["group"]["ranks"] == s["group"]["wanted"], seconds)
    print(job.kubectl.run("describe", "trainingjob", job.name))
    assert again["state"] == "Running"
    assert (job.generation(), again["counters"]["restarts"]) == (1, 0)
    assert job.member(1)["podUid"] != lost["podUid"]
    others = set(uids.values()) - {lost["podUid"]}
    assert others < set(job.pod_uids().values()), "the other pods are those from before"


def _interpreter(node: str, script: str) -> str:
    """Return the path by which the launcher has started its ranks' interpreter."""
    paths = ("/usr/bin/python3", "/usr/local/bin/python3")
    return next(path for path in paths if faults.processes(node, f"{path} {script}"))


def _check_samples(job: Job, ranks: int) -> None:
    """Check that each of the steps that all ranks have logged had each micro-batch once, whichever rank was lost."""

    def logged() -> dict[int, list[Json]]:
        texts = [job.kubectl.run("logs", pod["metadata"]["name"], "-c", "trainer") for pod in job.pods()]
        lines = [json.loads(line) for line in chain(*map(str.splitlines, texts)) if line.startswith("{")]
        found: dict[int, list[Json]] = {}
        for line in lines:
            found.setdefault(line["step"], []).append(line)
        return found

    last = max(logged())
    steps = wait_for(
        "more steps", lambda: (now := logged()) and max(now) > last + STEPS_AFTER and now, timeout_seconds=60
    )
    assert sorted(steps) == list(range(min(steps), max(steps) + 1)), "no step is left out"
    for step in range(min(steps), max(steps) - 1):
        assert len({line["sum"] for line in steps[step]}) == 1, f"step {step}: all ranks have the same parameters"
    whole = [step for step in steps.values() if len(step) == ranks]
    assert all(sorted(chain(*(line["numbers"] for line in step))) == list(range(MICRO_BATCHES)) for step in whole)
