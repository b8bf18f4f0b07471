"""The release is removed while a job trains, and installed again: the job notices neither."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from dev.install import KUBECONFIG, RELEASE, SYSTEM_NAMESPACE, helm, install_chart, prepare_cluster
from dev.kubectl import PATIENCE, Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job

MANY = 100_000
KINDS = (
    "poddisruptionbudgets",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "clusterroles",
    "clusterrolebindings",
)
LABEL = f"app.kubernetes.io/instance={RELEASE}"


@pytest.fixture
def removed(cluster: Kubectl) -> Iterator[Callable[[], None]]:
    """Yield what removes the release; it is there again at the end."""
    yield lambda: print(helm("uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--wait"))
    install_chart()
    prepare_cluster()


def _ours_on_nodes(cluster: Kubectl) -> list[str]:
    """Return the taints and conditions of Falcon's on all nodes."""
    found = []
    for node in cluster.items("nodes"):
        found += [taint["key"] for taint in node["spec"].get("taints", []) if taint["key"].startswith("falcon.dev/")]
        found += [each["type"] for each in node["status"]["conditions"] if each["type"].startswith("Falcon")]
    return found


@pytest.mark.long  # removes the release under which all other tests run
def test_a_job_trains_on_without_falcon_and_is_taken_over_without_a_restart(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job], removed: Callable[[], None]
) -> None:
    job = start(training_job("left-alone", steps=MANY, replicas=2, spec={"warmPoolRef": {"name": "spares"}}))
    job.wait_training()
    before = job.pod_uids()
    assert _ours_on_nodes(cluster), "the spares are tainted"
    removed()
    assert _ours_on_nodes(cluster) == []
    left = {kind: cluster.items(kind, LABEL) for kind in KINDS}
    assert not any(left.values()), left
    budgets = cluster.run("get", "poddisruptionbudgets", "--all-namespaces", "-o", "name")
    assert "falcon" not in budgets
    node = job.member(1)["node"]
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--dry-run=server"]
    command = ["kubectl", f"--kubeconfig={KUBECONFIG}", "drain", node, f"--pod-selector=falcon.dev/job={job.name}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    cluster.run("uncordon", node)
    assert done.returncode == 0, done.stderr
    install_chart()
    wait_for("reports of the job", lambda: job.status().get("state") == "Running", timeout_seconds=120)
    assert job.pod_uids() == before
    assert job.status().get("counters", {}).get("restarts", 0) == 0
