"""Slow is better than dead: a replica that lost its node and finds no spare goes to a node that the job had left.

Only where nothing else is there, and only nodes that are not fenced: one that is well again at once; a slow one when
the job has stood still for long enough to pay for the replacement that such a node will need
(``recovery.departures.last_resort``). A spare that becomes ready before the pod has its node is taken instead;
afterwards the ladder for fail-slow replaces the node as any other. A node without room for the pod is left again.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import departures, failslow
from falcon_core.recovery.membership import Exclusion, Replacement, apply_actions
from falcon_core.recovery.observation import Policy, Recreate
from falcon_core.recovery.state import Step
from falcon_core.recovery.strategies import replace_node
from falcon_operator.api import TAINT_FENCED, TAINT_SPARE
from falcon_operator.intent import exclusion, observe
from falcon_operator.intent.intent import Intent, JobNames
from falcon_operator.intent.snapshot import Snapshot

PLACE_SECONDS = 30.0  # after which a pod that is not placed will not be: others have taken the room
replace = msgspec.structs.replace


def reuse_departed_node(snap: Snapshot, intent: Intent, rules: Policy) -> Intent:
    """Pin each replica that has waited for a spare for too long to a node that the job had left."""
    if intent.membership.phase == "Run":
        return intent
    for move in intent.membership.replacements:
        if move.prepared or not move.pool:
            continue
        if _hopeless(snap, intent, move):
            intent = _withdrawn(snap, intent, move)
            continue
        if move.node or snap.pod(move.pod_name):
            continue
        if observe.spares(snap, intent.membership).available:
            return intent  # it is being claimed
        node = departures.last_resort(
            intent.recovery,
            _usable(snap, intent),
            stood_still_seconds=snap.now - move.at,
            replacement_seconds=failslow.overhead_seconds(intent.recovery, rules, replace_node.TYPE),
        )
        if node:
            intent = _taken(snap, intent, move, node)
    return intent


def _usable(snap: Snapshot, intent: Intent) -> list[str]:
    """Return nodes that the job had left and on which it might run at once; a pool's node must be ready there."""
    membership = intent.membership
    busy = {pod.node for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")}
    busy |= {member.node for member in membership.members}
    busy |= {move.node for move in membership.replacements}
    fenced = {exclusion.node for exclusion in membership.exclusions if exclusion.fenced}
    left = {departure.node for departure in intent.recovery.departures} - fenced
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
    spares = snap.pool.status.spares if snap.pool is not None else []
    return {spare.node for spare in spares if spare.state == "Ready"}


def _taken(snap: Snapshot, intent: Intent, move: Replacement, node: str) -> Intent:
    """Pin the replica's pod to the node; a ready spare of the pool is claimed as any other, now that it may be."""
    excluded = exclusion.find(intent, node)
    if excluded is not None:
        waited = f"no spare was ready for {snap.now - move.at:.0f} s"
        intent = exclusion.use_again(intent, excluded, "UsedSlow", snap.now, detail=waited)
    membership, recovery = intent.membership, intent.recovery
    if node not in _ready(snap):
        pinned = replace(move, node=node, claim_key="")
        moves = [pinned if other is move else other for other in membership.replacements]
        membership = replace(membership, replacements=moves)
    if recovery.stop is not None:
        step = Step(at=snap.now, what="Recall", generation=membership.generation, node=node)
        recovery = replace(recovery, stop=replace(recovery.stop, done=[*recovery.stop.done, step][-8:]))
    return replace(intent, membership=membership, recovery=recovery)


def _hopeless(snap: Snapshot, intent: Intent, move: Replacement) -> bool:
    """Return whether a pinned pod has no node yet while a spare is ready or the scheduler finds no room."""
    pod = snap.pod(move.pod_name)
    if pod is None or pod.node or not move.node or move.claim_key:
        return False
    full = bool(pod.unschedulable) and snap.now - pod.created_unix > PLACE_SECONDS
    return full or observe.spares(snap, intent.membership).available


def _withdrawn(snap: Snapshot, intent: Intent, move: Replacement) -> Intent:
    """Leave the node again and wait for a spare; it is no last resort before it has passed a test."""
    recovery = departures.left(intent.recovery, move.node, 0.0, snap.now)
    entry = Exclusion(node=move.node, reason="no room for the job's pod", at=snap.now, test_since=snap.now)
    others = [other for other in intent.membership.exclusions if other.node != move.node]
    membership = replace(intent.membership, exclusions=[*others, entry])
    again = [Recreate(move.replica, stay=False)]
    membership = apply_actions(membership, again, JobNames(snap.job), snap.now)
    return replace(intent, membership=membership, recovery=recovery)
