"""List the nodes on which another pod of the job might find room; only the scheduler knows for certain."""

from __future__ import annotations

from falcon_core.recovery import Membership
from falcon_operator.api.common import TAINT_FENCED, TAINT_SPARE
from falcon_operator.base.ports import NodeView
from falcon_operator.intent.model.snapshot import Snapshot


def open_nodes(snap: Snapshot, membership: Membership) -> list[NodeView]:
    """Return the nodes that are no spares, that the job has not left, and on which it has no pod."""
    own = own_nodes(snap, membership)
    return [
        node
        for node in snap.nodes.values()
        if is_usable(snap, node)
        and TAINT_SPARE not in node.taints
        and node.name not in membership.excluded_nodes
        and node.name not in own
    ]


def is_usable(snap: Snapshot, node: NodeView) -> bool:
    healthy = TAINT_FENCED not in node.taints and node.name not in snap.troubled
    return node.ready and not node.unschedulable and healthy


def own_nodes(snap: Snapshot, membership: Membership) -> set[str]:
    """Return the nodes on which the job's pods are or will be."""
    own = {pod.node for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")}
    return own | {member.node for member in membership.members} | {move.node for move in membership.replacements}
