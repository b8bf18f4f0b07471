"""Find replicas that must leave their node though nothing has failed: by a cordon, a taint, or the pod's condition.

A cordon keeps new pods away; ``kubectl drain`` and node upgrades begin with one. The taints of those that end nodes
(autoscalers, handlers of spot notices, cloud providers) are data of the chart, ``operator.departureTaints``. A pod's
condition ``DisruptionTarget`` is set just before the pod is deleted.
"""

from __future__ import annotations

from collections.abc import Collection

from falcon_core.errors.judge import Judge
from falcon_core.recovery import Notice
from falcon_operator.base.ports import NodeView, PodView
from falcon_operator.intent.observation.pod_ends import exceeds_own_limit


def notice(
    node: NodeView | None, pod: PodView | None, departure_taints: Collection[str], judge: Judge
) -> Notice | None:
    """Return what says that the pod has to leave its node; None where nothing does, or where that is a failure.

    A pod that is evicted for a limit of its own is one: it would exceed that on any node.
    """
    if node is None or pod is None or not node.ready or pod.deleting or pod.node != node.name:
        return None
    if pod.disruption and not exceeds_own_limit(pod, judge):
        return Notice(f"pod {pod.name} is being disrupted: {pod.disruption}", urgent=True)
    # A taint that announces the node's end leaves minutes; a cordon has no deadline, and so is not urgent.
    taint = leaving_taint(node, departure_taints)
    if taint:
        return Notice(f"node {node.name} is about to go (taint {taint})", urgent=True)
    return Notice(f"node {node.name} is cordoned") if node.unschedulable else None


def leaving_taint(node: NodeView, departure_taints: Collection[str]) -> str:
    """Return the first of the node's taints that says that the node is about to go; "" for none."""
    return min((key for key in node.taints if key in departure_taints), default="") if node.taints else ""
