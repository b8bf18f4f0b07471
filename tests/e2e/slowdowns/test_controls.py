"""A node that a job has left is tested together with a free spare: what slows both takes no node.

Two spares: the job takes one of them, and the other one runs the same test (docs/adr/0171).

What this cannot show: that a slow node is fenced beside a spare that is fast. All nodes share the CPUs of one machine,
and both are slowed here, so that each test also waits for CPUs: the verdict ``Disturbed`` does not show whether the
control or the wait excused the node. ``tests/unit/operator/pool/test_burn_ins.py`` and ``test_burn_in_result.py`` show
both, with one thing changed at a time; ``tests/e2e/slowdowns/test_fail_slow.py`` shows a fence without controls.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.install import FENCED
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job
from tests.e2e.spares import spares, wait_for_spares

MANY = 100_000
FACTOR = 0.3  # of the CPU
CONTROLS = "falcon.dev/burn-in=control"
SPEC = {
    "warmPoolRef": {"name": "spares"},
    "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode", "overheadSeconds": 10}]},
}


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
    claimed = wait_for_spares(cluster, "the job takes a spare", "Claimed", 1)
    [free] = [spare["node"] for spare in spares(cluster) if spare["node"] not in claimed]
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
