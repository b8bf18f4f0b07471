"""The warm pool through the whole operator; the test plays scheduler and kubelet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from falcon_operator.api.common import TAINT_SPARE
from tests.integration.operator.cluster import NOT_READY, READY, Installation, node, until

KEEP = "karpenter.sh/do-not-disrupt"


def a_pool(size: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "WarmPool",
        "metadata": {"name": "spares"},
        "spec": {"nodeSelector": {"pool": "yes"}, "size": size, "burnIn": {"seconds": 1}, **spec},
    }


class Cluster:
    """Two nodes of the pool and one beside it."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        for name, labels in (("s1", {"pool": "yes"}), ("s2", {"pool": "yes"}), ("w1", {})):
            installation.apply(node(name, labels))
            installation.patch_status("node", name, READY)

    def states(self) -> dict[str, str]:
        pool = self.installation.get("warmpool", "spares") or {}
        return {spare["node"]: spare["state"] for spare in pool.get("status", {}).get("spares", [])}

    def spares(self) -> set[str]:
        """Return the nodes with the pool's taint."""
        return {
            listed["metadata"]["name"]
            for listed in self.installation.get("nodes")
            if any(taint["key"] == TAINT_SPARE for taint in listed["spec"].get("taints", []))
        }

    def tests(self) -> dict[str, str]:
        """Return the burn-in pods that have not ended, by the node that they are pinned to."""
        found = {}
        pods = self.installation.get("pods")
        for pod in (pod for pod in pods if pod["metadata"]["labels"].get("falcon.dev/role") == "burn-in"):
            affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            [pinned] = affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"]
            if pod["status"]["phase"] == "Pending" and "deletionTimestamp" not in pod["metadata"]:
                found[pinned] = pod["metadata"]["name"]
        return found

    def end_test(self, on: str, *, gflops: float) -> None:
        name = until(lambda: self.tests().get(on))
        ended = {"exitCode": 0, "message": json.dumps({"gflops": gflops})}
        status = {"name": "burn-in", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
        self.installation.patch_status(
            "pod",
            name,
            {"phase": "Succeeded", "containerStatuses": [{**status, "state": {"terminated": ended}}]},
        )


def test_spares_of_an_operator_without_the_setting_get_their_annotations_and_the_last_one_gives_them_back(
    installation: Installation,
) -> None:
    def kept() -> set[str]:
        """Return the nodes with the annotation."""
        listed = (found["metadata"] for found in installation.get("nodes"))
        return {meta["name"] for meta in listed if meta.get("annotations", {}).get(KEEP) == "true"}

    cluster = Cluster(installation)
    operator = installation.operator("op-a")
    installation.apply(a_pool())
    until(lambda: cluster.spares() == {"s1"})
    assert kept() == set()
    assert operator.terminate() == 0
    installation.operator("op-b", FALCON_SPARE_ANNOTATIONS=json.dumps({KEEP: "true"}))
    until(lambda: kept() == {"s1"})
    installation.api.ok("kubectl", "annotate", "node", "s1", f"{KEEP}-")
    until(lambda: kept() == {"s1"})
    installation.api.ok("kubectl", "delete", "warmpool", "spares")
    until(lambda: cluster.spares() == set())
    assert kept() == set()


def test_a_spare_is_tainted_tested_ready_replaced_when_its_node_fails_and_let_go(installation: Installation) -> None:
    cluster = Cluster(installation)
    operator = installation.operator("op-a")
    installation.apply(a_pool())
    until(lambda: cluster.spares() == {"s1"})
    cluster.end_test("s1", gflops=50.0)
    until(lambda: cluster.states() == {"s1": "Ready"})
    until(lambda: not installation.get("pods"))
    until(lambda: operator.get("/metrics").find('falcon_pool_ready_spares{pool="spares"} 1.0') >= 0)

    # its node fails: another is chosen at once; back again, it is tested anew and let go as one too many
    installation.patch_status("node", "s1", NOT_READY)
    until(lambda: cluster.states() == {"s1": "Unavailable", "s2": "Testing"})
    cluster.end_test("s2", gflops=60.0)
    until(lambda: cluster.states() == {"s1": "Unavailable", "s2": "Ready"})
    installation.patch_status("node", "s1", READY)
    until(lambda: cluster.states() == {"s2": "Ready"})
    until(lambda: cluster.spares() == {"s2"})

    reasons = {event["reason"] for event in installation.get("events", namespace="default")}
    assert {"SpareReady", "SpareUnavailable"} <= reasons

    installation.api.ok("kubectl", "delete", "warmpool", "spares")
    until(lambda: cluster.spares() == set())


def test_a_pool_deleted_while_the_operator_is_down_leaves_no_taint(installation: Installation) -> None:
    cluster = Cluster(installation)
    operator = installation.operator("op-a")
    installation.apply(a_pool(size=2))
    until(lambda: cluster.spares() == {"s1", "s2"})
    operator.kill()
    installation.api.ok("kubectl", "delete", "warmpool", "spares")
    assert cluster.spares() == {"s1", "s2"}
    installation.operator("op-a")
    until(lambda: cluster.spares() == set())


def test_a_claim_of_a_job_that_is_gone_is_taken_back(installation: Installation) -> None:
    cluster = Cluster(installation)
    installation.operator("op-a")
    installation.apply(a_pool())
    cluster.end_test("s1", gflops=50.0)
    until(lambda: cluster.states() == {"s1": "Ready"})
    claimed = {"node": "s1", "state": "Claimed", "claimedBy": "ns/job/uid-of-nobody/7"}
    installation.patch_status("warmpool", "spares", {"spares": [claimed]})
    until(lambda: cluster.states() == {"s1": "Testing"})
    cluster.end_test("s1", gflops=51.0)
    until(lambda: cluster.states() == {"s1": "Ready"})


@pytest.mark.slow
def test_a_spare_on_which_a_tenant_runs_cannot_be_claimed_and_is_made_up_for(installation: Installation) -> None:
    cluster = Cluster(installation)
    installation.operator("op-a")
    installation.apply(a_pool())
    cluster.end_test("s1", gflops=50.0)
    until(lambda: cluster.states() == {"s1": "Ready"})
    container = {"name": "c", "image": "x:1", "resources": {"requests": {"cpu": "1"}}}
    tenant = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tenant", "namespace": installation.namespace, "labels": {"app": "greedy"}},
        "spec": {"nodeName": "s1", "containers": [container]},  # as a pod that tolerates every taint
    }
    installation.apply(tenant)
    installation.patch_status("node", "s2", {"conditions": [{**READY["conditions"][0], "reason": "a change"}]})
    until(lambda: cluster.states() == {"s1": "Unavailable", "s2": "Testing"})
    pool = installation.get("warmpool", "spares")
    assert f"{installation.namespace}/tenant" in pool["status"]["spares"][0]["message"]
    installation.api.ok(
        "kubectl", "-n", installation.namespace, "delete", "pod", "tenant", "--force", "--grace-period=0"
    )


