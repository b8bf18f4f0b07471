"""The node of the only etcd member dies: a killed rank is restarted all the same, and etcd comes up on another node."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from dev.cluster import faults
from dev.install import heal_nodes, install_chart, local_cluster
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.bus import etcd_pod
from tests.e2e.jobs import SCRIPT, Job, training_job


@pytest.fixture
def etcd_on_any_node(nodes: None, cluster: Kubectl) -> Iterator[Callable[[], None]]:
    """Yield a function that places etcd as the chart does by default; at the end it is on the control node again."""
    if not local_cluster():
        pytest.skip("nodes are killed on the machine of the local cluster")
    yield lambda: install_chart("--set=etcd.nodeSelector=null", "--set=etcd.tolerations=null")
    heal_nodes(cluster)  # first: a Deployment that is recreated waits for the pod of the dead node
    install_chart()


def _is_ready(kubectl: Kubectl, node: str) -> bool:
    found = kubectl.get("node", node)
    assert found is not None
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in found["status"]["conditions"])


def _serves(pod: Json) -> bool:
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in pod["status"].get("conditions", []))


@pytest.mark.long  # three minutes, for a node of etcd; the campaign restarts etcd
def test_etcd_leaves_its_dead_node_and_a_killed_rank_does_not_wait_for_it(
    etcd_on_any_node: Callable[[], None], start: Callable[[Json], Job], cluster: Kubectl, system: Kubectl
) -> None:
    job = start(training_job("apart", steps=100_000, replicas=2, spec={"procsPerReplica": 2}))
    job.wait_training()
    etcd_on_any_node()
    member = etcd_pod(system)
    home = member["spec"]["nodeName"]
    assert home not in job.nodes(), "a node without training is preferred"
    resumed_at = job.status()["iterations"]["count"]
    job.wait("reports arrive through the moved etcd", lambda s: s["iterations"]["count"] > resumed_at + 5, 90)
    generation, uids = job.generation(), job.pod_uids()

    def moved() -> Json | None:
        pods = [pod for pod in system.items("pods", "app.kubernetes.io/component=etcd") if _serves(pod)]
        return next((pod for pod in pods if pod["metadata"]["uid"] != member["metadata"]["uid"]), None)

    victim = job.member(1)
    killed_at = time.time()
    faults.kill(home)
    assert faults.send_signal(victim["node"], f"python3 {SCRIPT}", signal.SIGKILL, victim["podUid"]) >= 1
    restarted_seconds = wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=60) - killed_at
    assert moved() is None, "etcd was back before the restart: nothing is shown"
    wait_for("training goes on", lambda: int(job.steps()[-1]["step"]) >= 20, timeout_seconds=60)
    wait_for("the node is seen as lost", lambda: not _is_ready(cluster, home), timeout_seconds=60)
    lost_seconds = time.time() - killed_at

    new = wait_for("etcd serves on another node", moved, timeout_seconds=60)
    moved_seconds = time.time() - killed_at
    reported = job.status()["iterations"]["count"]
    job.wait("reporting resumes", lambda s: s["iterations"]["count"] > reported + 5, 60)
    print(
        f"etcd's node and a rank killed: the ranks train again after {restarted_seconds:.0f} s, the node is seen as"
        f" lost after {lost_seconds:.0f} s, etcd serves on {new['spec']['nodeName']} after {moved_seconds:.0f} s,"
        f" reports resumed after {time.time() - killed_at:.0f} s"
    )
    status = job.status()
    assert new["spec"]["nodeName"] != home
    assert (job.generation(), job.pod_uids()) == (generation + 1, uids), "one restart, and nothing was replaced"
    assert [note["cause"] for note in job.diagnoses(status)] == ["ProcessKilled"]
