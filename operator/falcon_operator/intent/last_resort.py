"""Slow is better than dead: a replica that lost its node and finds no spare goes to a node that the job had left.

Only where nothing else is there, and only nodes that are not fenced: one that is well again at once; a slow one when
the job has stood still for long enough to pay for the replacement that such a node will need
(``recovery.departures.last_resort``). A spare that becomes ready before the pod has its node is taken instead;
afterwards the ladder for fail-slow replaces the node as any other. A node without room for the pod is left again.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import departures, failslow
from falcon_core.recovery.observation import Policy, Recreate
from falcon_core.recovery.state import Replacement, Step
from falcon_core.recovery.strategies import replace_node
from falcon_operator.api import TAINT_FENCED, TAINT_SPARE, Excluded
from falcon_operator.intent import exclusion, observe
from falcon_operator.intent.intent import Intent, apply
from falcon_operator.intent.snapshot import Snapshot
from falcon_operator.times import timestamp

PLACE_SECONDS = 30.0  # after which a pod that is not placed will not be: others have taken the room
replace = msgspec.structs.replace


def reuse_departed_node(snap: Snapshot, intent: Intent, rules: Policy) -> Intent:
    """The intent, with a node that was left for each replica that has waited for a spare for too long."""
    if intent.generation.phase == "Run":
        return intent
    for moved in intent.state.replacements:
        if moved.prepared or not moved.pool:
            continue
        if _hopeless(snap, intent, moved):
            intent = _withdrawn(snap, intent, moved)
            continue
        if moved.node or snap.pod(moved.pod_name):
            continue
        if observe.spares(snap, intent).available:
            return intent  # it is being claimed
        node = departures.last_resort(
            intent.state,
            _usable(snap, intent),
            stood_still_seconds=snap.now - moved.at,
            replacement_seconds=failslow.overhead_seconds(intent.state, rules, replace_node.TYPE),
        )
        if node:
            intent = _taken(snap, intent, moved, node)
    return intent


def _usable(snap: Snapshot, intent: Intent) -> list[str]:
    """Nodes that the job had left and on which it might run at once. One that is the pool's must be ready there."""
    busy = {pod.node for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")}
    busy |= {member.node for member in intent.generation.members}
    busy |= {one.node for one in intent.state.replacements}
    left = {one.node for one in intent.state.departures} - {one.node for one in intent.excluded if one.fenced}
    return [
        node.name
        for node in snap.nodes.values()
        if node.name in left - busy
        and node.ready
        and not node.unschedulable
        and TAINT_FENCED not in node.taints
        and (TAINT_SPARE not in node.taints or node.name in _ready(snap))
    ]


def _ready(snap: Snapshot) -> set[str]:
    return {one.node for one in snap.pool.status.spares if one.state == "Ready"} if snap.pool is not None else set()


def _taken(snap: Snapshot, intent: Intent, moved: Replacement, node: str) -> Intent:
    """Pin the replica's pod to the node; one that is the pool's spare is claimed as any other, now that it may be."""
    if any(one.node == node for one in intent.excluded):
        waited = snap.now - moved.at
        said = f"{node} used again, slow as it is: no spare was ready for {waited:.0f} s"
        intent = exclusion.used_again(intent, node, said, snap.now)
    state = intent.state
    if node not in _ready(snap):
        pinned = replace(moved, node=node, claim_key="")
        state = replace(state, replacements=[pinned if one is moved else one for one in state.replacements])
    if state.stop is not None:
        step = Step(at=snap.now, what="Recall", generation=intent.generation.number, node=node)
        state = replace(state, stop=replace(state.stop, done=[*state.stop.done, step][-8:]))
    return replace(intent, state=state)


def _hopeless(snap: Snapshot, intent: Intent, moved: Replacement) -> bool:
    """A pod that was pinned here and has no node yet, while a spare is ready or the scheduler finds no room."""
    pod = snap.pod(moved.pod_name)
    if pod is None or pod.node or not moved.node or moved.claim_key:
        return False
    full = bool(pod.unschedulable) and snap.now - pod.created_unix > PLACE_SECONDS
    return full or observe.spares(snap, intent).available


def _withdrawn(snap: Snapshot, intent: Intent, moved: Replacement) -> Intent:
    """Another pod waits for a spare; the node is left again, and is no last resort before it has passed a test."""
    state = departures.left(intent.state, moved.node, 0.0, snap.now)
    entry = Excluded(node=moved.node, reason="no room for the job's pod", since=timestamp(snap.now), burn_in="Pending")
    others = [one for one in intent.excluded if one.node != moved.node]
    intent = replace(intent, state=state, excluded=[*others, entry])
    return apply(intent, [Recreate(moved.replica, stay=False)], snap)
