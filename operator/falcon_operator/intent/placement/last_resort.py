"""Find a node for a replica that has none: a job never stands still while there is a node that it may use.

A replacement waits for a spare of the job's pool. Where no spare is ready, these follow, in this order:

1. any free node: the pod is made without a pin, and the scheduler finds out where it fits;
2. a node that the job had left and that is healthy again. Its probation is waived, since there is no other choice;
3. a slow node, once the job has stood still for as long as the later replacement of that node will cost
   (``recovery.departures.last_resort``). A slow job is better than a stopped one; later the ladder for fail-slow
   replaces the node.

A fenced node is never taken, nor one that reports grave trouble of its hardware. A spare that becomes ready before the
pod has its node is taken instead. A pinned pod may find no room (on a claimed spare, on the node it was to return to,
or on a node of the last resort). Then it is made again elsewhere. The same goes for an ordinary pod of a job that has
left nodes, such as after a gang was released: the job may claim a spare for each node that it has left.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import Exclusion, Member, Policy, Recreate, Replacement, StepTaken, apply_actions
from falcon_core.recovery.strategies import replace_node
from falcon_core.recovery.views import left_nodes, prices
from falcon_operator.api.common import TAINT_SPARE
from falcon_operator.base.time_format import clock_time
from falcon_operator.intent.model.intent import Intent, JobNames, claim_prefix
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import job_observation
from falcon_operator.intent.observation.free_nodes import is_usable, open_nodes, own_nodes
from falcon_operator.intent.placement import exclusion

SCHEDULE_SECONDS = 5.0  # after which the scheduler has looked at every node for a pod without a pin
PLACE_SECONDS = 30.0  # after which a pinned pod without a node gets none: other pods have taken the room
replace = msgspec.structs.replace


def find_nodes(snap: Snapshot, intent: Intent, policy: Policy) -> Intent:
    """Give each replica that has no node its next possibility to get one."""
    for member in intent.membership.members:
        move = intent.membership.replacement(member.replica)
        # A prepared pod may wait for its spare, since the member's old pod still trains. While ranks train, a member
        # has no node only where it was lost and the others go on without it.
        if member.node or (move is not None and move.prepared):
            continue
        if move is None or not (move.node or move.pool):
            intent = _unpinned(snap, intent, member, policy)
        elif move.node:
            intent = _pinned(snap, intent, move)
        elif not job_observation.spares(snap, intent.membership).available:
            intent = _spareless(snap, intent, move, policy)
    return intent


def _unpinned(snap: Snapshot, intent: Intent, member: Member, policy: Policy) -> Intent:
    """Find a node for an ordinary pod for which the scheduler finds none."""
    move = intent.membership.replacement(member.replica)
    if not _is_stuck(snap, member.pod_name, SCHEDULE_SECONDS if move is not None else PLACE_SECONDS):
        return intent
    # A ready spare is the best choice: it was tested under load. Without a pool another pod would wait as well.
    spares = job_observation.spares(snap, intent.membership)
    if spares.pool and spares.available and (move is not None or _may_claim(snap, intent)):
        return _made_anew(snap, intent, member.replica)
    since = move.at if move is not None else intent.membership.since
    # The nodes that the job had left are the last resort.
    node = _departed(snap, intent, since, policy)
    if not node:
        return intent
    intent = _made_anew(snap, intent, member.replica)
    renewed = intent.membership.replacement(member.replica)
    assert renewed is not None  # made just now
    return _taken(snap, intent, renewed, node, since)


def _pinned(snap: Snapshot, intent: Intent, move: Replacement) -> Intent:
    """Make a pinned pod again when it has no room on its node, or when a spare is better than its last resort."""
    if _is_stuck(snap, move.pod_name, PLACE_SECONDS):
        returning = not move.pool and move.node == move.old_node
        return _made_anew(snap, intent, move.replica) if returning else _withdrawn(snap, intent, move)
    pod = snap.pod(move.pod_name)
    last_resort = bool(move.pool) and not move.claim_key
    if last_resort and pod is not None and not pod.node and job_observation.spares(snap, intent.membership).available:
        return _withdrawn(snap, intent, move)
    return intent


def _spareless(snap: Snapshot, intent: Intent, move: Replacement, policy: Policy) -> Intent:
    """Find a node for a replica that waits for a spare while no spare is ready."""
    if open_nodes(snap, intent.membership):
        return _moved(intent, move, replace(move, pool="", claim_key=""))
    node = _departed(snap, intent, move.at, policy)
    return _taken(snap, intent, move, node, move.at) if node else intent


def _is_stuck(snap: Snapshot, pod_name: str, seconds: float) -> bool:
    pod = snap.pod(pod_name)
    return pod is not None and not pod.node and bool(pod.unschedulable) and snap.now - pod.created_unix > seconds


def _may_claim(snap: Snapshot, intent: Intent) -> bool:
    """Check whether the job holds fewer spares than it has left nodes."""
    spares = snap.pool.status.spares if snap.pool is not None else []
    held = sum(spare.claimed_by.startswith(claim_prefix(snap.job)) for spare in spares)
    return held < len(intent.membership.exclusions)


def _departed(snap: Snapshot, intent: Intent, since: float, policy: Policy) -> str:
    """Return the node that the job had left and should use again now; "" if the job should wait."""
    left = _left(snap, intent)
    found = left_nodes.last_resort(
        intent.recovery,
        left,
        # Ranks that train without the replica would wait for a slow one.
        stood_still_seconds=snap.now - since if intent.membership.phase == "Stop" else 0.0,
        replacement_seconds=prices.overhead_seconds(intent.recovery, policy, replace_node.FACTS),
    )
    if found or snap.job.spec.warm_pool_ref is not None:
        return found
    # Without a pool no test shows that a node which was lost is well. To have come back is the only evidence.
    returned = (entry.node for entry in intent.membership.exclusions if exclusion.has_returned(intent, entry))
    return next((node for node in returned if node in left), "")


def _left(snap: Snapshot, intent: Intent) -> list[str]:
    """Return the nodes that the job had left and on which it might run at once; a pool's node must be a ready spare."""
    fenced = {entry.node for entry in intent.membership.exclusions if entry.fenced}
    left = {departure.node for departure in intent.recovery.departures} - fenced - own_nodes(snap, intent.membership)
    return [
        node.name
        for node in snap.nodes.values()
        if node.name in left and is_usable(snap, node) and (TAINT_SPARE not in node.taints or node.name in _ready(snap))
    ]


