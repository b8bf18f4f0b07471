"""The warm pool through the whole operator; the test plays scheduler and kubelet."""

from __future__ import annotations

import json
from typing import Any

from falcon_operator.api import TAINT_SPARE
from tests.integration.operator.cluster import NOT_READY, READY, Installation, node, until


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
        return {one["node"]: one["state"] for one in pool.get("status", {}).get("spares", [])}

    def spares(self) -> set[str]:
        """Nodes with the pool's taint."""
        return {
            one["metadata"]["name"]
            for one in self.installation.get("nodes")
            if any(taint["key"] == TAINT_SPARE for taint in one["spec"].get("taints", []))
        }

    def tests(self) -> dict[str, str]:
        """Burn-in pods that have not ended, by the node that they are pinned to."""
        found = {}
        for pod in self.installation.get("pods"):
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
