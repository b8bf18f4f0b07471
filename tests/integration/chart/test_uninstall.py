"""What is left of a release on a real kube-apiserver: the hook of ``helm uninstall`` cleans the nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from falcon_operator.base.spare_annotations import RECORD
from falcon_operator.runtime.uninstall import uninstall
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import NAMESPACE, Rendered

OTHERS = "app.kubernetes.io/name=falcon,app.kubernetes.io/instance!=falcon,app.kubernetes.io/component!=uninstall"
FOREIGN = {"key": "maintenance", "effect": "NoSchedule"}
KEEP = "karpenter.sh/do-not-disrupt"
PRESSURE = {"type": "DiskPressure", "status": "False"}


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    """Yield a cluster with two nodes of a pool, one without its taint, a fenced one, and one without Falcon's marks."""
    with running_apiserver() as server:
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


def kubeconfig_of_the_hook(server: ApiServer) -> None:
    """Give the hook's account its rights."""
    server.ok("kubectl", "create", "namespace", NAMESPACE)
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
        manifest = Rendered()(kind, "falcon-uninstall")
        where = ("-n", NAMESPACE) if kind == "ServiceAccount" else ()
        server.ok("kubectl", *where, "create", "-f", "-", stdin=json.dumps(manifest))


async def test_taints_and_conditions_are_removed_with_the_hooks_rights_and_nothing_else(cluster: ApiServer) -> None:
    kubeconfig_of_the_hook(cluster)
    token = cluster.ok("kubectl", "-n", NAMESPACE, "create", "token", "falcon-uninstall").strip()
    other = cluster.work_dir / "hook"
    config = cluster.kubeconfig.read_text()
    other.write_text(config.replace('token: "admin-of-a-throwaway-cluster"', f'token: "{token}"'))
    with patch.dict(os.environ, {"KUBECONFIG": str(other)}):
        assert await uninstall(OTHERS, pause_seconds=0.0)
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
    with patch.dict(os.environ, {"KUBECONFIG": str(cluster.kubeconfig)}):
        assert await uninstall(OTHERS, pause_seconds=0.0)
    assert nodes(cluster) == before


async def test_a_hook_of_another_release_is_no_release(cluster: ApiServer) -> None:
    """Two releases that are uninstalled at once would else leave the nodes to each other."""
    manifest = Rendered(release="other")("ClusterRole", "other-falcon-uninstall")
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(manifest))
    with patch.dict(os.environ, {"KUBECONFIG": str(cluster.kubeconfig)}):
        assert await uninstall(OTHERS, pause_seconds=0.0)
    assert nodes(cluster)["spare"] == (["maintenance"], [])
