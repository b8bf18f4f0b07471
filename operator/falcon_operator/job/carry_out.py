"""Carry out what a look at a job has decided: first what the agents are waiting for, then the rest.

An effect that is refused or fails holds up no other, and is wanted again by the next look. So are those that are left
when something urgent calls for a look: making a thousand pods must not hold up the decision about the next lost node.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import structlog

from falcon_core.wire.keys import JobKey
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.warmpool import WarmPool, WarmPoolStatus
from falcon_operator.base import effects as fx
from falcon_operator.base.ports import Bus, Clock, Foreign, Kube, Rejected
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.job.decide import Decision
from falcon_operator.job.memory import Memory
from falcon_operator.manifests import namespace_rules
from falcon_operator.manifests.service import build_secret, build_service
from falcon_operator.pool import claims
from falcon_operator.pool.burn_ins import BurnIns
from falcon_operator.status.failures import failure_of

GROUNDWORK_SECONDS = 300.0  # between repairs of Service and Secret
REFUSED_SECONDS = 5.0
LEAST_SECONDS = 0.5  # of effects in a turn after one that ended early: all of them are carried out in the end
BROKEN_SECONDS = 1.0
TRACE_FRAMES = 8  # the innermost, of an error of the operator's own
# By which an effect may fail where the code is wrong. Not every Exception: the leadership's loss ends the whole look.
_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
_COMMANDS = (fx.PublishPeers, fx.PublishPlan, fx.OrderProbe)  # ranks stand still until their agents have them
log = structlog.get_logger(__name__)


class _Turn(msgspec.Struct):
    """What came of the effects so far."""

    broken: str
    refused: str = ""
    makes_pods: bool = True

    def note(self, effect: fx.Effect, error: Exception, *, is_first: bool) -> None:
        """Take over an error. ``is_first``: the job has no pods yet."""
        is_refused, is_pods = isinstance(error, Rejected), isinstance(effect, fx.CreatePod)
        if is_refused or is_pods:
            self.refused = str(error)
        if not is_refused:
            self.broken = str(error)
        if is_refused and is_pods:  # a quota would refuse the next, too
            self.makes_pods = False
        if is_first and isinstance(error, Foreign):  # the first pods wait until the job has its names
            self.makes_pods = False


class EffectRunner:
    """The calls that effects stand for. Effects are idempotent."""

    def __init__(self, kube: Kube, bus: Bus, burn_ins: BurnIns, clock: Clock) -> None:
        self._kube = kube
        self._bus = bus
        self._burn_ins = burn_ins
        self._clock = clock

    async def pass_on(self, snap: Snapshot, decision: Decision, memory: Memory) -> str:
        """Publish what the agents have to know, whose ranks stand still meanwhile; the intent must be stored.

        Return why it could not be published, in words; "" if it was.
        """
        for effect in decision.effects:
            if isinstance(effect, _COMMANDS) and (error := await self._attempt(snap, effect, memory)) is not None:
                return str(error)
        return ""

    async def carry_out(
        self, snap: Snapshot, decision: Decision, memory: Memory, is_urgent: Callable[[], bool], *, broken: str = ""
    ) -> float | None:
        """Carry out every other effect that can be carried out, or some of them if the next look ``is_urgent``.

        ``broken``: what ``pass_on`` could not do. Return in how many seconds to look again at what was refused, failed
        or left; None if nothing was.
        """
        turn = _Turn(broken=broken)
        memory.refused_fences.clear()  # the decision has taken them over
        # An earlier release's budget would hold up drains also while no operator runs (docs/adr/0146).
        effects = decision.effects if memory.has_no_budget else [fx.DeleteBudget(), *decision.effects]
        for effect in self._until_urgent(effects, memory, is_urgent):
            if isinstance(effect, fx.CreatePod):
                # Making many pods takes a while, and the job may be deleted meanwhile: ask before each pod.
                turn.makes_pods = turn.makes_pods and await self._is_still_wanted(snap.job)
                if not turn.makes_pods:
                    continue
            error = await self._attempt(snap, effect, memory)
            if error is not None:
                # An effect that failed holds up no other; the next look wants it again.
                turn.note(effect, error, is_first=not snap.pods)
        if memory.ended_early:  # what was refused before was not tried again
            turn.refused, turn.broken = turn.refused or memory.refused, turn.broken or memory.broken
        memory.refused, memory.broken = turn.refused, turn.broken
        return _again_seconds(memory)

    def _until_urgent(
        self, effects: Sequence[fx.Effect], memory: Memory, is_urgent: Callable[[], bool]
    ) -> Iterator[fx.Effect]:
        """Yield all but commands until the next look is urgent; after a turn that ended early, for a while anyhow."""
        least_until = self._clock.monotonic() + LEAST_SECONDS * memory.ended_early
        memory.ended_early = False
        for effect in effects:
            if isinstance(effect, _COMMANDS):
                continue
            if is_urgent() and self._clock.monotonic() >= least_until:
                memory.ended_early = True
                return
            yield effect

    async def _attempt(self, snap: Snapshot, effect: fx.Effect, memory: Memory) -> Exception | None:
        """Carry out an effect. Return the error that prevented it, which is logged once; None if it was carried out."""
        error = await self._error_of(snap, effect, memory)
        is_breakers = isinstance(effect, fx.TaintNode) and isinstance(error, Rejected)  # has a condition of its own
        if error is not None and memory.failure is None and not is_breakers:
            memory.failure = failure_of(error, _described(effect))
        return error

    async def _error_of(self, snap: Snapshot, effect: fx.Effect, memory: Memory) -> Exception | None:
        name = snap.job.metadata.name
        try:
            await self._do(snap, effect, memory)
        except Rejected as error:
            if isinstance(effect, fx.TaintNode):
                memory.refused_fences[effect.node] = str(error)
            # The same refusal comes at each look: log it once.
            if str(error) != memory.refused:
                log.warning("refused", job=name, effect=type(effect).__name__, error=str(error))
            return error
        except OSError as error:  # either etcd or the API server cannot be reached: other effects may succeed
            if str(error) != memory.broken:
                log.warning("failed", job=name, effect=type(effect).__name__, error=str(error))
            return error
        except _BUGS as error:  # in one effect: it must not hold up the others
            if str(error) != memory.broken:
                trace = "".join(traceback.format_exception(error, limit=-TRACE_FRAMES))
                log.error("failed", job=name, effect=type(effect).__name__, error=str(error), trace=trace)
            return error
        return None

    async def _is_still_wanted(self, job: TrainingJob) -> bool:
        """Check whether the job is still neither deleted nor suspended; making a thousand pods takes a while."""
        now = await self._kube.get_job(job.metadata.namespace, job.metadata.name)
        return (
            now is not None
            and now.metadata.uid == job.metadata.uid
            and not now.metadata.deletion_timestamp
            and now.spec.suspend == job.spec.suspend
        )

    async def _do(self, snap: Snapshot, effect: fx.Effect, memory: Memory) -> None:
        job = snap.job
        key = bus_key(job)
        match effect:
            case fx.EnsureGroundwork(service=service):
                await self._groundwork(job, service, memory)
            case fx.DeleteBudget():
                await self._kube.delete_budget(job)
                memory.has_no_budget = True
            case fx.CreatePod(manifest=manifest):
                rules = await self._kube.namespace_rules(job.metadata.namespace)
                pod = await self._kube.create_pod(namespace_rules.met(manifest, rules, job.spec.injected))
                log.info("pod created", job=job.metadata.name, pod=pod.name)
            case fx.DeletePod(pod=pod, grace_seconds=grace):
                await self._kube.delete_pod(pod, grace)
                log.info("pod deleted", job=job.metadata.name, pod=pod.name)
            case fx.PublishPlan(plan=plan):
                await self._bus.publish_plan(key, plan)
            case fx.AskDetail(generation=generation, ranks=ranks):
                await self._bus.ask_detail(key, generation, ranks)
            case fx.PublishPeers(peers=peers):
                await self._bus.publish(key, peers)
            case fx.PublishImports(imports=imports):
                await self._bus.publish(key, imports)
            case fx.OrderMicrobatches(generation=generation, shares=shares):
                await self._bus.order_microbatches(key, generation, shares)
            case fx.OrderProbe(order=order):
                await self._bus.order_probe(key, order)
            case fx.ChangeClaims():
                assert snap.pool is not None  # its status says which spares are ready, and who holds them
                # All claims in one write: several jobs write this status, and each further write could lose to one of
                # them.
                status = claims.changed(snap.pool, effect, job.metadata.namespace, now=snap.now)
                await self._write_pool(snap.pool, status)
            case fx.BurnIn(node=node, since=since):
                assert snap.pool is not None  # burn-ins are wanted only where there is a pool
                await self._burn_ins.start(node, since, snap.pool, snap.settings, snap.nodes)
            case fx.TaintNode(node=node, key=taint, value=value):
                await self._kube.taint_node(node, taint, value)
            case fx.UntaintNode(node=node, key=taint, value=value):
                await self._kube.untaint_node(node, taint, value)
            case fx.DeleteJob():
                await self._kube.delete_job(job)

    async def _write_pool(self, read: WarmPool, status: WarmPoolStatus) -> None:
        """Write the pool's status under the resourceVersion that was read.

        Of two jobs that want the same spare, only one gets it.
        """
        if status != read.status:
            await self._kube.write_pool_status(read, status)

    async def groundwork(self, job: TrainingJob, memory: Memory) -> None:
        """Create the objects with the job's own names. Raises Foreign if a foreign object has one of them."""
        await self._groundwork(job, build_service(job), memory)

    async def _groundwork(self, job: TrainingJob, service: dict[str, Any], memory: Memory) -> None:
        now = self._clock.monotonic()
        # Another actor may have deleted or changed them, so they are written again from time to time.
        if now - memory.groundwork_at >= GROUNDWORK_SECONDS:
            await self._kube.apply_service(service)
            await self._kube.apply_secret(build_secret(job, self._bus.agent_credentials(job.metadata.uid)))
            memory.groundwork_at = now


def _described(effect: fx.Effect) -> str:
    match effect:
        case fx.CreatePod(manifest=manifest):
            return f"pod {manifest['metadata']['name']}"
        case fx.DeletePod(pod=pod):
            return f"deletion of pod {pod.name}"
        case fx.EnsureGroundwork():
            return "the job's Service and Secret"
        case fx.DeleteBudget():
            return "deletion of the job's PodDisruptionBudget"
        case fx.TaintNode(node=node) | fx.UntaintNode(node=node):
            return f"taint of node {node}"
        case fx.ChangeClaims():
            return "claim of a spare"
        case fx.BurnIn(node=node):
            return f"test of node {node}"
        case fx.DeleteJob():
            return "deletion of the job"
        case _:
            return "orders to the job's agents"


def _again_seconds(memory: Memory) -> float | None:
    """Return in how many seconds to look again; None: no need."""
    # What was left out is due at once, whatever else was refused.
    if memory.ended_early:
        return 0.0
    if memory.broken:
        return BROKEN_SECONDS
    return REFUSED_SECONDS if memory.refused else None


def bus_key(job: TrainingJob) -> JobKey:
    """Return the name of the job on the bus."""
    return JobKey(job.metadata.namespace, job.metadata.name, job.metadata.uid)
