"""Kubelets and agents that a test plays, so that a job runs against a real API server without machines.

A kubelet runs every pod that the real scheduler has placed, and removes every pod that is being deleted. The agents of
running pods follow the operator's plan at once, and report iterations of a quarter of a second, or as long as the
slowest node makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from falcon_core.wire.keys import JobKey
from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStatus
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.reporting.messages import Plan, RankSignals, Summary
from falcon_core.wire.saves.peers import Peers
from falcon_operator.api.common import API_VERSION
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.ports import JobReports, NotFound, PodSettings, PodView, Received
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.nodes import Breaker
from falcon_operator.cluster.transport import MERGE_PATCH, Transport, load_configuration, path_of
from falcon_operator.job.reconciler import JobReconciler
from falcon_operator.manifests.instrument import AGENT_CONTAINER
from tests.integration.operator.cluster import READY, WAIT_SECONDS, Installation, node
from tests.world.running import Metrics

ITERATION_SECONDS = 0.25
ROOM = {"cpu": "8", "memory": "16Gi", "pods": "20"}


def add_node(installation: Installation, name: str, labels: dict[str, str], **room: str) -> None:
    """Make a Ready node with room for pods."""
    installation.apply(node(name, labels))
    whole = {**ROOM, **room}
    installation.patch_status("node", name, {**READY, "capacity": whole, "allocatable": whole})
    # The API server sets this taint on each new node, and no node lifecycle controller runs that would lift it.
    installation.api.ok("kubectl", "taint", "node", name, "node.kubernetes.io/not-ready:NoSchedule-")


class Agents:
    """A ``ports.Bus`` whose agents are played."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.run_at = 0.0
        self.pods: list[PodView] = []  # that run
        self.gone: dict[str, float] = {}  # by uid of a pod on a lost node: since when its agent is silent
        self.lacks = ""  # every rank ends at its start with these words
        self.slow_nodes: dict[str, float] = {}  # by node: how many times its normal time a rank there computes

    def follow(self, pods: list[PodView], lost: frozenset[str]) -> None:
        """Take over which pods run, and which are gone with their node."""
        self.pods = [pod for pod in pods if pod.phase == "Running" and not pod.deleting and pod.node not in lost]
        for pod in pods:
            if pod.node in lost:
                self.gone.setdefault(pod.uid, time.monotonic())

    def reports(self, job_uid: str) -> JobReports:
        now = time.monotonic()
        return JobReports(
            summaries={pod.uid: Received(summary=self._summary(pod), at_seconds=now) for pod in self.pods},
            alive=frozenset(pod.uid for pod in self.pods),
            gone_since_seconds=dict(self.gone),
            session_healthy_since_seconds=0.0,
        )

    def _summary(self, pod: PodView) -> Summary:
        plan = self.plan
        member = next((each for each in plan.members if each.pod_uid == pod.uid), None) if plan is not None else None
        generation = plan.generation if plan is not None and member is not None else 0
        running = plan is not None and member is not None and plan.phase == "Run"
        began_ns = int((time.time() - (time.monotonic() - self.run_at)) * 1e9)
        ranks = [member.first_rank] if running and member is not None else []
        processes = [
            LaunchRank(local_rank=0, rank=rank, pid=100, state="Running", started_unix_ns=began_ns) for rank in ranks
        ]
        if self.lacks:
            end = {"state": "Exited", "exit_code": 1, "ended_unix_ns": time.time_ns(), "last_words": self.lacks}
            processes = [msgspec.structs.replace(process, **end) for process in processes]
        launch = LaunchStatus(
            generation=generation, dead_below=generation, state="Running" if running else "Stopped", ranks=processes
        )
        signals = [self._signals(rank, self.slow_nodes.get(pod.node, 1.0)) for rank in ranks if not self.lacks]
        return Summary(
            pod_uid=pod.uid, sequence=1, unix_ns=time.time_ns(), generation=generation, launch=launch, ranks=signals
        )

    def _signals(self, rank: int, slowdown: float) -> RankSignals:
        """Return what a rank reports that takes ``slowdown`` times its normal compute time."""
        slowest = max((self.slow_nodes.get(pod.node, 1.0) for pod in self._members()), default=1.0)
        done = int((time.monotonic() - self.run_at) / (slowest * ITERATION_SECONDS))
        known = min(16, done)
        compute_ns, iteration_ns = (int(factor * ITERATION_SECONDS * 1e9) for factor in (slowdown, slowest))
        return RankSignals(
            rank=rank,
            tracking="Tracking",
            iterations=done,
            iteration_ns=[iteration_ns] * known,
            compute_ns=[compute_ns] * known,
            wait_ns=[iteration_ns - compute_ns] * known,
            last_call_unix_ns=time.time_ns(),
            hang_deadline_ns=int(5e9),
        )

    def _members(self) -> list[PodView]:
        """Return the running pods that have ranks in the plan."""
        uids = {member.pod_uid for member in self.plan.members} if self.plan is not None else set()
        return [pod for pod in self.pods if pod.uid in uids]

    async def publish_plan(self, key: JobKey, plan: Plan) -> None:
        if self.plan is None or (plan.generation, plan.phase) != (self.plan.generation, self.plan.phase):
            self.run_at = time.monotonic()
        self.plan = plan

    def announce(self, key: JobKey, pod_uids: frozenset[str], procs_per_replica: int) -> None: ...

    async def publish(self, key: JobKey, message: Peers | Imports) -> None: ...

    async def ask_detail(self, key: JobKey, generation: int, ranks: list[int]) -> None: ...

    async def order_microbatches(self, key: JobKey, generation: int, shares: list[int]) -> None: ...

    async def order_probe(self, key: JobKey, order: ProbeOrder) -> None: ...

    async def forget(self, key: JobKey) -> None: ...

    def agent_credentials(self, job_uid: str) -> dict[str, bytes]:
        return {"ca.crt": b"ca", "tls.crt": b"crt", "tls.key": b"key"}


