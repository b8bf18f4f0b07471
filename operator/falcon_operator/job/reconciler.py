"""The shell around ``decide``: observe → decide → write the status → carry out its effects.

The status is written under the resourceVersion that was read, before anything is done: whoever wrote in between makes
this look void, and the next one starts afresh. Effects are idempotent, so one that fails is simply wanted again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec
import structlog

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.state import RecoveryState
from falcon_core.wire.keys import JobKey
from falcon_operator import effects as fx
from falcon_operator.api import LABEL_JOB_UID, TrainingJob, TrainingJobStatus, WarmPool, WarmPoolStatus
from falcon_operator.clock import Clock
from falcon_operator.intent import intent as intents
from falcon_operator.intent.snapshot import Snapshot, is_trainer
from falcon_operator.job import inactive
from falcon_operator.job.decide import Decision, decide
from falcon_operator.manifests.instrument import PodSettings
from falcon_operator.manifests.pods import build_pod
from falcon_operator.manifests.service import build_secret
from falcon_operator.manifests.validation import problems
from falcon_operator.pool import decide as pool
from falcon_operator.pool.burn_ins import BurnIns
from falcon_operator.ports import Bus, Conflict, Kube, NotFound, Rejected

DISPLAY_SECONDS = 3.0  # between writes that change figures only
GROUNDWORK_SECONDS = 300.0  # between repairs of Service and Secret
CONFLICT_SECONDS = 0.1
REFUSED_SECONDS = 5.0
BROKEN_SECONDS = 1.0
log = structlog.get_logger(__name__)
replace = msgspec.structs.replace


class Metrics(Protocol):
    """What the reconciler counts."""

    def event(self, reason: str) -> None:
        """A turning point of some job (the Event's reason)."""
        ...


class Settings(Protocol):
    """What the reconciler needs of the operator's settings."""

    @property
    def namespace(self) -> str:
        """The operator's own."""
        ...

    @property
    def pods(self) -> PodSettings: ...


class _Memory(msgspec.Struct):
    """What this process remembers of a job; losing it costs a repeated write."""

    uid: str
    displayed_at: float = float("-inf")
    groundwork_at: float = float("-inf")
    refused: str = ""
    refused_fences: dict[str, str] = {}
    broken: str = ""


class JobReconciler:
    """Brings one job at a time closer to its spec. Calls for different jobs may run at the same time."""

    def __init__(self, kube: Kube, bus: Bus, settings: Settings, metrics: Metrics, clock: Clock) -> None:
        self._kube = kube
        self._bus = bus
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._burn_ins = BurnIns(kube, settings.namespace)
        self._memory: dict[tuple[str, str], _Memory] = {}

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """One look; returns when to look again (seconds), None if only a change makes it worth while."""
        job = await self._kube.get_job(namespace, name)
        memory = self._memory.get((namespace, name))
        if memory is not None and (job is None or job.metadata.uid != memory.uid):
            await self._bus.forget(JobKey(namespace, name, memory.uid))
            del self._memory[(namespace, name)]
            memory = None
        if job is None:
            return None
        if memory is None:
            memory = self._memory[(namespace, name)] = _Memory(uid=job.metadata.uid)
        try:
            snap = await self._observe(job, memory)
            decision = decide(snap)
            postponed = await self._write(job, decision, memory)
            again = await self._carry_out(snap, decision, memory)
        except Conflict:
            return CONFLICT_SECONDS
        except NotFound:
            return CONFLICT_SECONDS  # deleted meanwhile: look again
        return min((one for one in (decision.again_seconds, postponed, again) if one is not None), default=None)

    # -- observe -----------------------------------------------------------------------------------------------------

    async def _observe(self, job: TrainingJob, memory: _Memory) -> Snapshot:
        pods, nodes, pools = await asyncio.gather(
            self._kube.list_pods(job.metadata.namespace, {LABEL_JOB_UID: job.metadata.uid}),
            self._kube.list_nodes(),
            self._kube.list_pools(),
        )
        reference = job.spec.warm_pool_ref
        named = next((one for one in pools if reference is not None and one.metadata.name == reference.name), None)
        snap = Snapshot(
            job=job,
            pods=[pod for pod in pods if is_trainer(pod)],
            nodes={node.name: node for node in nodes},
            pool=named,
            reports=self._bus.reports(job.metadata.uid),
            problems=[str(problem) for problem in problems(job)],
            refused=memory.refused,
            refused_fences=dict(memory.refused_fences),
            settings=self._settings.pods,
            now=self._clock.unix(),
            monotonic=self._clock.monotonic(),
        )
        if named is not None and job.status.excluded_nodes:
            snap = replace(snap, burn_ins=await self._burn_ins.look(job.status.excluded_nodes, named))
        if not snap.problems and _about_to_begin(snap):
            snap = replace(snap, problems=await self._dry_run(snap))
        return snap

    async def _dry_run(self, snap: Snapshot) -> list[str]:
        """What the API server itself has against the pods, before the first one is made."""
        intent = intents.begin(snap.job, intents.stored(snap.job.status), snap.now)
        manifest = build_pod(
            snap.job, intent.generation.members[0], snap.settings, excluded=intent.excluded, replacement=None
        )
        try:
            await self._kube.dry_run_pod(manifest)
        except Rejected as error:
            return [f"spec.template: the API server refuses a pod made from it: {error}"]
        return []

    # -- write -------------------------------------------------------------------------------------------------------

    async def _write(self, job: TrainingJob, decision: Decision, memory: _Memory) -> float | None:
        """Write what changed; figures only now and then. Returns when a postponed write is due."""
        if decision.status == job.status:
            return None
        now = self._clock.monotonic()
        due = memory.displayed_at + DISPLAY_SECONDS - now
        if due > 0 and essence(decision.status) == essence(job.status):
            return due
        await self._kube.write_job_status(job, decision.status)
        memory.displayed_at = now
        for event in decision.events:
            log.info(
                "event", job=job.metadata.name, namespace=job.metadata.namespace, reason=event.reason, note=event.note
            )
            self._metrics.event(event.reason)
            await self._kube.record_event(job, event.type, event.reason, event.note)
        return None

    # -- carry out ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, snap: Snapshot, decision: Decision, memory: _Memory) -> float | None:
        refused = broken = ""
        memory.refused_fences.clear()  # the decision has taken them over
        for effect in decision.effects:
            try:
                await self._do(snap, effect, memory)
            except Rejected as error:
                if isinstance(effect, fx.TaintNode):
                    memory.refused_fences[effect.node] = str(error)
                refused = str(error)
                if refused != memory.refused:
                    log.warning("refused", job=snap.job.metadata.name, effect=type(effect).__name__, error=refused)
            except OSError as error:  # etcd or the API server cannot be reached: the other may well be
                broken = str(error)
                if broken != memory.broken:
                    log.warning("failed", job=snap.job.metadata.name, effect=type(effect).__name__, error=broken)
        memory.refused, memory.broken = refused, broken
        return BROKEN_SECONDS if broken else REFUSED_SECONDS if refused else None

    async def _do(self, snap: Snapshot, effect: fx.Effect, memory: _Memory) -> None:
        job = snap.job
        key = JobKey(job.metadata.namespace, job.metadata.name, job.metadata.uid)
        match effect:
            case fx.EnsureGroundwork(service=service):
                await self._groundwork(job, key, service, memory)
            case fx.CreatePod(manifest=manifest):
                pod = await self._kube.create_pod(manifest)
                log.info("pod created", job=job.metadata.name, pod=pod.name)
            case fx.DeletePod(pod=pod, grace_seconds=grace):
                await self._kube.delete_pod(pod, grace)
                log.info("pod deleted", job=job.metadata.name, pod=pod.name)
            case fx.PublishPlan(plan=plan):
                await self._bus.publish_plan(key, plan)
            case fx.ClaimSpare(key=claim):
                assert snap.pool is not None  # its status says which spare is ready
                avoid = [one.node for one in job.status.excluded_nodes]
                await self._write_pool(
                    snap.pool, pool.claim(snap.pool, claim, job.metadata.namespace, avoid=avoid, now=snap.now)
                )
            case fx.ReleaseSpare(key=claim):
                assert snap.pool is not None  # its status names the claim
                await self._write_pool(snap.pool, pool.release(snap.pool, claim, now=snap.now))
            case fx.BurnIn(node=node, since=since):
                assert snap.pool is not None  # burn-ins are wanted only beside a pool
                await self._burn_ins.start(node, since, snap.pool, snap.settings)
            case fx.TaintNode(node=node, key=taint, value=value):
                await self._kube.taint_node(node, taint, value)
            case fx.UntaintNode(node=node, key=taint):
                await self._kube.untaint_node(node, taint)
            case fx.DeleteJob():
                await self._kube.delete_job(job)

    async def _write_pool(self, read: WarmPool, status: WarmPoolStatus | None) -> None:
        """Under the resourceVersion that was read: of two jobs that want one spare, one gets it."""
        if status is not None and status != read.status:
            await self._kube.write_pool_status(read, status)

    async def _groundwork(self, job: TrainingJob, key: JobKey, service: dict[str, Any], memory: _Memory) -> None:
        now = self._clock.monotonic()
        if now - memory.groundwork_at >= GROUNDWORK_SECONDS:
            await self._kube.apply_service(service)
            await self._kube.apply_secret(build_secret(job, self._bus.agent_credentials(job.metadata.uid)))
            memory.groundwork_at = now
        await self._bus.ensure_access(key)


def _about_to_begin(snap: Snapshot) -> bool:
    status = snap.job.status
    idle = status.generation is None or not status.generation.members
    return idle and not (snap.job.spec.suspend or inactive.is_over(status) or snap.job.metadata.deletion_timestamp)


def essence(status: TrainingJobStatus) -> tuple[TrainingJobStatus, RecoveryState]:
    """The status without the figures that change with every look."""
    state = intents.decode_state(status.incident)
    if state.slow is not None:
        state = replace(state, slow=replace(state.slow, loss=Loss(), slow_ns=0, refreshed_at=0.0, culprit=None))
    words = replace(
        status,
        summary="",
        iteration="",
        healthy_iteration="",
        iterations=type(status.iterations)(),
        incident=None,
        conditions=[replace(one, message="") for one in status.conditions],
        diagnoses=[replace(note, slowdown="", why="", evidence="") for note in status.diagnoses],
    )
    return words, replace(state, healthy_ns=None, level=None)
