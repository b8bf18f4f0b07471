"""A node is cordoned, drained or about to go: its job leaves it in one planned restart, before the pod ends."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from dev.install import KUBECONFIG, SYSTEM_NAMESPACE
from dev.kubectl import PATIENCE, Json, Kubectl, wait_for
from tests.e2e.jobs import Job, condition, training_job

MANY = 100_000
NOTICE = "aws-node-termination-handler/spot-itn"  # of the chart's operator.departureTaints
WITH_POOL = {"warmPoolRef": {"name": "spares"}}


@pytest.fixture
def undo(cluster: Kubectl) -> Iterator[Callable[..., None]]:
    """Yield a function that takes the kubectl words which undo what the test does to a node."""
    wanted: list[tuple[str, ...]] = []
    yield lambda *words: wanted.append(words)
    for words in wanted:
        cluster.run(*words)


def _moved(status: Json) -> bool:
    notes = status.get("diagnoses", [])
    return any(note.get("cause") == "NodeLeaves" and note.get("state") == "Resolved" for note in notes)


def _check_moved(job: Job, status: Json, victim: Json, before: dict[int, str]) -> None:
    """Check that one replica has moved, in one restart, and that nothing else was done."""
    assert victim["node"] not in job.nodes()
    after = job.pod_uids()
    assert [rank for rank in before if after[rank] != before[rank]] == [1]
    assert status["counters"] == {"restarts": 1, "replacements": 1}
    notes = [note for note in job.diagnoses(status) if note["cause"] == "NodeLeaves"]
    assert len(notes) == 1
    assert "training again" in notes[0]["result"]
    print(notes[0]["result"])
    assert condition(status, "Moving")["status"] == "False"


@pytest.mark.long  # test_on_demand leaves a cordoned node, too
def test_a_cordoned_node_is_left(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job], undo: Callable[..., None]
) -> None:
    job = start(training_job("cordon", steps=MANY, replicas=2, spec=WITH_POOL))
    job.wait_training()
    victim, before = job.member(1), job.pod_uids()
    undo("uncordon", victim["node"])
    cluster.run("cordon", victim["node"])
    status = job.wait("the condition says so", lambda s: condition(s, "Moving").get("status") == "True", 15)
    assert f"node {victim['node']} is cordoned" in condition(status, "Moving")["message"]
    assert job.pod_uids() == before, "training goes on"
    status = job.wait("the job has moved", _moved, 120)
    _check_moved(job, status, victim, before)
    node = cluster.get("node", victim["node"])
    assert node is not None
    taints = [taint["key"] for taint in node["spec"].get("taints", [])]
    assert "falcon.dev/fenced" not in taints, "nothing is wrong with the node"


def test_a_drain_waits_for_the_job_and_goes_through(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job], undo: Callable[..., None]
) -> None:
    job = start(training_job("drain", steps=MANY, replicas=2, spec=WITH_POOL))
    job.wait_training()
    victim, before = job.member(1), job.pod_uids()
    undo("uncordon", victim["node"])
    pods = f"falcon.dev/job={job.name}"  # not CoreDNS and the like: the test is about the job
    command = ["kubectl", f"--kubeconfig={KUBECONFIG}", "drain", victim["node"], f"--pod-selector={pods}"]
    options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={180 * PATIENCE:.0f}s"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as drain:
        status = job.wait("the job has moved", _moved, 150)
        said, _ = drain.communicate(timeout=60 * PATIENCE)
    print(said)
    assert drain.returncode == 0
    assert "evictions.falcon.dev" in said, "the first eviction was refused"
    assert cluster.items("poddisruptionbudgets") == []
    _check_moved(job, status, victim, before)


def _operators(cluster: Kubectl, replicas: int) -> None:
    """Scale the operator, and wait until so many pods of it run."""
    system = cluster.within(SYSTEM_NAMESPACE)
    system.run("scale", "deployment/falcon", f"--replicas={replicas}")
    selector = "app.kubernetes.io/component=operator"
    wait_for("the operator's pods", lambda: len(system.items("pods", selector)) == replicas, timeout_seconds=60)


def test_a_drain_goes_through_at_once_while_no_operator_runs(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job], undo: Callable[..., None]
) -> None:
    job = start(training_job("alone", steps=MANY, replicas=2, spec=WITH_POOL))
    job.wait_training()
    victim = job.member(1)
    undo("uncordon", victim["node"])
    _operators(cluster, 0)
    try:
        options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector=falcon.dev/job={job.name}"]
        command = ["kubectl", f"--kubeconfig={KUBECONFIG}", "drain", victim["node"], *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120 * PATIENCE, check=False)
    finally:
        _operators(cluster, 1)
    assert done.returncode == 0, done.stderr
    assert "error when evicting" not in done.stderr, "no eviction was refused"


@pytest.mark.long  # a drain is shown, and the notice differs in the wait alone
def test_a_spot_notice_is_answered_at_once(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job], undo: Callable[..., None]
) -> None:
    job = start(training_job("spot", steps=MANY, replicas=2, spec=WITH_POOL))
    job.wait_training()
    victim, before = job.member(1), job.pod_uids()
    undo("taint", "node", victim["node"], f"{NOTICE}-")
    cluster.run("taint", "node", victim["node"], f"{NOTICE}=:NoSchedule")
    status = job.wait("the job has moved", _moved, 90)
    _check_moved(job, status, victim, before)
