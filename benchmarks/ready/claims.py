"""Nodes that are lost together: how soon each of them has a spare of its own, on a real API server.

    make venv cluster-build && python -m benchmarks.ready.claims

Nodes are objects, and kubelets, agents and scheduler are played (``tests/integration/operator/played.py``). What is
measured is the operator's own: from the first look after the loss until every claim stands in the pool's status, and
until every pod exists and is pinned to its spare.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from falcon_operator.api.common import API_VERSION, TAINT_SPARE
from falcon_operator.cluster.transport import path_of
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.operator.cluster import CRDS, NOT_READY, READY, Installation, a_job
from tests.integration.operator.played import Played, connected

LOST: Final = 30
REPLICAS: Final = 32
LIMIT_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 60.0
SPARES: Final = [f"spare-{number:02}" for number in range(LOST)]
WORKERS: Final = [f"node-{number:02}" for number in range(REPLICAS)]


class Claimed(NamedTuple):
    """What came of the loss."""

    claims_seconds: float  # until each lost replica had claimed a spare
    pods_seconds: float  # until each of them had a pod that is pinned to it
    looks: int  # of the operator
    owners: dict[str, str]  # the claim of each spare
    nodes: list[str]  # on which the job's pods are, or which they are pinned to


async def measure(api: ApiServer, namespace: str) -> Claimed:
    """Run a job on ``WORKERS``, lose ``LOST`` of them together, and wait for the spares."""
    async with connected(api.kubeconfig, namespace) as (kube, http):
        job = Played(namespace, kube, http, "gpt2", schedules=True)
        await job.until(lambda found: found.get("status", {}).get("state") == "Running", seconds=DEADLINE_SECONDS)
        job.lost = frozenset(WORKERS[:LOST])
        pods = await kube.list_pods(namespace, {})
        for name in sorted(job.lost):
            await job.set_node(name, NOT_READY)
        job.agents.follow(pods, job.lost)
        began, looks = time.monotonic(), job.looks
        claims_seconds = 0.0
        while True:
            await job.look()
            pool = json.loads(await http.call("GET", path_of(API_VERSION, "warmpools", name="spares")))
            owners = {spare["node"]: spare.get("claimedBy", "") for spare in pool["status"]["spares"]}
            if all(owners.values()) and not claims_seconds:
                claims_seconds = time.monotonic() - began
            nodes = [_place(pod) for pod in await _pods(job)]
            if set(SPARES) <= set(nodes):
                return Claimed(claims_seconds, time.monotonic() - began, job.looks - looks, owners, nodes)
            if time.monotonic() - began > DEADLINE_SECONDS:
                raise TimeoutError(f"after {DEADLINE_SECONDS:.0f} s: claims {owners}, pods on {nodes}")


async def _pods(job: Played) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await job.http.call("GET", path_of("v1", "pods", job.namespace)))["items"]
    return found


def _place(pod: dict[str, Any]) -> str:
    affinity = pod["spec"]["affinity"].get("nodeAffinity")
    if affinity is None:
        return str(pod["spec"].get("nodeName", ""))
    fields = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchFields"]
    return next((str(field["values"][0]) for field in fields if field["operator"] == "In"), "")


def prepare(installation: Installation) -> None:
    """Make the nodes, the pool whose spares are ready, and the job."""
    for name in [*WORKERS, *SPARES]:
        taints = [{"key": TAINT_SPARE, "value": "spares", "effect": "NoSchedule"}] if name in SPARES else []
        installation.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": taints}})
        installation.patch_status("node", name, READY)
        installation.api.run("kubectl", "taint", "node", name, "node.kubernetes.io/not-ready:NoSchedule-")
    pool = {"nodeSelector": {"pool": "yes"}, "size": LOST}
    installation.apply({"apiVersion": API_VERSION, "kind": "WarmPool", "metadata": {"name": "spares"}, "spec": pool})
    spares = [{"node": name, "state": "Ready", "gemmGflops": "50"} for name in SPARES]
    installation.patch_status("warmpool", "spares", {"spares": spares})
    installation.apply(a_job(installation.namespace, replicas=REPLICAS, warmPoolRef={"name": "spares"}))


def wrong(found: Claimed) -> list[str]:
    """Return what is wrong with the claims; empty if each is right."""
    problems = []
    if len(set(found.owners.values())) != LOST:
        problems.append(f"{len(set(found.owners.values()))} claims on {LOST} spares")
    if sorted(node for node in found.nodes if node in SPARES) != SPARES:
        problems.append("not every spare has one pod")
    return problems


class Row(NamedTuple):
    """One measurement: how long it took, and what was wrong with the claims."""

    what: str
    claims_seconds: float
    pods_seconds: float
    looks: int
    problems: list[str]


def measure_once() -> Row:
    """Lose the nodes once, on an API server of its own."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # the operator's lines
    with running_apiserver() as api, tempfile.TemporaryDirectory() as folder:
        api.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
        api.ok("kubectl", "wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        api.ok("kubectl", "create", "namespace", "ready")
        prepare(Installation(api, "ready", Path(folder)))
        found = asyncio.run(measure(api, "ready"))
    what = f"{LOST} of {REPLICAS} nodes lost together: each lost replica has claimed a spare"
    return Row(what, found.claims_seconds, found.pods_seconds, found.looks, wrong(found))


if __name__ == "__main__":
    print(measure_once())
