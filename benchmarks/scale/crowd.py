"""Many pods and nodes in a real kube-apiserver, without the minutes that it takes to create them one by one.

One pod and one node are created through the API, so that they have all fields that the server sets. Their copies are
written into the server's etcd, where it finds them as if it had stored them itself.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Final

from falcon_etcd import MAX_TXN_OPS, Client, Op
from tests.integration.api.apiserver import ApiServer, Store
from tests.integration.operator.cluster import READY, node

NAMESPACE: Final = "research"
REPLICAS: Final = 64  # pods of a job
PREFIXES: Final = {"pods": f"/registry/pods/{NAMESPACE}/", "nodes": "/registry/minions/"}
AT_A_TIME: Final = 32  # writes
SECONDS: Final = 300.0  # for the server to take over what was written
Body = dict[str, Any]


def prepare(api: ApiServer, store: Store, pods: int) -> None:
    """Fill the server with that many running pods and as many nodes, one pod on each node."""
    api.ok("kubectl", "create", "namespace", NAMESPACE)
    the_pod, the_node = _model_pod(api), model_node(api)
    asyncio.run(write(store, "nodes", (numbered_node(the_node, number) for number in range(pods))))
    asyncio.run(write(store, "pods", (_pod(the_pod, number) for number in range(pods))))
    for path in (f"/api/v1/namespaces/{NAMESPACE}/pods", "/api/v1/nodes"):
        deadline = time.monotonic() + SECONDS
        while count(api, path) < pods:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server has {count(api, path)} of {pods} objects at {path}")
            time.sleep(0.5)


def count(api: ApiServer, path: str) -> int:
    """Return how many objects the server has at a path; 1 where there is none."""
    metadata = json.loads(api.ok("kubectl", "get", "--raw", f"{path}?limit=1"))["metadata"]
    return 1 + int(metadata.get("remainingItemCount", 0))


def _model_pod(api: ApiServer) -> Body:
    resources = {"requests": {"cpu": "8", "nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}
    env = [{"name": f"SETTING_{number}", "value": "a value of some length"} for number in range(30)]
    container = {"name": "trainer", "image": "registry.example/train:1", "command": ["python"], "env": env}
    sidecar = {"name": "falcon-agent", "image": "registry.example/agent:1", "restartPolicy": "Always", "env": env}
    running = {"ready": True, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-20T12:00:00Z"}}}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "model", "namespace": NAMESPACE, "labels": _labels(0)},
        "spec": {
            "nodeName": "model",
            "initContainers": [{"name": "falcon-copy", "image": "registry.example/agent:1"}, sidecar],
            "containers": [{**container, "resources": resources}],
        },
    }
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-11-20T12:00:00Z"}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "initContainerStatuses": [
            {"name": "falcon-copy", "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
             "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "falcon-agent", "image": "i", "imageID": "i", **running},
        ],
        "containerStatuses": [{"name": "trainer", "image": "i", "imageID": "i", **running}],
    }  # fmt: skip
    return _made(api, manifest, status)


def model_node(api: ApiServer) -> Body:
    """Return a node as the server stores one."""
    labels = {f"example.com/label-{number}": "a-value" for number in range(20)}
    images = [{"names": [f"registry.example/image-{number}:1"], "sizeBytes": 10**9} for number in range(50)]
    return _made(api, node("model", labels), {**READY, "images": images})


def _made(api: ApiServer, manifest: Body, status: Body) -> Body:
    """Create the object and its status through the API; return it as stored, and delete it."""
    kind, name = manifest["kind"].lower(), manifest["metadata"]["name"]
    where = ["-n", NAMESPACE]
    api.ok("kubectl", *where, "create", "-f", "-", stdin=json.dumps(manifest))
    change = json.dumps({"status": status})
    api.ok("kubectl", *where, "patch", kind, name, "--subresource=status", "--type=merge", "-p", change)
    stored: Body = json.loads(api.ok("kubectl", *where, "get", kind, name, "--show-managed-fields", "-o", "json"))
    api.ok("kubectl", *where, "delete", kind, name, "--grace-period=0", "--force")
    del stored["metadata"]["resourceVersion"]
    return stored


def _labels(number: int) -> dict[str, str]:
    job, replica = divmod(number, REPLICAS)
    return {
        "falcon.dev/job": f"pretraining-{job}",
        "falcon.dev/job-uid": str(uuid.UUID(int=job)),
        "falcon.dev/replica": str(replica),
        "falcon.dev/role": "trainer",
    }


def _pod(model: Body, number: int) -> Body:
    labels = _labels(number)
    name = f"{labels['falcon.dev/job']}-{labels['falcon.dev/replica']}-x7kfd"
    pod = {**model, "metadata": {**model["metadata"], "name": name, "uid": str(uuid.uuid4()), "labels": labels}}
    pod["spec"] = {**model["spec"], "nodeName": f"node-{number}", "hostname": name}
    pod["status"] = copy.deepcopy(model["status"])
    pod["status"]["podIP"] = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
    return pod


def numbered_node(model: Body, number: int) -> Body:
    """Return the node of that number."""
    return {**model, "metadata": {**model["metadata"], "name": f"node-{number}", "uid": str(uuid.uuid4())}}


async def write(store: Store, kind: str, objects: Iterable[Body]) -> None:
    """Write objects into the server's etcd; ``kind`` is one of ``PREFIXES``."""
    endpoint = store.url.removeprefix("http://")
    async with Client([endpoint]) as client:
        for batch in _batches(objects, MAX_TXN_OPS):
            puts = [Op.put(PREFIXES[kind] + body["metadata"]["name"], json.dumps(body).encode()) for body in batch]
            await client.txn([], puts)


async def write_singly(store: Store, kind: str, objects: Iterable[Body]) -> None:
    """Write objects into the server's etcd, each at a revision of its own.

    Whoever watches the server counts on it: no two changes of the server's own have the same resourceVersion.
    """
    async with Client([store.url.removeprefix("http://")]) as client:
        for batch in _batches(objects, AT_A_TIME):
            keys = [PREFIXES[kind] + body["metadata"]["name"] for body in batch]
            values = [json.dumps(body).encode() for body in batch]
            await asyncio.gather(*map(client.put, keys, values))


def _batches(objects: Iterable[Body], size: int) -> Iterator[list[Body]]:
    batch: list[Body] = []
    for body in objects:
        batch.append(body)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
