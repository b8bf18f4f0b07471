"""One look at a pool: pools, spares and nodes to look at, and what to read of the decision."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.warmpool import SpareStatus, WarmPool, WarmPoolSpec, WarmPoolStatus
from falcon_operator.base.ports import ContainerView, NodeReport, NodeView, Occupant, PodView
from falcon_operator.base.time_format import timestamp
from falcon_operator.pool.decide import decide_pool
from falcon_operator.pool.snapshot import PoolDecision, PoolSettings, PoolSnapshot

NOW = 1_795_176_000.0
GPU_LOST = NodeReport("FalconGpuProblem", "GpuLost", "GPU 3")
SETTINGS = PoolSettings(namespace="falcon-system", agent_image="agent:1", image_pull_policy="IfNotPresent")
JOB = "ns/job/uid-1/7"


def a_pool(*spares: SpareStatus, size: int = 1, **spec: Any) -> WarmPool:
    return WarmPool(
        metadata=ObjectMeta(name="spares", uid="pool-uid", generation=3),
        spec=WarmPoolSpec(node_selector={"pool": "yes"}, size=size, **spec),
        status=WarmPoolStatus(spares=list(spares), observed_generation=3),
    )


def a_node(name: str, *, taints: dict[str, str] | None = None, ready: bool = True, **changes: Any) -> NodeView:
    return NodeView(name=name, labels={"pool": "yes"}, taints=taints or {}, ready=ready, **changes)


def spare(node: str, state: Any = "Ready", *, since: float = NOW - 100, **fields: Any) -> SpareStatus:
    return SpareStatus(node=node, state=state, since=timestamp(since), **fields)


def look(
    pool: WarmPool,
    *nodes: NodeView,
    now: float = NOW,
    busy: Collection[str] = (),
    occupants: dict[str, list[Occupant]] | None = None,
    settings: PoolSettings = SETTINGS,
    **rest: Any,
) -> PoolDecision:
    """Decide about the pool; ``busy`` are the nodes with a training pod."""
    found: dict[str, list[Occupant]] = {node.name: [] for node in nodes}
    found |= {node: [Occupant(namespace="ns", name="job-0", role="trainer")] for node in busy}
    return decide_pool(
        PoolSnapshot(
            pool=pool,
            nodes={node.name: node for node in nodes},
            occupants={**found, **(occupants or {})},
            settings=settings,
            now=now,
            **rest,
        )
    )


def then(pool: WarmPool, decision: PoolDecision) -> WarmPool:
    return msgspec.structs.replace(pool, status=decision.status)


def states(decision: PoolDecision) -> dict[str, str]:
    return {entry.node: entry.state for entry in decision.status.spares}


def of_type(decision: PoolDecision, *types: type) -> list[Any]:
    return [effect for effect in decision.effects if isinstance(effect, types)]


def ended(manifest: dict[str, Any], *, message: str, exit_code: int = 0) -> PodView:
    """Return the burn-in pod as the kubelet reports its end."""
    meta = manifest["metadata"]
    container = ContainerView(name="burn-in", exit_code=exit_code, exit_message=message)
    return PodView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid="pod-uid",
        labels=meta["labels"],
        phase="Succeeded" if exit_code == 0 else "Failed",
        containers={"burn-in": container},
    )
