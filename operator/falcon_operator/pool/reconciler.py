"""Run one look at a pool: observe → ``pool/decide.py`` → write the status → carry out its effects.

The operator asks node by node who uses a node: always for the pool's spares, and for further nodes only while spares
are missing, until enough free nodes are found. It knows by itself on which nodes training pods run. Each answer holds
only one node's pods and is kept for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec
import structlog

from falcon_core.errors.judge import platform_judge
from falcon_operator.api.common import LABEL_POOL, LABEL_ROLE, TAINT_FENCED, Condition
from falcon_operator.api.warmpool import SpareStatus, WarmPool, WarmPoolStatus
from falcon_operator.base.effects import CreatePod, DeletePod, Effect, TaintNode, UntaintNode
from falcon_operator.base.ports import (
    Clock,
    Conflict,
    LeadershipLost,
    Manifest,
    NodeView,
    NotFound,
    Occupant,
    PodView,
    Rejected,
)
from falcon_operator.intent.model.node_troubles import grave_troubles
from falcon_operator.manifests.burn_in import ROLE_BURN_IN
from falcon_operator.pool.decide import abandoned, decide_pool, is_free, job_uid
from falcon_operator.pool.fences import left_fenced, owner_of
from falcon_operator.pool.nodes import candidates
from falcon_operator.pool.snapshot import PoolDecision, PoolSettings, PoolSnapshot
from falcon_operator.status.failure_reports import FailureReports
from falcon_operator.status.failures import Failure, Spell, failure_of

CONFLICT_SECONDS = 0.1
REFUSED_SECONDS = 5.0
AT_ONCE = 8  # nodes that are asked for at the same time
log = structlog.get_logger(__name__)


class Kube(Protocol):
    """The calls that a pool needs."""

    async def get_pool(self, name: str) -> WarmPool | None: ...

    async def write_pool_status(self, pool: WarmPool, status: WarmPoolStatus) -> WarmPool: ...

    async def nodes(self) -> Mapping[str, NodeView]: ...

    async def list_pods(self, namespace: str, labels: dict[str, str]) -> list[PodView]: ...

    async def list_occupants(self, node: str) -> list[Occupant]: ...

    def list_trainers(self) -> dict[str, list[Occupant]]:
        """Return the training pods that have not ended, by node; from memory."""
        ...

    async def create_pod(self, manifest: Manifest) -> PodView: ...

    async def delete_pod(self, pod: PodView, grace_seconds: int | None = None) -> None: ...

    async def taint_node(self, node: str, key: str, value: str) -> None: ...

    async def untaint_node(self, node: str, key: str, value: str | None = None) -> None: ...

    async def record_event(self, regarding: WarmPool, type_: str, reason: str, note: str) -> bool: ...


class _PoolFailures:
    """``failure_reports.Shown`` for pools."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def newest(self, of: WarmPool) -> WarmPool | None:
        pool = await self._kube.get_pool(of.metadata.name)
        return pool if pool is not None and pool.metadata.uid == of.metadata.uid else None

    async def write(self, of: WarmPool, conditions: list[Condition], failure: Failure | None) -> None:
        await self._kube.write_pool_status(of, msgspec.structs.replace(of.status, conditions=conditions))

    async def record(self, of: WarmPool, type_: str, reason: str, note: str) -> bool:
        return await self._kube.record_event(of, type_, reason, note)


