"""``ports.Kube`` and ``ports.Bus`` over the world. A crash follows right after a call's effect: the worst case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from falcon_core.wire.keys import JobKey
from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.measurement.burn_in import BurnInReport, encode_report
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.reporting.messages import Plan
from falcon_core.wire.saves.peers import Peers
from falcon_operator.api.common import LABEL_JOB_UID, LABEL_ROLE
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobStatus
from falcon_operator.api.trainingrun import TrainingRun, TrainingRunSpec
from falcon_operator.api.warmpool import WarmPool, WarmPoolStatus
from falcon_operator.base.ports import (
    Conflict,
    ContainerView,
    JobReports,
    Manifest,
    NamespaceRules,
    NodeTaint,
    NodeView,
    NotFound,
    Occupant,
    OtherJobs,
    PodView,
    Rejected,
)
from falcon_operator.intent.model.run import build_run, read_run
from falcon_operator.manifests.burn_in import LABEL_PURPOSE, PURPOSE_CONTROL

if TYPE_CHECKING:
    from tests.world.world import Pod, World

START_UNIX = 1_700_000_000.0
replace = msgspec.structs.replace


class FakeKube:
    """A ``ports.Kube`` over the world. The operator crashes after a call has taken effect: the worst case."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def get_job(self, namespace: str, name: str) -> TrainingJob | None:
        return self.world.job

    async def write_job_status(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJob:
        world = self.world
        if world.job is None:
            raise NotFound
        if job.metadata.resource_version != world.job.metadata.resource_version:
            raise Conflict
        world._version += 1
        stored = msgspec.json.decode(msgspec.json.encode(status), type=TrainingJobStatus)
        meta = replace(world.job.metadata, resource_version=str(world._version))
        world.job = replace(world.job, metadata=meta, status=stored)
        world.mutate()
        return world.job

    async def get_run(self, namespace: str, name: str) -> TrainingRun | None:
        return None if self.world.trainingrun is None else read_run(self.world.trainingrun)

    async def write_run(self, job: TrainingJob, before: TrainingRun | None, spec: TrainingRunSpec) -> TrainingRun:
        world = self.world
        version = world.trainingrun["metadata"]["resourceVersion"] if world.trainingrun is not None else ""
        if version != (before.metadata.resource_version if before else ""):
            raise Conflict
        world._version += 1
        manifest = build_run(job, spec, str(world._version))
        world.trainingrun = msgspec.json.decode(msgspec.json.encode(manifest))
        world.mutate()
        return read_run(world.trainingrun)

    async def delete_run(self, run: TrainingRun) -> None:
        self.world.trainingrun = None
        self.world.mutate()

    async def delete_job(self, job: TrainingJob) -> None:
        self.world.job = None
        self.world.job_deleted = True
        self.world.mutate()

    async def list_pods(self, namespace: str, labels: dict[str, str]) -> list[PodView]:
        if LABEL_JOB_UID in labels:
            return [self._view(pod) for pod in self.world.pods.values()]
        return [pod for pod in self.world.burn_ins.values() if labels.items() <= pod.labels.items()]

    def _view(self, pod: Pod) -> PodView:
        booted = self.world.clock.seconds >= pod.booted_at
        trainer = ContainerView(name="trainer", running=booted and pod.exit_code is None, exit_code=pod.exit_code)
        phase = "Pending" if not booted else "Running"
        if pod.exit_code is not None:
            phase = "Succeeded" if pod.exit_code == 0 else "Failed"
        view = PodView(
            namespace="ml",
            name=pod.name,
            uid=pod.uid,
            labels=pod.labels,
            node=pod.node,
            pod_ip=f"10.0.0.{len(pod.uid)}" if booted else "",
            phase=phase,
            deleting=pod.deleting_at is not None,
            created_unix=START_UNIX + pod.created,
            unschedulable="" if pod.node or pod.gates else "0/4 nodes are available",
            gates=() if pod.node else pod.gates,
            disruption=pod.disruption,
            containers={"trainer": trainer},
            scheduled_unix=START_UNIX + pod.placed_at if pod.node else 0.0,
            started_unix=START_UNIX + pod.booted_at if booted else 0.0,
        )
        return replace(view, **pod.said)

    async def create_pod(self, manifest: Manifest) -> PodView:
        world = self.world
        if world.refuse_pods:
            raise Rejected(world.refuse_pods)
        name = manifest["metadata"]["name"]
        if manifest["metadata"]["labels"][LABEL_ROLE] == "burn-in":
            return self._burn_in(manifest)
        if name not in world.pods:
            assert name not in world.made, "a pod's name is used once"
            world.made.append(name)
            world.pods[name] = world.new_pod(manifest, f"uid-{len(world.made)}")
        world.mutate()
        return self._view(world.pods[name])

    def _burn_in(self, manifest: Manifest) -> PodView:
        """End the test as soon as it begins: it measures the node's slowness, and a tenant on the node explains it."""
        terms = manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        node = self.world.nodes[terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]]
        name = manifest["metadata"]["name"]
        waited = 1 - 1 / node.slow if node.name in self.world.tenants else 0.0
        gflops = 100 / node.slow / self.world.busy_host
        report = BurnInReport(gflops=gflops, run_delay=waited, throttled=0.0, stolen=0.0)
        ended = ContainerView(name="burn-in", exit_code=0, exit_message=encode_report(report).decode())
        self.world.burn_ins[name] = PodView(
            namespace=manifest["metadata"]["namespace"],
            name=name,
            uid=name,
            labels=manifest["metadata"]["labels"],
            node=node.name,
            phase="Succeeded",
            created_unix=self.world.clock.unix(),
            started_unix=self.world.clock.unix(),
            containers={"burn-in": ended},
        )
        if manifest["metadata"]["labels"][LABEL_PURPOSE] != PURPOSE_CONTROL:
            self.world.tested.append(node.name)
        self.world.mutate()
        return self.world.burn_ins[name]

    async def dry_run_pod(self, manifest: Manifest) -> None:
        if self.world.refuse_pods:
            raise Rejected(self.world.refuse_pods)

    async def namespace_rules(self, namespace: str) -> NamespaceRules:
        return self.world.namespace_rules

    async def delete_pod(self, pod: PodView, grace_seconds: int | None = None) -> None:
        self.world.burn_ins.pop(pod.name, None)
        found = self.world.pods.get(pod.name)
        if found is not None and found.uid == pod.uid and found.deleting_at is None:
            found.deleting_at = self.world.clock.seconds
        self.world.mutate()

    async def apply_service(self, manifest: Manifest) -> None:
        self.world.applied.append(manifest["kind"])

    async def apply_secret(self, manifest: Manifest) -> None:
        self.world.applied.append(manifest["kind"])

    async def delete_budget(self, job: TrainingJob) -> None:
        self.world.has_budget = False

    async def nodes(self) -> Mapping[str, NodeView]:
        return {
            node.name: NodeView(
                name=node.name,
                uid=node.uid,
                ready=node.ready,
                ready_changed_unix=node.ready_changed,
                taints=dict(node.taints),
                hard_taints=tuple(
                    NodeTaint(key=key, value=value, effect="NoExecute" if key in node.ends else "NoSchedule")
                    for key, value in node.taints.items()
                ),
                labels=dict(node.labels),
                reports=node.reports,
                unschedulable=node.cordoned,
            )
            for node in self.world.nodes.values()
        }

    async def list_occupants(self, node: str, *, fresh: bool = False) -> list[Occupant]:
        return self.world.tenants.get(node, [])

    async def taint_node(self, node: str, key: str, value: str) -> None:
        if self.world.refuse_taints:
            raise Rejected(self.world.refuse_taints)
        self.world.nodes[node].taints[key] = value
        self.world.mutate()

    async def untaint_node(self, node: str, key: str, value: str | None = None) -> None:
        taints = self.world.nodes[node].taints
        if value is None or taints.get(key) == value:
            taints.pop(key, None)
        self.world.mutate()

    async def list_pools(self) -> list[WarmPool]:
        return [self.world.pool]

    async def write_pool_status(self, pool: WarmPool, status: WarmPoolStatus) -> WarmPool:
        world = self.world
        if pool.metadata.resource_version != world.pool.metadata.resource_version:
            raise Conflict
        before = {spare.claimed_by for spare in world.pool.status.spares}
        world.claims += len({spare.claimed_by for spare in status.spares} - before - {""})
        version = str(int(pool.metadata.resource_version) + 1)
        world.pool = replace(pool, metadata=replace(pool.metadata, resource_version=version), status=status)
        world.mutate()
        return world.pool

    async def record_event(self, regarding: TrainingJob | WarmPool, type_: str, reason: str, note: str) -> bool:
        self.world.events.append((reason, note))
        return True


