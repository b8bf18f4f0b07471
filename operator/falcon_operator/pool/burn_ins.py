"""Test nodes that jobs have left: run burn-in pods on these nodes, and combine their results.

A pod's name derives from the exclusion that asks for it and from how many tests went before, so that nothing about the
tests is remembered outside the pods. Scores are compared with those of the pool's spares on the same kind of machine,
which passed the same test. The pods of a node stay until its outcome stands in the job's record.

*Controls.* What slows all machines (a busy host below them, a cap on a rack's power) is no fault of the node. So a test
runs together with the same test of spares that are free (``MOST_CONTROLS``). Where these are as slow, the test says
nothing about the node. A control is deleted when its spare is claimed.

A slow test fences the node for everybody, so the job that calls it slow must have no hand in it. The pods on the node
are read again at each look while a test runs, and once after it has ended: a pod that leaves later was there all the
same. Pods of the job's own namespace make a slow test worthless, whatever they request and whatever owns them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from falcon_core.recovery import Exclusion
from falcon_operator.api.common import LABEL_POOL, LABEL_ROLE
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import Clock, Kube, NodeView, Occupant, PodSettings, PodView, Rejected
from falcon_operator.intent.model.snapshot import BurnInResult
from falcon_operator.manifests.burn_in import (
    LABEL_CONTROL_OF,
    PURPOSE_CONTROL,
    PURPOSE_EXCLUDED,
    ROLE_BURN_IN,
    build_burn_in_pod,
    burn_in_name,
    longest_seconds,
)
from falcon_operator.pool.burn_in_result import (
    APART_SECONDS,
    MOST_TESTS,
    SLOW_TESTS,
    among_controls,
    beside_controls,
    is_settled,
    weigh,
)
from falcon_operator.pool.history import Reference, reference
from falcon_operator.pool.nodes import alike, neighbours, pods_of

MOST_CONTROLS = 2  # spares that are tested while an excluded node is
_NAMES = MOST_TESTS + SLOW_TESTS - 1  # the most tests that an exclusion can ask for before it has an outcome


class _Test(NamedTuple):
    pod: PodView
    controls: Sequence[PodView]

    @property
    def all(self) -> list[PodView]:
        return [self.pod, *self.controls]


class BurnIns:
    """The burn-in pods in the operator's own namespace."""

    def __init__(self, kube: Kube, namespace: str, clock: Clock) -> None:
        self._kube = kube
        self._namespace = namespace
        self._clock = clock
        self._beside: dict[str, set[Occupant]] = {}  # by a test's uid: who was seen on its node
        self._ended: set[str] = set()  # tests whose end has been seen

    async def start(
        self, node: str, since: float, pool: WarmPool, pods: PodSettings, nodes: Mapping[str, NodeView]
    ) -> None:
        """Start the next test of an excluded node, with its controls.

        Nothing is done while a test of the node runs, or when it is too early for another test.
        """
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
        build = partial(
            build_burn_in_pod,
            namespace=self._namespace,
            pool=pool,
            agent_image=pods.agent_image,
            image_pull_policy=pods.image_pull_policy,
            run_as=pods.run_as,
        )
        name = burn_in_name(pool.metadata.uid, node, str(since), len(tests))
        # Controls come first: a test that exists then has its controls, whenever the operator was killed.
        for spare in _free_spares(pool, alike(node, nodes))[:MOST_CONTROLS]:
            control = burn_in_name(pool.metadata.uid, spare, name)
            # The test is worth something without controls: a quota has room for a pod, and not for three.
            with contextlib.suppress(Rejected):
                await self._kube.create_pod(build(name=control, node=spare, purpose=PURPOSE_CONTROL, control_of=name))
        await self._kube.create_pod(build(name=name, node=node, purpose=PURPOSE_EXCLUDED))

    async def look(
        self, excluded: Sequence[Exclusion], pool: WarmPool, namespace: str, nodes: Mapping[str, NodeView]
    ) -> dict[str, BurnInResult]:
        """Return the results of these nodes' tests by node; tests whose outcome is known already are deleted.

        ``namespace``: of the job that has left the nodes.
        """
        pods = await self._pods(pool)
        controls = [pod for pod in pods.values() if LABEL_CONTROL_OF in pod.labels]
        asked = [
            (entry, _with_controls(_tests(pods, entry.node, entry.test_since, pool), controls)) for entry in excluded
        ]
        # Where the outcome stands in the job's record, the pods have no further use.
        over = [pod for entry, tests in asked if entry.test != "Pending" for test in tests for pod in test.all]
        # A replacement that claims a spare needs what the control holds there.
        over += [pod for pod in controls if not _has_ended(pod) and not _is_on_free_spare(pod, pool)]
        results = {
            entry.node: await self._together(entry.node, tests, pool, namespace, nodes)
            for entry, tests in asked
            if entry.test == "Pending" and tests
        }
        await asyncio.gather(*(self._kube.delete_pod(pod) for pod in over if not pod.deleting))
        for pod in over:
            self._beside.pop(pod.uid, None)
            self._ended.discard(pod.uid)
        return results

    async def _together(
        self,
        node: str,
        tests: Sequence[_Test],
        pool: WarmPool,
        namespace: str,
        nodes: Mapping[str, NodeView],
    ) -> BurnInResult:
        uid = nodes[node].uid if node in nodes else ""
        beside_which = reference(pool, node, uid, among=alike(node, nodes), least=1)
        # Read again: a pod that came and went between two kept answers could slow a test unseen.
        present = await self._kube.list_occupants(node, fresh=True)
        results = []
        for test in tests:
            beside = self._note(test.pod, present)
            together = [weigh(each, Reference(), []) for each in test.controls if _ran_together(test.pod, each, pool)]
            which = beside_controls(beside_which, together)
            result = weigh(test.pod, which, neighbours(beside, test.pod), pods_of(beside, namespace))
            results.append(among_controls(result, together))
        last = results[-1]
        # Controls that began with the test end with it. Those that did not begin are not waited for.
        unended = (each for each in tests[-1].controls if each.started_unix and not _has_ended(each))
        if last.outcome != "Running" and any(unended):
            return msgspec.structs.replace(last, outcome="Running", message="the same test of a spare has yet to end")
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
        """Return the pool's tests by name, the tests of its spares among them."""
        labels = {LABEL_ROLE: ROLE_BURN_IN, LABEL_POOL: pool.metadata.name}
        return {pod.name: pod for pod in await self._kube.list_pods(self._namespace, labels)}