class PoolReconciler:
    """A worker that brings one pool at a time closer to its spec.

    ``unfinished`` returns those of some uids whose jobs exist and are not over. ``unshown`` is called for a failure
    that neither the pool's status nor an Event could show.
    """

    def __init__(
        self,
        kube: Kube,
        settings: PoolSettings,
        clock: Clock,
        unfinished: Callable[[frozenset[str]], Awaitable[frozenset[str]]],
        unshown: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._unfinished = unfinished
        self._reports = FailureReports(_PoolFailures(kube), clock, unshown)
        self._spells: dict[str, Spell] = {}  # by pool
        self._refused: dict[str, str] = {}  # by pool: the API server's last refusal of a test's pod

    async def reconcile(self, name: str) -> float | None:
        """Look at the pool once. Return when to look again (seconds); None if only a change makes that worth while."""
        pool = await self._kube.get_pool(name)
        if pool is None or pool.metadata.deletion_timestamp:
            self._refused.pop(name, None)
            self._spells.pop(name, None)
            # A deleted pool must not leave its taints on nodes.
            for effect in abandoned(name, (await self._kube.nodes()).values()):
                await self._do(effect)
            return None
        spell = self._spells.setdefault(name, Spell())
        failure: Failure | None = None
        try:
            again = await self._look(pool)
        except LeadershipLost:
            raise
        except Rejected as error:
            log.warning("refused", pool=name, error=str(error))
            # The status of the next look says what was refused.
            self._refused[name] = str(error)
            failure, again = failure_of(error), REFUSED_SECONDS
        except (Conflict, NotFound) as error:
            failure, again = failure_of(error), CONFLICT_SECONDS
        except Exception as error:
            await self._reports.report(pool, spell, failure_of(error))
            raise
        await self._reports.report(pool, spell, failure)
        return again

    async def _look(self, pool: WarmPool) -> float | None:
        """Look, decide and act. Return when to look again (seconds)."""
        name = pool.metadata.name
        decision = await asyncio.to_thread(decide_pool, await self._observe(pool))
        # The status comes before the effects, which derive from it.
        await self._write(pool, decision)
        for effect in decision.effects:
            await self._do(effect)
            if isinstance(effect, CreatePod):
                # Where pods are accepted again, the refusal that the status shows is over.
                self._refused.pop(name, None)
            if isinstance(effect, UntaintNode) and effect.key == TAINT_FENCED:
                note = f"{effect.node} passed its test next to the spares, and the job that fenced it is over"
                log.info("fence lifted", pool=name, node=effect.node)
                await self._kube.record_event(pool, "Normal", "FenceLifted", note)
        return decision.again_seconds

    async def _observe(self, pool: WarmPool) -> PoolSnapshot:
        name = pool.metadata.name
        nodes = await self._kube.nodes()
        tests = await self._kube.list_pods(self._settings.namespace, {LABEL_ROLE: ROLE_BURN_IN, LABEL_POOL: name})
        snap = PoolSnapshot(
            pool=pool,
            nodes=nodes,
            burn_ins=[pod for pod in tests if pod.owned],
            occupants=await self._look_around(pool, nodes),
            refused=self._refused.get(name, ""),
            live_jobs=await self._unfinished(_named_jobs(pool, nodes.values())),
            settings=self._settings,
            now=self._clock.unix(),
        )
        # Fenced nodes are outside the spares, and their tests need to know who else is there.
        fenced = [node.name for node in left_fenced(snap) if node.name not in snap.occupants]
        return msgspec.structs.replace(snap, occupants={**snap.occupants, **await self._occupants(fenced)})

    async def _look_around(self, pool: WarmPool, nodes: Mapping[str, NodeView]) -> dict[str, list[Occupant]]:
        """Return who is on the pool's nodes, and on further nodes until enough free ones are found."""
        spares = pool.status.spares
        known = [spare.node for spare in spares if spare.node in nodes]
        found = await self._occupants(known)
        # Further nodes are asked about only while spares are missing: each costs a request.
        wanted = pool.spec.size - sum(spare.state in ("Ready", "Testing") for spare in spares)
        if wanted <= 0:
            return found
        troubled = grave_troubles(nodes, platform_judge(self._settings.error_overrides))
        others = candidates(pool, nodes.values(), exclude={*known, *troubled})
        trainers = self._kube.list_trainers()
        # Of training pods the operator knows without asking.
        found |= {node: trainers[node] for node in others if node in trainers}
        others = [node for node in others if node not in trainers]
        while wanted > 0 and others:
            looked_at = await self._occupants(others[:AT_ONCE])
            found |= looked_at
            wanted -= sum(is_free(occupants) for occupants in looked_at.values())
            others = others[AT_ONCE:]
        return found

    async def _occupants(self, nodes: list[str]) -> dict[str, list[Occupant]]:
        found: dict[str, list[Occupant]] = {}
        for index in range(0, len(nodes), AT_ONCE):
            chunk = nodes[index : index + AT_ONCE]
            answers = await asyncio.gather(*(self._kube.list_occupants(node) for node in chunk))
            found |= dict(zip(chunk, answers, strict=True))
        return found

    async def _write(self, pool: WarmPool, decision: PoolDecision) -> None:
        if decision.status == pool.status:
            return
        await self._kube.write_pool_status(pool, decision.status)
        before = {spare.node: spare for spare in pool.status.spares}
        for spare in decision.status.spares:
            event = _event(before.get(spare.node), spare)
            if event is not None:
                log.info("spare", pool=pool.metadata.name, node=spare.node, state=spare.state, message=spare.message)
                await self._kube.record_event(pool, *event)

    async def _do(self, effect: Effect) -> None:
        match effect:
            case TaintNode(node=node, key=key, value=value):
                await self._kube.taint_node(node, key, value)
            case UntaintNode(node=node, key=key, value=value):
                await self._kube.untaint_node(node, key, value)
            case CreatePod(manifest=manifest):
                await self._kube.create_pod(manifest)
            case DeletePod(pod=pod, grace_seconds=grace):
                await self._kube.delete_pod(pod, grace)
            case _:
                raise TypeError(f"a pool has no effect of type {type(effect).__name__}")


def _named_jobs(pool: WarmPool, nodes: Iterable[NodeView]) -> frozenset[str]:
    """Return the uids of the jobs that hold a claim on a spare, or whose fence a node has."""
    claims = (job_uid(spare.claimed_by) for spare in pool.status.spares)
    return frozenset({*claims, *map(owner_of, nodes)} - {""})


def _event(before: SpareStatus | None, after: SpareStatus) -> tuple[str, str, str] | None:
    """Return type, reason and note of a change that is worth an Event; None for any other change."""
    if before is not None and before.state == after.state:
        return None
    match after.state:
        case "Ready":
            return "Normal", "SpareReady", f"{after.node} passed its test ({after.gemm_gflops} GFLOP/s)"
        case "Claimed":
            return "Normal", "SpareClaimed", f"{after.node} is claimed by {after.claimed_by}"
        case "Failed":
            return "Warning", "SpareFailed", f"{after.node}: {after.message}"
        case "Unavailable":
            return "Warning", "SpareUnavailable", f"{after.node}: {after.message}"
        case "Testing":
            return None