def _ready(snap: Snapshot) -> set[str]:
    spares = snap.pool.status.spares if snap.pool is not None else []
    return {spare.node for spare in spares if spare.state == "Ready"}


def _taken(snap: Snapshot, intent: Intent, move: Replacement, node: str, since: float) -> Intent:
    """Give the replica the node. If the node is a ready spare, the pod is not pinned: the spare is claimed as usual."""
    excluded = exclusion.find(intent, node)
    if excluded is not None:
        waited = f"no spare was ready for {snap.now - since:.0f} s"
        # The record says whether the node had recovered or is used although it is slow.
        well = excluded.test == "Passed"
        intent = exclusion.use_again(intent, excluded, "UsableAgain" if well else "UsedSlow", snap.now, detail=waited)
    recovery = intent.recovery
    if node not in _ready(snap):
        intent = _moved(intent, move, replace(move, node=node, claim_key=""))
    # The open incident lists the step, so that people see why the job is back on that node.
    if recovery.stop is not None:
        step = StepTaken(at=snap.now, what="Recall", generation=intent.membership.generation, node=node)
        recovery = replace(recovery, stop=replace(recovery.stop, done=[*recovery.stop.done, step][-8:]))
    return replace(intent, recovery=recovery)


def _moved(intent: Intent, move: Replacement, changed: Replacement) -> Intent:
    moves = [changed if other is move else other for other in intent.membership.replacements]
    return replace(intent, membership=replace(intent.membership, replacements=moves))


def _made_anew(snap: Snapshot, intent: Intent, replica: int) -> Intent:
    """Name another pod for the replica, and the claim of a spare where the job has a pool."""
    again = [Recreate(replica, stay=False, joins=True)]  # whether ranks train meanwhile is decided already
    return replace(intent, membership=apply_actions(intent.membership, again, JobNames(snap.job), snap.now))


def _withdrawn(snap: Snapshot, intent: Intent, move: Replacement) -> Intent:
    """Leave the node again. It is not used as a last resort before it has passed a test; the test is not urgent."""
    recovery = left_nodes.left(intent.recovery, move.node, 0.0, snap.now)
    recovery = left_nodes.tested(recovery, move.node, snap.now, passed=None)
    entry = Exclusion(
        node=move.node, reason="no room for the job's pod", at=snap.now, test="Unavailable", test_since=snap.now
    )
    others = [other for other in intent.membership.exclusions if other.node != move.node]
    membership = replace(intent.membership, exclusions=[*others, entry])
    return _made_anew(snap, replace(intent, membership=membership, recovery=recovery), move.replica)


def outlook(snap: Snapshot, intent: Intent) -> str:
    """Return what may become of a replica that waits for a spare, and when; "" where nothing is in sight."""
    spares = snap.pool.status.spares if snap.pool is not None else []
    parts = [f"spare {spare.node} is being tested" for spare in spares if spare.state == "Testing"]
    for entry in intent.membership.exclusions:
        node = snap.nodes.get(entry.node)
        if node is None or not node.ready:
            parts.append(f"{entry.node} is not Ready")
        elif entry.test == "Pending":
            parts.append(f"{entry.node} is being tested")
        elif entry.test in ("Failed", "Unavailable") and snap.pool is not None:
            parts.append(f"{entry.node} is tested again at {clock_time(exclusion.next_test(intent, entry))}")
    return "; ".join(parts[:3])