class Played:
    """An operator that looks at one job, and the machines on which its pods run.

    ``schedules``: the real scheduler does not run, and pods are bound to the node that they are pinned to, or to the
    next one that is free.
    """

    def __init__(
        self,
        namespace: str,
        kube: KubeClient,
        http: Transport,
        job: str,
        taints: tuple[str, ...] = (),
        *,
        schedules: bool = False,
    ) -> None:
        self.namespace, self.kube, self.http, self.job = namespace, kube, http, job
        self.agents = Agents()
        self.pods = PodSettings(agent_image="agent:1", gateways="g:7443", departure_taints=taints)
        self.lost: frozenset[str] = frozenset()  # nodes that are gone, with all that ran there
        self.looks = 0
        self._schedules = schedules
        self.restart()

    def restart(self) -> None:
        """Replace the operator's process: what it remembered is lost."""
        self._reconciler = JobReconciler(self.kube, self.agents, self, Metrics(), SystemClock())

    async def look(self) -> None:
        """Let the operator look once."""
        self.kube.pool_changed()
        self.looks += 1
        await self._reconciler.reconcile(self.namespace, self.job)

    async def until(self, true: Callable[[dict[str, Any]], Any], *, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Let the operator look, and machines run, until the job is as wanted; return the job."""
        deadline = time.monotonic() + seconds
        while True:
            await self._machines()
            await self.look()
            path = path_of(API_VERSION, "trainingjobs", self.namespace, self.job)
            job: dict[str, Any] = json.loads(await self.http.call("GET", path))
            if true(job):
                return job
            if time.monotonic() > deadline:
                raise AssertionError(f"still not after {seconds:.0f} s: {json.dumps(job.get('status'), indent=1)}")
            await asyncio.sleep(0.1)

    async def trainers(self) -> dict[str, str]:
        """Return the nodes of the job's pods, by pod; those that are being deleted are left out."""
        pods = await self.kube.list_pods(self.namespace, {"falcon.dev/role": "trainer"})
        return {pod.name: pod.node for pod in pods if not pod.deleting}

    async def set_node(self, name: str, status: dict[str, Any]) -> None:
        """Let the node's kubelet, or whoever judges it, write its status."""
        await self._patch(path_of("v1", "nodes", name=name, subresource="status"), {"status": status})

    async def _machines(self) -> None:
        pods = await self.kube.list_pods(self.namespace, {})
        if self._schedules:
            await self._bind([pod for pod in pods if not pod.node and not pod.deleting], {pod.node for pod in pods})
        here = [pod for pod in pods if pod.node and pod.node not in self.lost]
        for pod in here:
            path = path_of("v1", "pods", self.namespace, pod.name)
            if pod.deleting:
                with contextlib.suppress(NotFound):
                    await self.http.call("DELETE", path, body={"gracePeriodSeconds": 0})
            elif pod.phase == "Pending":
                await self._patch(f"{path}/status", {"status": running_status()})
        self.agents.follow(pods, self.lost)

    async def _bind(self, pods: list[PodView], taken: set[str]) -> None:
        nodes = await self.kube.nodes()
        free = [name for name, node in nodes.items() if node.ready and not node.taints and name not in taken]
        for pod in pods:
            path = path_of("v1", "pods", self.namespace, pod.name)
            spec = json.loads(await self.http.call("GET", path))["spec"]
            required = spec["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
            fields = required["nodeSelectorTerms"][0]["matchFields"] if required else []
            pinned = [field["values"][0] for field in fields if field["operator"] == "In"]
            target = {"kind": "Node", "name": pinned[0] if pinned else free.pop(0)}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name}, "target": target}
            await self.http.call("POST", f"{path}/binding", body=body)

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        with contextlib.suppress(NotFound):
            await self.http.call("PATCH", path, body=body, content_type=MERGE_PATCH)


@contextlib.asynccontextmanager
async def connected(kubeconfig: Path, namespace: str) -> AsyncIterator[tuple[KubeClient, Transport]]:
    """Yield the operator's client of the API server, which watches, and its transport."""
    with patch.dict(os.environ, {"KUBECONFIG": str(kubeconfig)}):
        http = Transport(await load_configuration(), lambda: None)
    kube = KubeClient(
        http,
        SystemClock(),
        Breaker(limit=2, window_seconds=3600),
        instance="test",
        namespace=namespace,
        watch_namespaces=[namespace],
    )
    watching = asyncio.create_task(kube.watch(lambda _: None, lambda _: None))
    try:
        await kube.synced()
        yield kube, http
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await http.close()


def running_status() -> dict[str, Any]:
    since = "2026-01-01T00:00:00Z"
    state = {"image": "i", "imageID": "i", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": since}}}
    ready = [{"type": kind, "status": "True", "lastTransitionTime": since} for kind in ("PodScheduled", "Ready")]
    return {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": ready,
        "initContainerStatuses": [{"name": AGENT_CONTAINER, **state}],
        "containerStatuses": [{"name": "trainer", **state}],
    }
