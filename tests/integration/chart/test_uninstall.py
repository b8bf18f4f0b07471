"""What is left of a release on a real kube-apiserver: the hook of ``helm uninstall`` cleans nodes and deletes pods."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.warmpool import WarmPool, WarmPoolSpec
from falcon_operator.base.spare_annotations import RECORD
from falcon_operator.manifests.burn_in import PURPOSE_EXCLUDED, PURPOSE_SPARE, build_burn_in_pod
from falcon_operator.runtime.uninstall import Pods, uninstall
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import NAMESPACE, Manifest, Rendered

OTHERS = "app.kubernetes.io/name=falcon,app.kubernetes.io/instance!=falcon,app.kubernetes.io/component!=uninstall"
PODS = Pods(
    NAMESPACE, "app.kubernetes.io/instance=falcon,app.kubernetes.io/name=falcon,app.kubernetes.io/component=test"
)
FOREIGN = {"key": "maintenance", "effect": "NoSchedule"}
KEEP = "karpenter.sh/do-not-disrupt"
PRESSURE = {"type": "DiskPressure", "status": "False"}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """Yield a server with the hook's account and its rights, and a tenant's namespace."""
    with running_apiserver() as server:
        for namespace in (NAMESPACE, "team"):
            server.ok("kubectl", "create", "namespace", namespace)
        for kind in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
            manifest = Rendered()(kind, "falcon-uninstall")
            where = () if kind.startswith("Cluster") else ("-n", NAMESPACE)
            server.ok("kubectl", *where, "create", "-f", "-", stdin=json.dumps(manifest))
        yield server


@pytest.fixture
def cluster(server: ApiServer) -> Iterator[ApiServer]:
    """Yield a cluster with two nodes of a pool, one without its taint, a fenced one, and one without Falcon's marks."""
    a_node(server, "untainted", [], [])
    a_node(server, "spare", [{"key": "falcon.dev/spare", "value": "p", "effect": "NoSchedule"}, FOREIGN], [])
    fence = {"key": "falcon.dev/fenced", "value": "gpt2", "effect": "NoSchedule"}
    busy = {"type": "FalconCpuBusy", "status": "True"}
    a_node(server, "fenced", [fence], [busy, PRESSURE])
    a_node(server, "plain", [FOREIGN], [PRESSURE])
    for kept in ("spare", "untainted"):
        server.ok("kubectl", "annotate", "node", kept, f"{KEEP}=true", f"{RECORD}={KEEP}=true", "team/rack=7")
    server.ok("kubectl", "annotate", "node", "plain", f"{KEEP}=true")
    yield server
    server.ok("kubectl", "delete", "nodes", "--all")
    server.ok("kubectl", "delete", "pods", "--all", "--all-namespaces")
    server.ok("kubectl", "delete", "clusterroles", "--ignore-not-found", "other-falcon", "other-falcon-uninstall")


