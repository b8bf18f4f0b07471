"""A trainer with data loader workers that saves on SIGTERM has its save at a restart, at a drain and at a pod's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job, with_script


@pytest.fixture
def uncordon(cluster: Kubectl) -> Iterator[Callable[[str], None]]:
    """Yield a function that notes a node which the test cordons."""
    nodes: list[str] = []
    yield nodes.append
    for node in nodes:
        cluster.run("uncordon", node)


def _saves(checkpoints: str) -> list[list[int]]:
    """Return the steps after which each rank has saved."""
    paths = [Path(checkpoints) / f"saved-{rank}" for rank in range(2)]
    return [[int(line) for line in path.read_text().split()] if path.exists() else [] for path in paths]


@pytest.mark.long  # integration/shim/launch/test_data_loaders shows each of the three with the launcher alone
def test_what_a_trainer_saves_on_sigterm_is_there(
    nodes: None,
    cluster: Kubectl,
    namespace: Kubectl,
    start: Callable[[Json], Job],
    checkpoints: str,
    uncordon: Callable[[str], None],
) -> None:
    spec = {"warmPoolRef": {"name": "spares"}}
    manifest = training_job("loaders", steps=1, replicas=2, checkpoints=checkpoints, spec=spec)
    job = start(with_script(namespace, manifest, "loader_saving.py", "/checkpoints"))
    job.wait_training()

    before, victim = job.pod_uids(), job.member(1)
    uncordon(victim["node"])
    cluster.run("cordon", victim["node"])
    job.wait("the job has moved", lambda s: job.member(1)["podUid"] not in (None, before[1]), 150)
    wait_for("it trains again", lambda: job.restarted_seconds(), timeout_seconds=120)
    assert job.pod_uids()[0] == before[0], "rank 0 was restarted in its pod, and the pod of rank 1 has ended"
    moved = _saves(checkpoints)
    print(f"saved after the drain: {moved}")
    assert [len(each) for each in moved] == [1, 1]
    assert moved[0] == moved[1], "all ranks saved after the same step"

    job.wait_training()
    generation = job.generation()
    namespace.run("delete", "pod", job.member(1)["podName"], "--wait=false")
    job.wait("the next generation trains", lambda s: job.generation() > generation and s["state"] == "Running", 150)
    ended = _saves(checkpoints)
    print(f"saved after the pod's end: {ended}")
    assert len(ended[1]) == 2, "the pod that was deleted has saved"