def _tests(pods: Mapping[str, PodView], node: str, since: float, pool: WarmPool) -> list[PodView]:
    """Return the tests that this exclusion asked for, in the order in which they ran."""
    names = (burn_in_name(pool.metadata.uid, node, str(since), number) for number in range(_NAMES))
    return [pods[name] for name in names if name in pods]


def _free_spares(pool: WarmPool, among: frozenset[str] | None = None) -> list[str]:
    """Return the spares that no replacement holds; ``among`` these nodes alone, if it is given."""
    ready = (spare.node for spare in pool.status.spares if spare.state == "Ready")
    return [node for node in ready if among is None or node in among]


def _is_on_free_spare(control: PodView, pool: WarmPool) -> bool:
    test = control.labels[LABEL_CONTROL_OF]
    # Its name says which node it is for before it has been placed.
    return control.name in {burn_in_name(pool.metadata.uid, spare, test) for spare in _free_spares(pool)}


def _with_controls(tests: Sequence[PodView], controls: Sequence[PodView]) -> list[_Test]:
    return [_Test(test, [pod for pod in controls if pod.labels[LABEL_CONTROL_OF] == test.name]) for test in tests]


def _has_ended(pod: PodView) -> bool:
    return pod.phase in ("Succeeded", "Failed")


def _ran_together(test: PodView, control: PodView, pool: WarmPool) -> bool:
    """Check whether a control ran during half of the test at least, by the kubelets' clocks."""
    began = test.started_unix, control.started_unix
    return all(began) and abs(began[0] - began[1]) <= longest_seconds(pool) / 2