class FakeBus:
    """A ``ports.Bus`` over the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.forgotten: list[JobKey] = []
        self.announced: frozenset[str] = frozenset()

    def reports(self, job_uid: str) -> JobReports:
        world = self.world
        return JobReports(
            summaries=dict(world.received),
            alive=frozenset(world.alive),
            gone_since_seconds=dict(world.gone_since),
            session_healthy_since_seconds=world.bus_up_since,
            bus_full=world.bus_full,
            unread=dict(world.unread),
            others=world.other_jobs if not world.alive else OtherJobs(),
        )

    async def publish_plan(self, key: JobKey, plan: Plan) -> None:
        world = self.world
        if world.bus_up_since is None:
            raise OSError("etcd cannot be reached")
        if plan == world.plan:
            return
        if world.plan is not None:
            assert plan.generation >= world.plan.generation, "generations only grow"
        world.plan = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
        world.plans.append(world.plan)
        world.mutate()

    async def publish(self, key: JobKey, message: Peers | Imports) -> None:
        world = self.world
        if world.bus_up_since is None:
            raise OSError("etcd cannot be reached")
        known = world.peers if isinstance(message, Peers) else world.imports
        if message == known:
            return
        if isinstance(message, Peers):
            world.peers = message
        else:
            world.imports = message
        world.mutate()

    async def ask_detail(self, key: JobKey, generation: int, ranks: list[int]) -> None:
        world = self.world
        if world.bus_up_since is None:
            raise OSError("etcd cannot be reached")
        if world.voices.asked != frozenset(ranks):
            world.voices.asked = frozenset(ranks)
            world.mutate()

    async def order_microbatches(self, key: JobKey, generation: int, shares: list[int]) -> None:
        world = self.world
        if world.bus_up_since is None:
            raise OSError("etcd cannot be reached")
        if world.orders[-1:] != [(generation, shares)]:
            world.orders.append((generation, shares))
            world.mutate()

    async def order_probe(self, key: JobKey, order: ProbeOrder) -> None:
        world = self.world
        if world.bus_up_since is None:
            raise OSError("etcd cannot be reached")
        if world.paused.orders[-1:] != [order]:
            world.paused.orders.append(order)
            world.mutate()

    def announce(self, key: JobKey, pod_uids: frozenset[str], procs_per_replica: int) -> None:
        self.announced = pod_uids

    async def forget(self, key: JobKey) -> None:
        self.forgotten.append(key)

    def agent_credentials(self, job_uid: str) -> dict[str, bytes]:
        return {"ca.crt": b"ca", "tls.crt": b"crt", "tls.key": b"key"}