def test_a_node_that_the_test_does_not_tolerate_is_left_alone_until_the_pool_tolerates_it(
    installation: Installation,
) -> None:
    installation.apply(node("cp", {"pool": "yes"}))
    installation.patch_status("node", "cp", READY)
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    installation.api.ok("kubectl", "taint", "node", "cp", f"{taint['key']}=:{taint['effect']}", "--overwrite")
    cluster = Cluster(installation)
    for name in ("s1", "s2"):
        installation.api.ok("kubectl", "label", "node", name, "pool-", "--overwrite")
    installation.operator("op-a")
    installation.apply(a_pool())

    def message() -> str:
        conditions = (installation.get("warmpool", "spares") or {}).get("status", {}).get("conditions", [])
        return str(conditions[0]["message"]) if conditions else ""

    until(lambda: "cp left out for the taint node-role.kubernetes.io/control-plane:NoSchedule" in message())
    assert (cluster.spares(), cluster.tests()) == (set(), {})
    installation.apply(a_pool(burnIn={"tolerations": [{"key": taint["key"], "operator": "Exists"}]}))
    until(lambda: cluster.states() == {"cp": "Testing"})
    until(lambda: set(cluster.tests()) == {"cp"})
    installation.api.ok("kubectl", "delete", "node", "cp")
