"""Select the nodes that a pool may use, and find who else uses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from falcon_operator.api.common import ROLE_TRAINER, TAINT_FENCED, TAINT_SPARE, Toleration
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import NodeTaint, NodeView, Occupant, PodView
from falcon_operator.manifests.burn_in import ROLE_BURN_IN, tolerations

_OF_THE_NODE = ("DaemonSet", "Node")  # owners of pods that belong to each node: daemons and mirror pods
# Labels by which machines differ. A node without such a label is like others without it.
_HARDWARE = (
    "kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
)
# Kubernetes sets these for what ``ready`` and ``unschedulable`` say already, and lifts them a moment later.
_MIRRORED = [f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable")]


def tenants(occupants: Iterable[Occupant]) -> list[str]:
    """Return the names of other workloads' pods that request some of the node's resources.

    Left out are Falcon's own pods, pods that every node has, and pods that request nothing: these take no room from a
    replacement.
    """
    return [
        f"{pod.namespace}/{pod.name}"
        for pod in occupants
        if pod.requests and pod.role not in (ROLE_TRAINER, ROLE_BURN_IN) and pod.owner not in _OF_THE_NODE
    ]


def trainers(occupants: Iterable[Occupant]) -> list[str]:
    """Return the names of training pods."""
    return [f"{pod.namespace}/{pod.name}" for pod in occupants if pod.role == ROLE_TRAINER]


def neighbours(occupants: Iterable[Occupant], test: PodView) -> list[str]:
    """Return the names of the pods that may slow a test on its node: tenants, training pods, tests for other jobs."""
    others = (pod for pod in occupants if (pod.namespace, pod.name) != (test.namespace, test.name))
    return tenants(msgspec.structs.replace(pod, role="") for pod in others)


def pods_of(occupants: Iterable[Occupant], namespace: str) -> list[str]:
    """Return the names of the pods of a namespace, whatever they are."""
    return [f"{pod.namespace}/{pod.name}" for pod in occupants if pod.namespace == namespace]


def alike(node: str, nodes: Mapping[str, NodeView]) -> frozenset[str]:
    """Return the nodes with the same kind of machine, as far as their labels say; only these compare with each other.

    A job names its pool itself. Without this rule it could have a slower kind of machine fenced for being slower.
    """
    if node not in nodes:
        return frozenset()
    kind = _kind(nodes[node])
    return frozenset(other.name for other in nodes.values() if _kind(other) == kind)


def unlike(node: str, nodes: Mapping[str, NodeView]) -> frozenset[str]:
    """Return the nodes that are another kind of machine by their labels."""
    return frozenset(nodes) - alike(node, nodes) if node in nodes else frozenset()


def _kind(node: NodeView) -> tuple[str | None, ...]:
    return tuple(node.labels.get(label) for label in _HARDWARE)


def is_selected(pool: WarmPool, node: NodeView) -> bool:
    """Check whether the node has the pool's labels."""
    return all(node.labels.get(key) == value for key, value in pool.spec.node_selector.items())


def obstacle(pool: WarmPool, node: NodeView) -> str:
    """Return why neither a test nor a replacement can be placed on the node; "" if they can."""
    if node.ready and TAINT_FENCED in node.taints:
        return f"the node is fenced ({node.taints[TAINT_FENCED]})"
    return obstacle_but_fence(pool, node)


def obstacle_but_fence(pool: WarmPool, node: NodeView) -> str:
    """Return why not even a test of a fenced node can be placed on the node; "" if it can."""
    if not node.ready:
        return "the node is NotReady"
    if node.unschedulable:
        return "the node is cordoned"
    taint = untolerated(pool, node)
    if taint is not None:
        return f"its taint {taint.key}:{taint.effect} is not in spec.burnIn.tolerations"
    return ""


def untolerated(pool: WarmPool, node: NodeView) -> NodeTaint | None:
    """Return the first taint that keeps the pool's test away from the node; None if there is none."""
    known = tolerations(pool)
    taints = (taint for taint in node.hard_taints if taint.key not in _MIRRORED)
    return next((taint for taint in taints if not any(_tolerates(item, taint) for item in known)), None)


def _tolerates(toleration: Toleration, taint: NodeTaint) -> bool:
    """Check whether the toleration covers the taint, by the scheduler's rules."""
    if toleration.effect not in (None, taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.key != "" and toleration.value == taint.value)


def candidates(pool: WarmPool, nodes: Iterable[NodeView], exclude: Collection[str]) -> list[str]:
    """Return the nodes that may join if no other pods use them. Those that have the pool's taint already come first."""
    name = pool.metadata.name
    fit = [
        node
        for node in nodes
        if node.name not in exclude
        and is_selected(pool, node)
        and node.taints.get(TAINT_SPARE, name) == name
        and not obstacle(pool, node)
    ]
    return [node.name for node in sorted(fit, key=lambda node: (TAINT_SPARE not in node.taints, node.name))]


def left_out(pool: WarmPool, nodes: Iterable[NodeView], exclude: Collection[str]) -> dict[str, list[str]]:
    """Return the nodes that the pool selects but its test does not tolerate, by the taint (``key:effect``)."""
    found: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        taint = untolerated(pool, node) if is_selected(pool, node) else None
        if taint is not None and node.name not in exclude:
            found.setdefault(f"{taint.key}:{taint.effect}", []).append(node.name)
    return found
