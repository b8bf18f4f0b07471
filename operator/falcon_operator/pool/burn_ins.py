"""Test nodes that jobs have left: run burn-in pods on these nodes, and combine their results.

A pod's name derives from the exclusion that asks for it and from how many tests went before, so that nothing about the
tests is remembered outside the pods. Scores are compared with those of the pool's spares on the same kind of machine,
which passed the same test. The pods of a node stay until its outcome stands in the job's record.

A slow test fences the node for everybody, so the job that calls it slow must have no hand in it. The pods on the node
are read again at each look while a test runs, and once after it has ended: a pod that leaves later was there all the
same. Pods of the job's own namespace make a slow test worthless, whatever they request and whatever owns them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from falcon_core.recovery import Exclusion
from falcon_operator.api.common import LABEL_POOL, LABEL_ROLE
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import Clock, Kube, NodeView, Occupant, PodSettings, PodView
from falcon_operator.intent.model.snapshot import BurnInResult
from falcon_operator.manifests.burn_in import (
    LABEL_PURPOSE,
    PURPOSE_EXCLUDED,
    ROLE_BURN_IN,
    build_burn_in_pod,
    burn_in_name,
    longest_seconds,
)
from falcon_operator.pool.burn_in_result import APART_SECONDS, MOST_TESTS, SLOW_TESTS, is_settled, weigh
from falcon_operator.pool.history import Reference, reference
from falcon_operator.pool.nodes import alike, neighbours, pods_of

_NAMES = MOST_TESTS + SLOW_TESTS - 1  # the most tests that an exclusion can ask for before it has an outcome


class BurnIns:
    """The burn-in pods in the operator's own namespace."""

    def __init__(self, kube: Kube, namespace: str, clock: Clock) -> None:
        self._kube = kube
        self._namespace = namespace
        self._clock = clock
        self._beside: dict[str, set[Occupant]] = {}  # by a test's uid: who was seen on its node
        self._ended: set[str] = set()  # tests whose end has been seen

    async def start(self, node: str, since: float, pool: WarmPool, pods: PodSettings) -> None:
        """Start the next test of an excluded node, unless a test is running or it is too early for another test."""
        tests = _tests(await self._pods(pool), node, since, pool)
        # The names of a node's tests are used up: more tests would not settle what these have not.
        if len(tests) == _NAMES:
            return
        if tests:
            last = tests[-1]
            ended = weigh(last, Reference(), []).outcome != "Running"
            # Apart in time, so that one disturbance does not spoil two tests in a row.
            if not ended or self._clock.unix() < last.created_unix + longest_seconds(pool) + APART_SECONDS:
                return
        await self._kube.create_pod(
            build_burn_in_pod(
                name=burn_in_name(pool.metadata.uid, node, str(since), len(tests)),
                namespace=self._namespace,
                node=node,
                pool=pool,
                purpose=PURPOSE_EXCLUDED,
                agent_image=pods.agent_image,
                image_pull_policy=pods.image_pull_policy,
            )
        )

    async def look(
        self, excluded: Sequence[Exclusion], pool: WarmPool, namespace: str, nodes: Mapping[str, NodeView]
    ) -> dict[str, BurnInResult]:
        """Return the results of these nodes' tests by node; tests whose outcome is known already are deleted.

        ``namespace``: of the job that has left the nodes.
        """
        pods = await self._pods(pool)
        results: dict[str, BurnInResult] = {}
        done: list[PodView] = []
        for entry in excluded:
            tests = _tests(pods, entry.node, entry.test_since, pool)
            # The outcome stands in the job's record, so the pods have no further use.
            if entry.test != "Pending":
                done += [pod for pod in tests if not pod.deleting]
            elif tests:
                among = alike(entry.node, nodes)
                uid = nodes[entry.node].uid if entry.node in nodes else ""
                results[entry.node] = await self._together((entry.node, uid), tests, pool, namespace, among)
        await asyncio.gather(*(self._kube.delete_pod(pod) for pod in done))
        for pod in done:
            self._beside.pop(pod.uid, None)
            self._ended.discard(pod.uid)
        return results

    async def _together(
        self, tested: tuple[str, str], tests: Sequence[PodView], pool: WarmPool, namespace: str, among: frozenset[str]
    ) -> BurnInResult:
        node, uid = tested
        beside_which = reference(pool, node, uid, among=among, least=1)
        # Read again: a pod that came and went between two kept answers could slow a test unseen.
        present = await self._kube.list_occupants(node, fresh=True)
        results = []
        for pod in tests:
            beside = self._note(pod, present)
            results.append(weigh(pod, beside_which, neighbours(beside, self._namespace), pods_of(beside, namespace)))
        last = results[-1]
        spares = pool.status.spares
        # Nothing was compared yet. While a spare is being tested its score will come, so the verdict waits for it.
        if last.outcome == "Passed" and last.ratio is None and any(spare.state == "Testing" for spare in spares):
            return msgspec.structs.replace(last, outcome="Running", message="it waits for the score of a spare")
        if is_settled(results):
            return last
        return msgspec.structs.replace(last, outcome="Running", message=f"{last.message}; it is tested again")

    def _note(self, test: PodView, present: Sequence[Occupant]) -> list[Occupant]:
        """Add the present pods to those seen on the node during the test, unless it has ended before; return all."""
        beside = self._beside.setdefault(test.uid, set())
        if test.uid not in self._ended:
            beside.update(present)
        if weigh(test, Reference(), []).outcome != "Running":
            self._ended.add(test.uid)
        return sorted(beside, key=lambda pod: (pod.namespace, pod.name))

    async def _pods(self, pool: WarmPool) -> dict[str, PodView]:
        labels = {LABEL_ROLE: ROLE_BURN_IN, LABEL_PURPOSE: PURPOSE_EXCLUDED, LABEL_POOL: pool.metadata.name}
        return {pod.name: pod for pod in await self._kube.list_pods(self._namespace, labels)}


def _tests(pods: Mapping[str, PodView], node: str, since: float, pool: WarmPool) -> list[PodView]:
    """Return the tests that this exclusion asked for, in the order in which they ran."""
    names = (burn_in_name(pool.metadata.uid, node, str(since), number) for number in range(_NAMES))
    return [pods[name] for name in names if name in pods]
