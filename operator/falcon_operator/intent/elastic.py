"""Give an elastic job (``spec.elastic``) the number of replicas that costs it least.

While a generation is gathered, pods that have no node may be left out, and pods that are ready to join take their place
or are added at no cost. While a generation runs with fewer replicas than wanted, the missing pods are still asked for,
and all ranks restart with them when that pays (``falcon_core.recovery.elastic``). What changes is stored before it is
done: an operator that dies in between continues from there.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

import msgspec

from falcon_core.recovery import (
    Exclusion,
    LeavingNode,
    Member,
    Membership,
    Observation,
    Policy,
    Replacement,
    StandbyPod,
    StepTaken,
)
from falcon_core.recovery.views import elastic, left_nodes
from falcon_core.recovery.views import membership as members
from falcon_operator.api.trainingrun import ClosedIncident, Resized
from falcon_operator.intent import on_demand
from falcon_operator.intent.model.intent import Intent, JobNames, claimed_nodes, remember
from falcon_operator.intent.model.policy import elastic_bounds
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import job_observation
from falcon_operator.intent.observation.free_nodes import is_usable
from falcon_operator.intent.placement import exclusion, standby_pods

AGAIN_SECONDS = 60.0  # that a pod keeps its place which is over, or has no node: its successor may end likewise
CLAIM_SECONDS = 30.0  # after which a pod that was to get a spare, and got none, is asked for on any node
UNTRACKED_SECONDS = 20.0  # after which ranks whose iterations are not seen count as training
replace = msgspec.structs.replace


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """What one look says of the size."""

    wanted: int  # replicas that the job asks nodes for
    sizes: list[int]  # that it can have, ascending
    shrinking: elastic.Shrinking | None = None  # while replicas have no node
    growing: elastic.Growing | None = None  # while pods are ready to join
    shrinks_at: float | None = None  # when it is due, unix seconds; None: not due in sight
    held_by: str = ""  # what pods that are ready to join wait for before growing is weighed, in words


def weigh(snap: Snapshot, intent: Intent, obs: Observation) -> Weighed | None:
    """Return what waiting, fewer and more replicas cost now; None for a job that is not elastic."""
    allowed = elastic_bounds(snap.job)
    if allowed is None or not intent.membership.members:
        return None
    sizes = elastic.possible_sizes(allowed)
    weighed = Weighed(wanted=elastic.largest(sizes, allowed.most), sizes=sizes)
    if intent.membership.phase == "Stop":
        return _gathering(snap, intent, weighed)
    return _training(snap, intent, obs, weighed) if intent.membership.phase == "Run" else weighed


def _gathering(snap: Snapshot, intent: Intent, weighed: Weighed) -> Weighed:
    membership = intent.membership
    # A pod that a repair has taken in this look gets its seat and its node in the next one: until then the seat only
    # looks empty, and another pod would take it.
    if any(_is_just_taken(snap, member) for member in membership.members):
        return weighed
    placed = sum(bool(member.node) for member in membership.members)
    available = placed + len(_ready(intent))
    size, now = elastic.largest(weighed.sizes, available), len(membership.members)
    # Ranks stand still in any case: pods that are ready take part from the start.
    if size >= now and (size > now or placed < now):
        return replace(weighed, growing=elastic.Growing(size=size, is_due=True))
    if placed == now:
        return weighed
    stood_still = snap.now - _waits_since(intent)
    shrinking = elastic.shrinking(
        weighed.sizes,
        members=now,
        available=available,
        stood_still_seconds=max(0.0, stood_still),
        restart_seconds=elastic.standstill_seconds(intent.recovery),
        seconds_left=_seconds_left(snap, intent),
    )
    if not shrinking.size:
        return replace(weighed, shrinking=shrinking)
    if _begins(intent):
        # Nothing has failed: the owner's deadline for finding nodes says how long the job waits for all of them.
        limit = float(snap.job.spec.scheduling_deadline_seconds)
        shrinking = replace(shrinking, due_seconds=limit, is_due=snap.phase_seconds >= limit)
    is_due = shrinking.is_due and not _may_be_placed(snap, intent)
    return replace(
        weighed,
        shrinking=replace(shrinking, is_due=is_due),
        shrinks_at=snap.now + max(0.0, shrinking.due_seconds - stood_still),
    )


def _is_just_taken(snap: Snapshot, member: Member) -> bool:
    pod = snap.pod(member.pod_name)
    return not member.pod_uid and not member.node and pod is not None and bool(pod.node)


def _training(snap: Snapshot, intent: Intent, obs: Observation, weighed: Weighed) -> Weighed:
    ready, leaving = _ready(intent), _about_to_leave(intent)
    if not ready:
        return weighed
    unsettled = _unsettled(snap, intent, obs)
    if unsettled:
        return replace(weighed, held_by=f"{unsettled}; then all ranks may restart with the pods that are ready")
    # A pod that is kept for a node that is being emptied is taken over by that move, without another restart.
    if len(ready) <= len(leaving):
        return replace(weighed, held_by=f"the move away from {leaving[0].node}, which takes the pod that is ready")
    ready = ready[len(leaving) :]
    # With a checkpoint on demand no step is done again.
    saves, saved_at = on_demand.for_another_size(snap, intent.membership)
    unsaved = 0.0 if saves else None if saved_at is None else max(0.0, snap.now - saved_at)
    growing = elastic.growing(
        weighed.sizes,
        members=len(intent.membership.members),
        ready=len(ready),
        trained_seconds=max(0.0, snap.now - intent.membership.since),  # this operator may have begun later
        ready_seconds=max(0.0, snap.now - max(each.at for each in ready)),
        restart_seconds=elastic.standstill_seconds(intent.recovery),
        interval_seconds=snap.job.spec.checkpoint.interval_seconds,
        unsaved_seconds=unsaved,
    )
    return replace(weighed, growing=growing if growing.size else None)


def _begins(intent: Intent) -> bool:
    """Check whether the job begins, or begins again after its pods were given up, and repairs nothing."""
    return intent.recovery.stop is None and intent.recovery.move is None


def _waits_since(intent: Intent) -> float:
    """Return since when the job waits for a node (unix seconds).

    Before its node was known to be lost it could not have gone on with fewer replicas: that time is no wait.
    """
    membership, stop = intent.membership, intent.recovery.stop
    since = membership.since
    for step in reversed(stop.done if stop is not None else []):
        if step.generation != membership.generation or step.what in ("Shrink", "Join"):
            break
        if step.what in ("Replace", "Recreate"):
            since = step.at
    return since


def _seconds_left(snap: Snapshot, intent: Intent) -> float:
    limit = snap.job.spec.active_deadline_seconds
    return math.inf if limit is None or not intent.started_at else max(0.0, intent.started_at + limit - snap.now)


def _may_be_placed(snap: Snapshot, intent: Intent) -> bool:
    """Check whether a replica without a node has a pod, or gets one now, and the scheduler has not refused that pod."""
    membership = intent.membership
    for member in membership.members:
        pod, move = snap.pod(member.pod_name), membership.replacement(member.replica)
        # A pod that is to get a spare is not made before it has one.
        spareless = move is not None and bool(move.pool) and not move.node
        if spareless and not job_observation.unclaimed(snap, membership).available:
            continue
        if not member.node and (pod is None or not pod.unschedulable):
            return True
    return False


def _ready(intent: Intent) -> list[StandbyPod]:
    left = intent.membership.excluded_nodes
    return [each for each in intent.membership.joining if each.ready and each.node not in left]


def _about_to_leave(intent: Intent) -> list[LeavingNode]:
    """Return the nodes that are being emptied and for which a pod is about to be prepared."""
    membership = intent.membership
    return [
        entry
        for entry in intent.recovery.leaving
        if not entry.blocked and membership.replacement(entry.replica) is None
    ]


def _unsettled(snap: Snapshot, intent: Intent, obs: Observation) -> str:
    """Return what a restart for more replicas would disturb, in words; "" where nothing.

    Open slowdowns and planned moves alone do not hold it off: without a pod that has its node they may stay for ever.
    """
    recovery, membership = intent.recovery, intent.membership
    if recovery.stop is not None or recovery.hang is not None:
        return "the repair of a failure"
    if recovery.move is not None and recovery.move.restarts:
        return "the end of a move"
    if recovery.probe is not None:
        return "the end of a measurement"
    if any(move.prepared and _has_node(snap, move) for move in membership.replacements):
        return "the move of a replica to another node"
    trains = obs.running and (obs.iterations > 0 or obs.running_seconds > UNTRACKED_SECONDS)
    if not trains or membership.done or any(rank.process != "Running" for rank in obs.ranks):
        return "all ranks to train"
    return ""


def _has_node(snap: Snapshot, move: Replacement) -> bool:
    pod = snap.pod(move.pod_name)
    return bool(move.node) or (pod is not None and bool(pod.node))


# -- the pods that are asked for ---------------------------------------------------------------------------------------


def look(snap: Snapshot, intent: Intent) -> Intent:
    """Take over what was made of the pods that are asked for: a repair takes one only if it is ready now."""
    if not intent.membership.joining:
        return intent
    claimed = claimed_nodes(snap.pool)
    joining = [_seen(snap, each, claimed) for each in intent.membership.joining]
    return replace(intent, membership=replace(intent.membership, joining=joining))


def ask(snap: Snapshot, intent: Intent, left_before: Collection[str], *, enforce: bool) -> Intent:
    """Ask for the pods that are missing, and again in place of those that will not join.

    ``enforce``: the job's owner lets Falcon change the size. Otherwise a pod would hold a node, and never join.
    ``left_before``: the nodes that the job did not use at the look's begin. A pod is made for the nodes that the job
    uses at that time: if it has found none, another is made when the job may use a node again.
    """
    allowed = elastic_bounds(snap.job)
    if allowed is None or not intent.membership.members:
        return intent
    if not enforce:
        return replace(intent, membership=replace(intent.membership, joining=[]))
    # Again: the repairs of this look may have given pods back.
    intent = _with_returned(snap, look(snap, intent))
    returned = set(left_before) - set(intent.membership.excluded_nodes)
    for each in intent.membership.joining:
        intent = _asked_again(snap, intent, each, is_late=bool(returned))
    membership = intent.membership
    if membership.phase != "Run":
        return intent
    membership = _given_to_moves(snap, membership)
    intent = replace(intent, membership=membership)
    missing = elastic.largest(elastic.possible_sizes(allowed), allowed.most) - len(membership.members)
    if len(membership.joining) > max(0, missing):
        return replace(intent, membership=_without_superfluous(membership, max(0, missing)))
    for _ in range(missing - len(membership.joining)):
        membership = members.ask_for_more(membership, JobNames(snap.job), snap.now)
    return replace(intent, membership=membership)


def _without_superfluous(membership: Membership, wanted: int) -> Membership:
    """Ask for so many pods only, and let those go first that would join last."""
    left = membership.excluded_nodes
    soonest = sorted(
        membership.joining, key=lambda each: (not each.ready or each.node in left, not each.node or each.node in left)
    )
    return replace(membership, joining=soonest[:wanted])


def _given_to_moves(snap: Snapshot, membership: Membership) -> Membership:
    """Let moves whose pod has found no node take pods that are ready to join: both would wait for each other."""
    for move in membership.replacements:
        if move.prepared and not _has_node(snap, move):
            membership = members.take_ready(membership, JobNames(snap.job), move.replica, snap.now)
    return membership


def _seen(snap: Snapshot, pod: StandbyPod, claimed: dict[str, str]) -> StandbyPod:
    seen = standby_pods.seen_of(snap, pod, claimed)
    if pod.pod_uid and seen.pod_uid != pod.pod_uid:
        return replace(pod, ready=False)
    ready = seen.ready and not seen.over
    at = snap.now if ready and not pod.ready else pod.at
    return replace(pod, pod_uid=seen.pod_uid, node=seen.node or pod.node, ready=ready, at=at)


def _asked_again(snap: Snapshot, intent: Intent, pod: StandbyPod, *, is_late: bool) -> Intent:
    """Ask for another pod in place of one that is over, or that can find no node where another could."""
    membership, names = intent.membership, JobNames(snap.job)
    if pod.node:
        if _is_over(snap, intent, pod) and snap.now - pod.at >= AGAIN_SECONDS:
            return replace(intent, membership=members.ask_again(membership, names, pod.number, snap.now))
        return intent
    if pod.claim_key:
        # The pool has given it no spare: another one takes any node instead.
        if is_late or snap.now - pod.at >= CLAIM_SECONDS:
            return replace(intent, membership=members.ask_again(membership, names, pod.number, snap.now))
        return intent
    # A claim that the pool does not fulfil must leave the pod that takes any node the time to find one.
    seen = snap.pod(pod.pod_name)
    is_refused = seen is not None and bool(seen.unschedulable) and snap.now - pod.at >= AGAIN_SECONDS
    claims = is_refused and _may_claim(snap, intent)
    if not (claims or is_late):
        return intent
    return replace(intent, membership=members.ask_again(membership, names, pod.number, snap.now, claims=claims))


def _is_over(snap: Snapshot, intent: Intent, pod: StandbyPod) -> bool:
    if pod.node in intent.membership.excluded_nodes:
        return True
    seen = standby_pods.seen_of(snap, pod, {})
    # A pod that was made again for the node of an earlier one waits for that node alone.
    return seen.over or not seen.node or (bool(pod.pod_uid) and seen.pod_uid != pod.pod_uid)


def _may_claim(snap: Snapshot, intent: Intent) -> bool:
    """Check whether a spare of the pool is ready: it replaces a lost node, and adds none to the size asked for."""
    membership = intent.membership
    claiming = sum(bool(each.claim_key) for each in membership.joining)
    spares = job_observation.unclaimed(snap, membership)
    if not spares.pool or not spares.available or claiming >= (spares.ready or 0):
        return False
    return len(membership.members) + claiming < snap.job.spec.replicas


def _with_returned(snap: Snapshot, intent: Intent) -> Intent:
    """Use nodes again that the job had left and that are well, where a pod of it finds no other node.

    The probation of a node protects a job that has other nodes. Here the choice is between the node and none.
    """
    if all(each.node for each in intent.membership.joining):
        return intent
    for entry in intent.membership.exclusions:
        node = snap.nodes.get(entry.node)
        if node is not None and is_usable(snap, node) and not entry.fenced and _is_well(snap, intent, entry):
            intent = exclusion.use_again(intent, entry, "UsableAgain", snap.now, detail="the job has too few nodes")
    return intent


def _is_well(snap: Snapshot, intent: Intent, entry: Exclusion) -> bool:
    if entry.test == "Passed":
        return True
    # Without a pool there is no test: a node that was lost, and has been Ready for a while, is the best there is.
    return snap.job.spec.warm_pool_ref is None and exclusion.has_returned(intent, entry)


# -- the change of size ------------------------------------------------------------------------------------------------


def resize(snap: Snapshot, intent: Intent, obs: Observation, policy: Policy) -> Intent:
    """Change the number of replicas where that is due, if the job's owner lets Falcon act."""
    weighed = weigh(snap, intent, obs)
    if weighed is None or not policy.enforce:
        return intent
    before = len(intent.membership.members)
    if weighed.growing is not None and weighed.growing.is_due:
        if intent.membership.phase == "Run":
            intent, waits = on_demand.before_restart(snap, intent, leaving=0, resizes=True)
            if waits:
                return intent
        return _resized(snap, intent, weighed.growing.size, "NodesReady", weighed.growing.price_seconds)
    shrinking = weighed.shrinking
    if shrinking is None or not shrinking.is_due or not 0 < shrinking.size < before:
        return intent
    why: Literal["NoNode", "NotPlaced"] = "NotPlaced" if _begins(intent) else "NoNode"
    return _resized(snap, intent, shrinking.size, why, shrinking.price_seconds)


