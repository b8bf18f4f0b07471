"""The operator's own word on a node that a job has left: a burn-in pod there, and what its score means.

The pod's name derives from the exclusion that asks for it. Its score is compared with those of the pool's spares, which
passed the same test; a pod whose outcome stands in the job's status is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from falcon_core.recovery.membership import Exclusion
from falcon_operator.api import LABEL_POOL, LABEL_ROLE, WarmPool
from falcon_operator.intent.snapshot import BurnInResult
from falcon_operator.manifests.burn_in import (
    LABEL_PURPOSE,
    PURPOSE_EXCLUDED,
    ROLE_BURN_IN,
    build_burn_in_pod,
    burn_in_name,
)
from falcon_operator.manifests.instrument import PodSettings
from falcon_operator.pool.burn_in_result import weigh
from falcon_operator.pool.decide import median_gflops
from falcon_operator.ports import Kube, PodView


class BurnIns:
    """Burn-in pods in the operator's own namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace

    async def start(self, node: str, since: float, pool: WarmPool, pods: PodSettings) -> None:
        """Run the test of an excluded node, unless it runs already."""
        await self._kube.create_pod(
            build_burn_in_pod(
                name=burn_in_name(pool.metadata.uid, node, str(since)),
                namespace=self._namespace,
                node=node,
                pool=pool,
                purpose=PURPOSE_EXCLUDED,
                agent_image=pods.agent_image,
                image_pull_policy=pods.image_pull_policy,
            )
        )

    async def look(self, excluded: Sequence[Exclusion], pool: WarmPool) -> dict[str, BurnInResult]:
        """The tests of these nodes that have begun, by node; tests whose outcome is known are cleaned up."""
        labels = {LABEL_ROLE: ROLE_BURN_IN, LABEL_PURPOSE: PURPOSE_EXCLUDED, LABEL_POOL: pool.metadata.name}
        pods = {pod.name: pod for pod in await self._kube.list_pods(self._namespace, labels)}
        results: dict[str, BurnInResult] = {}
        done: list[PodView] = []
        for entry in excluded:
            pod = pods.get(burn_in_name(pool.metadata.uid, entry.node, str(entry.test_since)))
            if pod is None:
                continue
            if entry.test == "Pending":
                results[entry.node] = weigh(pod, median_gflops(pool, without=entry.node))
            elif not pod.deleting:
                done.append(pod)
        await asyncio.gather(*(self._kube.delete_pod(pod) for pod in done))
        return results
