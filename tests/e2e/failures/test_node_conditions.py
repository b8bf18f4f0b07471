"""A node reports trouble of its hardware, as node-problem-detector does: it is shown, and left with the next restart.

No machine here has a GPU: the test writes the condition that a monitor would write.
"""

from __future__ import annotations

import datetime as dt
import json
import signal
from collections.abc import Callable, Iterator

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import SCRIPT, Job, condition, training_job

MANY = 100_000
TYPE = "GpuXid"
SAID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


@pytest.fixture
def report(cluster: Kubectl) -> Iterator[Callable[[str], None]]:
    """Yield a function that sets the condition on a node; it is False everywhere at the end."""
    reported: list[str] = []

    def write(node: str, status: str) -> None:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        found = {"type": TYPE, "status": status, "reason": "XID79", "message": SAID, **times}
        patch = json.dumps({"status": {"conditions": [found]}})
        cluster.run("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)

    def set_true(node: str) -> None:
        reported.append(node)
        write(node, "True")

    yield set_true
    for node in reported:
        write(node, "False")


def test_a_node_that_reports_a_lost_gpu_is_shown_and_left_with_the_next_restart(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], report: Callable[[str], None]
) -> None:
    job = start(training_job("xid", steps=MANY, replicas=2, spec={"warmPoolRef": {"name": "spares"}}))
    job.wait_training()
    victim, uids = job.member(1), job.pod_uids()
    report(victim["node"])
    status = job.wait(
        "the trouble is shown", lambda s: condition(s, "NodesHealthy").get("status") == "False", timeout_seconds=20
    )
    message = condition(status, "NodesHealthy")["message"]
    assert message.startswith(f"node {victim['node']} ({victim['podName']}) reports GpuLost (condition {TYPE}: {SAID})")
    assert (status["state"], job.pod_uids()) == ("Running", uids), "training shows that the device works"
    assert faults.send_signal(victim["node"], f"python3 {SCRIPT}", signal.SIGKILL, victim["podUid"]) >= 1
    job.wait("the node is left", lambda s: s.get("counters", {}).get("replacements") == 1, 60)
    job.wait_training()
    status = job.wait("its nodes are well", lambda s: condition(s, "NodesHealthy").get("status") == "True", 60)
    assert victim["node"] not in job.nodes()
    assert status["counters"]["restarts"] == 1
    (note,) = job.diagnoses(status)
    assert (note["cause"], note["errorClass"], note["severity"]) == ("ProcessKilled", "GpuLost", "SEV1")
    assert f"node {victim['node']} reports GpuLost" in note["evidence"]
    described = namespace.run("describe", "trainingjob", "xid")
    print(described[described.index("Conditions") :])
    assert "NodeTrouble" in described
