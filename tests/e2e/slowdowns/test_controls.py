"""A node that a job has left is tested together with a free spare: what slows both takes no node.

Two spares: the job takes one of them, and the other one runs the same test (docs/adr/0171).

What this cannot show: that a slow node is fenced beside a spare that is fast. All nodes share the CPUs of one machine,
and both are slowed here, so that each test also waits for CPUs: the verdict ``Disturbed`` does not show whether the
control or the wait excused the node. ``tests/unit/operator/pool/test_burn_ins.py`` and ``test_burn_in_result.py`` show
both, with one thing changed at a time; ``tests/e2e/slowdowns/test_fail_slow.py`` shows a fence without controls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dev.cluster import faults
from dev.install import FENCED
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job

MANY = 100_000
FACTOR = 0.3  # of the CPU
POOL_LABEL = "falcon.dev/pool"
CONTROLS = "falcon.dev/burn-in=control"
SPEC = {
    "warmPoolRef": {"name": "spares"},
    "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode", "overheadSeconds": 10}]},
}


@pytest.fixture
def second_spare(nodes: None, cluster: Kubectl) -> Iterator[str]:
    """Yield a worker that is the pool's second ready spare; it is a worker again at the end."""
    name = next(
        str(node["metadata"]["name"])
        for node in cluster.items("nodes")
        if not node["spec"].get("taints") and not node["spec"].get("unschedulable")
    )
    cluster.run("label", "node", name, f"{POOL_LABEL}=spares")
    cluster.patch("warmpool", "spares", {"spec": {"size": 2}})
    try:
        _wait_spares(cluster, "two spares are ready", "Ready", 2)
        yield name
    finally:
        for node in faults.active():
            faults.heal(node)
        cluster.run("label", "node", name, f"{POOL_LABEL}-")
        cluster.patch("warmpool", "spares", {"spec": {"size": 1}})


def _spares(cluster: Kubectl) -> list[Json]:
    pool = cluster.get("warmpool", "spares")
    assert pool is not None
    return list(pool.get("status", {}).get("spares", []))


def _wait_spares(cluster: Kubectl, what: str, state: str, count: int) -> list[str]:
    """Wait until so many spares are in a state, and return their nodes."""

    def look() -> list[str] | None:
        found = [str(spare["node"]) for spare in _spares(cluster) if spare["state"] == state]
        return found if len(found) == count else None

    return wait_for(what, look, timeout_seconds=120, last_seen=lambda: str(_spares(cluster)))


def _is_fenced(cluster: Kubectl, name: str) -> bool:
    node = cluster.get("node", name)
    assert node is not None
    return any(taint["key"] == FENCED for taint in node["spec"].get("taints", []))


@pytest.mark.long  # two to four minutes
def test_a_node_is_tested_together_with_a_free_spare_and_not_fenced_for_what_slows_both(
    second_spare: str, cluster: Kubectl, system: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(training_job("left", steps=MANY, replicas=2, spec=SPEC))
    job.wait_settled()
    victim = job.member(1)["node"]
    faults.slow(victim, FACTOR)
    claimed = _wait_spares(cluster, "the job takes a spare", "Claimed", 1)
    [free] = [spare["node"] for spare in _spares(cluster) if spare["node"] not in claimed]
    faults.slow(free, FACTOR)
    controlled: set[str] = set()

    def verdict() -> Json | None:
        controlled.update(str(pod["spec"].get("nodeName")) for pod in system.items("pods", CONTROLS))
        found = [each for each in job.run().get("verdicts", []) if each["node"] == victim]
        return found[-1] if found else None

    found = wait_for("a verdict about the node", verdict, timeout_seconds=240, last_seen=lambda: str(job.status()))
    print(found)
    assert controlled == {free}, "the free spare alone runs the same test"
    assert found["outcome"] == "Disturbed"
    assert not _is_fenced(cluster, victim)