def _resized(
    snap: Snapshot, intent: Intent, size: int, why: Literal["NoNode", "NotPlaced", "NodesReady"], price_seconds: float
) -> Intent:
    before, job = intent.membership, snap.job
    membership = members.resize(before, JobNames(job), size, procs=job.spec.procs_per_replica, now=snap.now)
    fewer = size < len(before.members)
    step = StepTaken(at=snap.now, what="Shrink" if fewer else "Join", generation=membership.generation)
    done = step if intent.recovery.stop is not None else None
    if size == len(before.members):
        recovery = elastic.joined(intent.recovery, done)
        return replace(intent, membership=membership, recovery=recovery, master_addr="", master_port=0)
    roles = {member.pod_name: member.replica for member in membership.members}
    recovery, over = elastic.renumbered(intent.recovery, roles, done)
    # The moves that were being prepared are given up: the job stays on the nodes that it was about to leave.
    for move in before.replacements:
        recovery = left_nodes.stayed(recovery, move.old_node) if move.prepared else recovery
    intent = remember(
        replace(intent, recovery=recovery), [ClosedIncident(at=snap.now, outcome="Resized", slow=slow) for slow in over]
    )
    resized = Resized(
        at=snap.now, before=len(before.members), after=size, why=why, price_seconds=round(price_seconds, 1)
    )
    # A new generation needs a rendezvous of its own, as after any restart.
    return replace(intent, membership=membership, resized=resized, master_addr="", master_port=0)