def a_node(server: ApiServer, name: str, taints: list[Any], conditions: list[Any]) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}}
    server.ok("kubectl", "create", "-f", "-", stdin=json.dumps(node))
    status = json.dumps({"status": {"conditions": conditions}})
    server.ok("kubectl", "patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
    # The API server taints each new node as not ready.
    server.ok("kubectl", "patch", "node", name, "--type=merge", "-p", json.dumps({"spec": {"taints": taints}}))


def nodes(server: ApiServer) -> dict[str, tuple[list[str], list[str]]]:
    """Return the keys of each node's taints, and the types of its conditions."""
    found = json.loads(server.ok("kubectl", "get", "nodes", "-o", "json"))["items"]
    return {
        node["metadata"]["name"]: (
            [taint["key"] for taint in node["spec"].get("taints", [])],
            [condition["type"] for condition in node["status"].get("conditions", [])],
        )
        for node in found
    }


def annotations(server: ApiServer) -> dict[str, set[str]]:
    """Return the keys of each node's annotations."""
    found = json.loads(server.ok("kubectl", "get", "nodes", "-o", "json"))["items"]
    return {node["metadata"]["name"]: set(node["metadata"].get("annotations", {})) for node in found}


@contextlib.contextmanager
def as_the_hook(cluster: ApiServer) -> Iterator[None]:
    """Let calls to the API server be those of the hook's account."""
    token = cluster.ok("kubectl", "-n", NAMESPACE, "create", "token", "falcon-uninstall").strip()
    config = cluster.work_dir / "hook"
    of_admin = cluster.kubeconfig.read_text()
    config.write_text(of_admin.replace('token: "admin-of-a-throwaway-cluster"', f'token: "{token}"'))
    with patch.dict(os.environ, {"KUBECONFIG": str(config)}):
        yield


def some_pods(server: ApiServer) -> None:
    """Make pods of the release, of another release and of strangers in the release's namespace and in a tenant's."""
    pool = WarmPool(metadata=ObjectMeta(name="spares", uid="u-1"), spec=WarmPoolSpec(node_selector={}, size=1))
    for purpose in (PURPOSE_SPARE, PURPOSE_EXCLUDED):
        test = build_burn_in_pod(
            name=f"of-a-{purpose}-node", namespace=NAMESPACE, node="spare", pool=pool, purpose=purpose,
            agent_image="agent", image_pull_policy="Never",
        )  # fmt: skip
        create(server, test)
    create(server, {**test, "metadata": {**test["metadata"], "name": "elsewhere", "namespace": "team"}})
    create(server, {**test, "metadata": {**test["metadata"], "name": "labelled-alike", "ownerReferences": []}})
    create(server, Rendered()("Pod", "falcon-test-operator"))
    create(server, Rendered(release="other")("Pod", "other-falcon-test-operator"))


def create(server: ApiServer, pod: Manifest) -> None:
    namespace = pod["metadata"].get("namespace", NAMESPACE)
    server.ok("kubectl", "-n", namespace, "create", "-f", "-", stdin=json.dumps(pod))


def names(server: ApiServer) -> set[str]:
    """Return the names of all pods, those without a node that are being deleted among them."""
    return {
        name.rpartition("/")[2]
        for name in server.ok("kubectl", "get", "pods", "--all-namespaces", "-o", "name").splitlines()
    }


@pytest.mark.parametrize("another", [False, True], ids=["alone", "another release is installed"])
async def test_pods_that_test_nodes_and_those_of_helm_test_are_deleted_and_no_others(
    cluster: ApiServer, another: bool
) -> None:
    """Another release cares for the nodes, and not for this release's namespace."""
    some_pods(cluster)
    if another:
        manifest = Rendered(release="other")("ClusterRole", "other-falcon")
        cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(manifest))
    with as_the_hook(cluster):
        assert await uninstall(OTHERS, PODS, pause_seconds=0.0)
    assert names(cluster) == {"elsewhere", "labelled-alike", "other-falcon-test-operator"}


def test_the_hook_is_given_where_the_pods_are() -> None:
    (container,) = Rendered()("Job", "falcon-uninstall")["spec"]["template"]["spec"]["containers"]
    given = dict(argument.removeprefix("--").split("=", 1) for argument in container["args"])
    assert Pods(given["namespace"], given["tests"]) == PODS
    assert given["unless"] == OTHERS


async def test_taints_and_conditions_are_removed_with_the_hooks_rights_and_nothing_else(cluster: ApiServer) -> None:
    with as_the_hook(cluster):
        assert await uninstall(OTHERS, PODS, pause_seconds=0.0)
    pressure = ["DiskPressure"]
    assert nodes(cluster) == {
        "spare": (["maintenance"], []),
        "fenced": ([], pressure),
        "plain": (["maintenance"], pressure),
        "untainted": ([], []),
    }
    assert annotations(cluster) == {
        "spare": {"team/rack"},
        "fenced": set(),
        "plain": {KEEP},
        "untainted": {"team/rack"},
    }


async def test_nodes_that_another_release_looks_after_stay_as_they_are(cluster: ApiServer) -> None:
    before = nodes(cluster)
    manifest = Rendered(release="other")("ClusterRole", "other-falcon")
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(manifest))
    with as_the_hook(cluster):
        assert await uninstall(OTHERS, PODS, pause_seconds=0.0)
    assert nodes(cluster) == before


async def test_a_hook_of_another_release_is_no_release(cluster: ApiServer) -> None:
    """Two releases that are uninstalled at once would else leave the nodes to each other."""
    manifest = Rendered(release="other")("ClusterRole", "other-falcon-uninstall")
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(manifest))
    with as_the_hook(cluster):
        assert await uninstall(OTHERS, PODS, pause_seconds=0.0)
    assert nodes(cluster)["spare"] == (["maintenance"], [])
