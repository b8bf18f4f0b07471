"""List the nodes on which another pod of the job might find room; only the scheduler knows for certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from falcon_core.recovery import Membership
from falcon_operator.api.common import TAINT_FENCED, TAINT_SPARE
from falcon_operator.base.ports import NodeTaint, NodeView, PodView
from falcon_operator.intent.model.snapshot import Snapshot

# Kubernetes' own words for what a node's other fields say.
_MIRRORED: Final = frozenset(f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable"))


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


def evicting_taint(
    template: Mapping[str, Any], node: NodeView, pod: PodView | None, pods: Sequence[PodView] = ()
) -> NodeTaint | None:
    """Return the taint for which the taint manager ends a job's pods on the node; None if there is none.

    ``template``: the spec of the job's pods. ``pod``: the replica's; ``pods``: all of the job's. While the replica's
    stays on the node it shows that it may, whatever its template says. A webhook may have added tolerations, which the
    job's other pods still have when it is gone. Taints named like a device that it asks for are tolerated, as the
    admission plugin ExtendedResourceToleration does.
    """
    if pod is not None and pod.node == node.name and not pod.deleting:
        return None
    alike = pod if pod is not None else next(iter(pods), None)
    listed = [*(template.get("tolerations") or []), *(alike.tolerations if alike is not None else ())]
    tolerations = [item for item in listed if "tolerationSeconds" not in item]
    devices = _devices(template)
    for taint in node.hard_taints:
        known = taint.effect != "NoExecute" or taint.key in _MIRRORED or taint.key in devices
        if not known and not any(_tolerates(item, taint) for item in tolerations):
            return taint
    return None


def _devices(template: Mapping[str, Any]) -> set[str]:
    """Return the resources that the job's containers ask for. Claims of devices are a list, and none of them."""
    containers = [each for kind in ("containers", "initContainers") for each in template.get(kind) or []]
    figures = [(each.get("resources") or {}).get(kind) for each in containers for kind in ("requests", "limits")]
    return {name for names in figures for name in names or ()}


def _tolerates(toleration: Mapping[str, Any], taint: NodeTaint) -> bool:
    """Check whether a pod's toleration covers the taint, by the scheduler's rules."""
    key, effect = toleration.get("key") or "", toleration.get("effect") or taint.effect
    if effect != taint.effect or key not in ("", taint.key):
        return False
    return toleration.get("operator") == "Exists" or (key != "" and (toleration.get("value") or "") == taint.value)
