"""The chart beyond its defaults on a real cluster: `helm test`, and an etcd of three members that loses one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.install import RELEASE, SYSTEM_NAMESPACE, helm, install_chart, local_cluster
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job

TRIO = "trio"
TRIO_NAMESPACE = "falcon-trio"
ETCD_NODES = ("node-a", "node-b", "node-c")


def test_helm_test_of_the_default_release_succeeds(cluster: Kubectl) -> None:
    output = helm("test", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--timeout", "2m", "--logs")
    assert output.count("Succeeded") == 3  # etcd, gateway, operator
    assert "POD LOGS: falcon-test-operator\n200" in output


def _volume(node: str, folder: Path) -> Json:
    """Return a local volume that only pods on ``node`` can take."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{TRIO}-{node}"},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": TRIO,
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


@pytest.fixture
def volumes(cluster: Kubectl) -> Iterator[str]:
    """Make a local volume on each of three nodes; yield the storage class that finds them."""
    if not local_cluster():
        pytest.skip("local volumes are made on the machine of the local cluster")
    root = Path(tempfile.mkdtemp(prefix="falcon-e2e-etcd-"))
    root.chmod(0o755)
    objects: list[Json] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": TRIO},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for node in ETCD_NODES:
        (root / node).mkdir()
        objects.append(_volume(node, root / node))
    cluster.apply(*objects)
    yield TRIO
    for thing in objects:
        cluster.run("delete", thing["kind"], thing["metadata"]["name"], "--ignore-not-found", "--wait=false")
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def trio(cluster: Kubectl, volumes: str) -> Iterator[Kubectl]:
    """Replace the default release by a release with three etcd members, over the same definitions; restore it."""
    helm("uninstall", RELEASE, "--namespace", SYSTEM_NAMESPACE, "--wait")
    try:
        install_chart(
            "--set=crds.enabled=false",
            "--set=etcd.replicas=3",
            "--set=etcd.persistence.enabled=true",
            f"--set=etcd.persistence.storageClassName={volumes}",
            "--set=etcd.nodeSelector=null",
            release=TRIO,
            namespace=TRIO_NAMESPACE,
        )
        yield cluster.within(TRIO_NAMESPACE)
    finally:
        helm("uninstall", TRIO, "--namespace", TRIO_NAMESPACE, "--ignore-not-found", "--wait")
        cluster.run("delete", "namespace", TRIO_NAMESPACE, "--wait", timeout_seconds=120)
        install_chart()


def _etcd_pods(trio: Kubectl) -> list[Json]:
    return trio.items("pods", "app.kubernetes.io/component=etcd")


def _ready(pod: Json) -> bool:
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in pod["status"].get("conditions", []))


@pytest.mark.long  # installs a second time; the default has one member
def test_three_etcd_members_lose_one_and_reporting_goes_on(
    nodes: None, trio: Kubectl, start: Callable[[Json], Job]
) -> None:
    members = _etcd_pods(trio)
    assert {pod["spec"]["nodeName"] for pod in members} == set(ETCD_NODES), "one member a node"
    assert "Succeeded" in helm("test", TRIO, "--namespace", TRIO_NAMESPACE, "--timeout", "2m")

    job = start(training_job("gpt", steps=100_000, replicas=2))
    job.wait_training()
    uids = job.pod_uids()
    lost = members[0]
    trio.run("delete", "pod", lost["metadata"]["name"], "--force", "--grace-period=0")
    reported = job.status()["iterations"]["count"]
    job.wait("reports arrive while a member is away", lambda s: s["iterations"]["count"] >= reported + 20, 60)

    def rejoined() -> bool:
        pods = _etcd_pods(trio)
        return len(pods) == 3 and all(_ready(pod) and pod["metadata"]["uid"] != lost["metadata"]["uid"] for pod in pods)

    wait_for("the lost member is back on its volume", rejoined, timeout_seconds=90)
    assert "Succeeded" in helm("test", TRIO, "--namespace", TRIO_NAMESPACE, "--timeout", "2m")
    status = job.status()
    assert job.pod_uids() == uids, "no pod was replaced"
    assert not status.get("counters", {}).get("restarts"), "nothing was restarted"
    assert job.diagnoses(status) == []
