"""Test nodes whose fence outlives its job, and lift the fence of a node that passes.

While a job lives, it tests the nodes that it left (``intent.placement.exclusion``). Once it is over, the pool that
selects a node tests that node once an hour, and compares its score with the spares' scores. A test's name derives from
the fence and the hour, so that nothing is remembered outside the node's taint and the test's pod.

A fence that no job of Falcon set (its value ends in no uid) belongs to the actor that set it, and stays.
"""

from __future__ import annotations

import re

from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.base.effects import DeletePod, Effect, UntaintNode
from falcon_operator.base.ports import NodeView, PodView
from falcon_operator.manifests.burn_in import LABEL_PURPOSE, PURPOSE_FENCED, burn_in_name
from falcon_operator.pool.burn_in_result import weigh
from falcon_operator.pool.history import Reference, reference
from falcon_operator.pool.nodes import alike, is_selected, obstacle_but_fence, tenants, trainers
from falcon_operator.pool.snapshot import PoolSnapshot

RETEST_SECONDS = 3600.0
_OWNER = re.compile(r"\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$")  # of a fence: the uid of a job


def left_fenced(snap: PoolSnapshot) -> list[NodeView]:
    """Return the nodes that the pool selects and that were fenced by a job that is over or gone."""
    return [node for node in snap.nodes.values() if is_selected(snap.pool, node) and _is_left(snap, node)]


def _is_left(snap: PoolSnapshot, node: NodeView) -> bool:
    owner = owner_of(node)
    return owner != "" and owner not in snap.live_jobs


def owner_of(node: NodeView) -> str:
    """Return the uid of the job that fenced the node; "" where no job of Falcon did."""
    owner = _OWNER.search(node.taints.get(TAINT_FENCED, ""))
    return owner[1] if owner else ""


def effects(snap: PoolSnapshot) -> list[Effect]:
    """Return the tests to start, the fences to lift, and the tests to remove."""
    pods = _pods(snap)
    due = {_test_name(snap, node): node for node in left_fenced(snap) if _can_be_tested(snap, node)}
    wanted: list[Effect] = []
    for name, node in due.items():
        pod = pods.get(name)
        if pod is None:
            wanted.append(snap.start_test(name, node.name, PURPOSE_FENCED))
        elif _has_passed(snap, node, pod):
            wanted.append(UntaintNode(node.name, TAINT_FENCED))
    # A test that is due no more holds its node's cores.
    wanted += [DeletePod(pod) for name, pod in pods.items() if name not in due and not pod.deleting]
    return wanted


def running(snap: PoolSnapshot) -> list[PodView]:
    """Return the tests of nodes that jobs left fenced, as far as these tests have not ended."""
    return [pod for pod in _pods(snap).values() if pod.phase not in ("Succeeded", "Failed")]


def _pods(snap: PoolSnapshot) -> dict[str, PodView]:
    return {pod.name: pod for pod in snap.burn_ins if pod.labels.get(LABEL_PURPOSE) == PURPOSE_FENCED}


def _can_be_tested(snap: PoolSnapshot, node: NodeView) -> bool:
    """Check whether the node can be tested now.

    The node has to be able to run a test, no training pods may run on it, and some spare must have a score to compare.
    """
    on_it = snap.occupants.get(node.name)
    if on_it is None or trainers(on_it) or obstacle_but_fence(snap.pool, node) or node.name in snap.troubled:
        return False
    return _reference(snap, node).gflops is not None


def _has_passed(snap: PoolSnapshot, node: NodeView, pod: PodView) -> bool:
    on_it = tenants(snap.occupants.get(node.name, []))
    return weigh(pod, _reference(snap, node), on_it).outcome == "Passed"


def _reference(snap: PoolSnapshot, node: NodeView) -> Reference:
    return reference(snap.pool, node.name, node.uid, among=alike(node.name, snap.nodes), least=1)


def _test_name(snap: PoolSnapshot, node: NodeView) -> str:
    # The next hour's name is new, so the node is tested again then, and the old test is removed.
    hour = int(snap.now // RETEST_SECONDS)
    return burn_in_name(snap.pool.metadata.uid, node.name, f"{node.taints[TAINT_FENCED]}/{hour}")
