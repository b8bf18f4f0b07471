"""Slow is better than dead: a replica that lost its node and finds no spare goes to a slow node that the job had left.

Only where nothing else is there, only nodes that are not fenced, and only once the job has stood still for long enough
to pay for the replacement that such a node will need (``recovery.departures.last_resort``). A spare that becomes ready
before that is taken instead; afterwards the ladder for fail-slow replaces the node as any other.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import departures, failslow
from falcon_core.recovery.observation import Policy
from falcon_core.recovery.state import Replacement, Step
from falcon_core.recovery.strategies import replace_node
from falcon_operator.api import TAINT_FENCED, TAINT_SPARE
from falcon_operator.reconcile import fencing, observe
from falcon_operator.reconcile.intents import Intent
from falcon_operator.reconcile.snapshot import Snapshot

replace = msgspec.structs.replace


def recall(snap: Snapshot, intent: Intent, rules: Policy) -> Intent:
    """The intent, with a slow node for each replica that has waited for a spare for too long."""
    if intent.generation.phase == "Run":
        return intent
    for moved in intent.state.replacements:
        if moved.aside or not moved.pool or moved.node or snap.pod(moved.pod_name):
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
    """Excluded nodes on which a pod of the job could run at once. One that is the pool's must be ready there."""
    busy = {pod.node for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")}
    busy |= {member.node for member in intent.generation.members}
    busy |= {one.node for one in intent.state.replacements}
    return [
        entry.node
        for entry in intent.excluded
        if not entry.fenced
        and entry.node not in busy
        and (node := snap.nodes.get(entry.node)) is not None
        and node.ready
        and not node.unschedulable
        and TAINT_FENCED not in node.taints
        and (TAINT_SPARE not in node.taints or entry.node in _ready(snap))
    ]


def _ready(snap: Snapshot) -> set[str]:
    return {one.node for one in snap.pool.status.spares if one.state == "Ready"} if snap.pool is not None else set()


def _taken(snap: Snapshot, intent: Intent, moved: Replacement, node: str) -> Intent:
    """Pin the replica's pod to the node; one that is the pool's spare is claimed as any other, now that it may be."""
    waited = snap.now - moved.at
    intent = fencing.used_again(
        intent, node, f"{node} used again, slow as it is: no spare was ready for {waited:.0f} s", snap.now
    )
    state = intent.state
    if node not in _ready(snap):
        pinned = replace(moved, node=node, claim_key="")
        state = replace(state, replacements=[pinned if one is moved else one for one in state.replacements])
    if state.stop is not None:
        step = Step(at=snap.now, what="Recall", generation=intent.generation.number, node=node)
        state = replace(state, stop=replace(state.stop, done=[*state.stop.done, step][-8:]))
    return replace(intent, state=state)
