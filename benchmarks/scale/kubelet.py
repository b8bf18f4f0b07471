"""The scheduler's and the kubelets' part: pods that wait get a node and run; nodes are lost.

What they would write is written into the API server's etcd, as ``crowd`` does, so that the server counts no request for
it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.scale import crowd
from tests.integration.api.apiserver import ApiServer, Store
from tests.integration.operator.cluster import NOT_READY, until_async

Body = dict[str, Any]
KNOWN_SECONDS = 5.0  # then the operator knows of new nodes, too
STARTED = "2026-11-20T12:00:00Z"


class Kubelets:
    """All kubelets, and the scheduler: each pod gets a node of its own."""

    def __init__(self, api: ApiServer, store: Store) -> None:
        self._api = api
        self._store = store
        self._nodes = 0
        self._model = crowd.model_node(api)
        self._bodies: dict[str, Body] = {}  # of the nodes that exist

    def waiting(self) -> list[Body]:
        """Return the pods that have no node."""
        path = f"/api/v1/namespaces/{crowd.NAMESPACE}/pods?fieldSelector=spec.nodeName%3D"
        return list(json.loads(self._api.ok("kubectl", "get", "--raw", path))["items"])

    async def run(self, pods: Sequence[Body]) -> None:
        """Give each of the pods a new node, and let it run."""
        nodes = [crowd.numbered_node(self._model, self._nodes + index) for index in range(len(pods))]
        self._nodes += len(nodes)
        self._bodies |= {node["metadata"]["name"]: node for node in nodes}
        await crowd.write_singly(self._store, "nodes", nodes)
        await until_async(lambda: crowd.count(self._api, "/api/v1/nodes") >= self._nodes, seconds=120.0, every=0.5)
        await asyncio.sleep(KNOWN_SECONDS)
        running = [
            _running(pod, node["metadata"]["name"], index)
            for index, (pod, node) in enumerate(zip(pods, nodes, strict=True))
        ]
        await crowd.write_singly(self._store, "pods", running)

    async def lose(self, nodes: Sequence[str]) -> None:
        """Mark the nodes as no longer ready."""
        await crowd.write_singly(self._store, "nodes", [{**self._bodies[name], "status": NOT_READY} for name in nodes])


def _running(pod: Body, node: str, index: int) -> Body:
    metadata = {name: value for name, value in pod["metadata"].items() if name != "resourceVersion"}
    spec = pod["spec"]
    running = {"ready": True, "restartCount": 0, "state": {"running": {"startedAt": STARTED}}, "imageID": "i"}
    ended = {"ready": True, "restartCount": 0, "imageID": "i"}
    ended["state"] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    status = {
        **pod.get("status", {}),
        "phase": "Running",
        "podIP": f"10.{index // 65536}.{index // 256 % 256}.{index % 256}",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": STARTED}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "initContainerStatuses": [
            {"name": container["name"], "image": "i", **(running if container.get("restartPolicy") else ended)}
            for container in spec.get("initContainers", [])
        ],
        "containerStatuses": [{"name": container["name"], "image": "i", **running} for container in spec["containers"]],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, "nodeName": node},
        "status": status,
    }
