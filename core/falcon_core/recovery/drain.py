"""Plan moves of replicas away from nodes that are being emptied, before anything fails.

A ``Notice`` says that a node is being emptied. An urgent one (a spot instance is reclaimed, the pod is being disrupted)
is answered at once. A node that only takes no further pods (a cordon) is left at the next convenient moment:

- in any restart that takes place anyway, if a spare is ready for it (``failstop.node_health.leaving``);
- otherwise when the cordon has lasted for ``SETTLE_SECONDS`` and the last planned restart is ``APART_SECONDS`` ago. All
  nodes with a notice are left in one restart.

The move works like that of a slow node: a pod is prepared on another node while training goes on, and takes over in one
restart when it is ready. A notice that is withdrawn earlier costs nothing. The node is not excluded: nothing is wrong
with it, and the notice itself keeps new pods away.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery.failstop.node_health import leaving
from falcon_core.recovery.model.actions import Abandon, Command, Prepare, Switch
from falcon_core.recovery.model.events import MoveClosed
from falcon_core.recovery.model.observation import Look, MemberSeen, Observation, resumed_at, training
from falcon_core.recovery.model.planned_move import LeavingNode, PlannedMove
from falcon_core.recovery.model.state import RecoveryState, with_measured
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies import replace_node
from falcon_core.text import clip

SETTLE_SECONDS = 15.0  # an administrator who has cordoned the wrong node lifts the cordon within that time
# Between two planned restarts for cordons. With the preparation's deadline it stays below GIVE_WAY_SECONDS.
APART_SECONDS = 300.0
GIVE_WAY_SECONDS = 600.0  # a drain waits for the job for so long; node upgrades of managed clusters wait for 15 minutes
MOST_LEAVING = 64  # nodes at a time, so many spares a job may hold unless its pool says otherwise; the rest later
WHY_LENGTH = 256  # characters
UNDER_WAY = "a planned move is being prepared"
replace = msgspec.structs.replace


def step(state: RecoveryState, look: Look) -> Step:
    """Look at the job once, after the ladder for fail-stop has found nothing to do."""
    taken = _concluded(state, look.obs)
    taken = taken.then(_followed(taken.state, look.obs))
    if not look.obs.running or taken.state.stop is not None:
        return taken
    taken = taken.then(_prepared(taken.state, look))
    taken = taken.then(_switched(taken.state, look.obs))
    return replace(taken, state=_forgotten(taken.state))


def join(state: RecoveryState, obs: Observation, busy: set[int]) -> Step:
    """Let the pods that are ready, or have their node, take over in a restart that begins anyway.

    The rest of a pod's start is shorter than another restart. ``busy``: replicas that the restart is for.
    """
    if not obs.running or state.move is None or state.move.restarts:
        return Step(state)
    joining = [entry for entry in state.leaving if entry.replica not in busy and _has_place(entry, obs)]
    if not joining:
        return Step(state)
    return Step(_moving(state, state.move, joining, obs), [Switch(entry.replica) for entry in joining])


def is_under_way(state: RecoveryState) -> bool:
    """Check whether pods are being prepared: meanwhile no other repair takes spares or replicas."""
    return any(entry.preparing for entry in state.leaving)


def due_at(state: RecoveryState, entry: LeavingNode) -> float:
    """Return when a pod is prepared for the replica at the earliest (unix seconds)."""
    settled = entry.since if entry.urgent else entry.since + SETTLE_SECONDS
    apart = entry.since if entry.urgent or state.move is not None else state.moved_at + APART_SECONDS
    return max(settled, apart, entry.retry_at)


def leaving_entry(state: RecoveryState, pod_name: str, node: str) -> LeavingNode | None:
    """Return the move of this pod away from this node, until its restart is over; None where there is none.

    Where more nodes are to be left than a job leaves at a time, the oldest move stands for those that come later.
    """
    moving = state.move.leaving if state.move is not None else []
    entries = (*state.leaving, *moving)
    own = next((entry for entry in entries if (entry.pod_name, entry.node) == (pod_name, node)), None)
    if own is None and len(state.leaving) >= MOST_LEAVING:
        return min(state.leaving, key=lambda entry: entry.since)
    return own


def gives_way(entry: LeavingNode, now: float) -> bool:
    """Check whether the node has had to wait for too long: then evictions from it are no longer held off."""
    return now - entry.since > GIVE_WAY_SECONDS


def _followed(state: RecoveryState, obs: Observation) -> Step:
    """Take over the present notices; give pods back whose notice is withdrawn, or that failed before."""
    known = {(entry.replica, entry.node): entry for entry in state.leaving}
    kept: list[LeavingNode] = []
    given_back: list[Command] = []
    for member in obs.members:
        before = known.get((member.replica, member.node)) if member.node else None
        entry = _noticed(before, member, obs) if member.node else None
        was_preparing = before is not None and before.preparing and member.replica in obs.prepared
        # The spare that was taken for it would else be held for a move that never comes.
        if was_preparing and (entry is None or not entry.preparing):
            given_back.append(Abandon(member.replica))
        if entry is not None:
            kept.append(entry)
    # Pods that are being prepared keep their place. Of the rest, those that end soonest come first.
    kept.sort(key=lambda entry: (not entry.preparing, not entry.urgent, entry.since, entry.replica))
    return Step(_forgotten(replace(state, leaving=kept[:MOST_LEAVING])), given_back)


def _noticed(before: LeavingNode | None, member: MemberSeen, obs: Observation) -> LeavingNode | None:
    """Return the present notice of a member's node; None where there is none."""
    if member.notice is None:
        return None
    entry = before or LeavingNode(replica=member.replica, pod_name="", node=member.node, why="", since=obs.now)
    entry = replace(
        entry, pod_name=member.pod_name, why=clip(member.notice.text, WHY_LENGTH), urgent=member.notice.urgent
    )
    prepared = obs.prepared.get(member.replica) if entry.preparing else None
    # A pod that failed is tried again after a while, since its node may have been the reason.
    failure = replace_node.failed(prepared) if prepared is not None and not prepared.ready else ""
    if failure:
        entry = replace(entry, blocked=failure, retry_at=obs.now + replace_node.RETRY_SECONDS)
    return replace(entry, preparing=prepared is not None and not failure)


def _forgotten(state: RecoveryState) -> RecoveryState:
    """Forget a move of which nothing is left before its restart."""
    if state.move is None or state.move.restarts:
        return state
    preparing = [entry for entry in state.leaving if entry.preparing]
    return replace(state, move=replace(state.move, leaving=preparing) if preparing else None)


def _prepared(state: RecoveryState, look: Look) -> Step:
    """Prepare a pod for each replica that is to move now and for which there is room."""
    # One restart at a time.
    if state.move is not None and state.move.restarts:
        return Step(state)
    # Spares that earlier pods will still take are not free.
    taken = sum(entry.preparing and _is_unplaced(entry, look.obs) for entry in state.leaving)
    entries: list[LeavingNode] = []
    prepared: list[Command] = []
    for entry in state.leaving:
        if entry.preparing:
            state = _opened(state, entry, look)  # it was left over by a restart that is over
        elif _is_due(state, entry, look.obs):
            entry = replace(entry, blocked=replace_node.hindrance(look.obs.spares, taken))
            if not entry.blocked:
                state = _opened(state, entry, look)
                assert state.move is not None  # opened just now
                entry = replace(entry, preparing=True)
                prepared.append(Prepare(entry.replica, entry.why, state.move.id, exclude=False))
                taken += 1
        entries.append(entry)
    return Step(replace(state, leaving=entries), prepared)


def _is_unplaced(entry: LeavingNode, obs: Observation) -> bool:
    """Check whether the replica's preparation has been given no node yet."""
    prepared = obs.prepared.get(entry.replica)
    return prepared is None or not prepared.claimed_node


def _is_due(state: RecoveryState, entry: LeavingNode, obs: Observation) -> bool:
    member = obs.members[entry.replica]
    if member.pod != "Present" or entry.replica in obs.prepared:
        return False
    if not entry.urgent and state.leader is not None and state.leader.phase in ("Mitigating", "Checking"):
        return False  # its restart leaves the node as well
    return obs.now >= due_at(state, entry)


def _opened(state: RecoveryState, entry: LeavingNode, look: Look) -> RecoveryState:
    if state.move is not None:
        return replace(state, move=replace(state.move, since=min(state.move.since, entry.since)))
    number = state.incidents + 1
    move = PlannedMove(id=f"{look.policy.job}-{number}", since=entry.since, began_at=look.obs.now, leaving=[])
    return replace(state, incidents=number, move=move)


def _ready(state: RecoveryState, obs: Observation) -> list[LeavingNode]:
    return [
        entry
        for entry in state.leaving
        if entry.preparing and entry.replica in obs.prepared and obs.prepared[entry.replica].ready
    ]


def _has_place(entry: LeavingNode, obs: Observation) -> bool:
    prepared = obs.prepared.get(entry.replica) if entry.preparing else None
    return prepared is not None and bool(prepared.claimed_node) and not replace_node.failed(prepared)


def _switched(state: RecoveryState, obs: Observation) -> Step:
    """Restart when every pod that is on its way is ready; an urgent one waits for urgent ones alone."""
    ready = _ready(state, obs)
    if not ready or state.move is None or state.move.restarts:
        return Step(state)
    in_haste = any(entry.urgent for entry in ready)
    awaited = [
        entry
        for entry in state.leaving
        if entry.preparing and entry not in ready and (entry.urgent or not in_haste) and _is_awaited(entry, obs)
    ]
    # A restart costs the same for one pod as for several, so it waits for those that are nearly ready.
    if awaited:
        return Step(state)
    busy = {entry.replica for entry in state.leaving if entry.preparing and _is_unplaced(entry, obs)}
    switches = [Switch(entry.replica) for entry in ready]
    # Nodes in trouble leave in the same restart.
    besides = leaving(obs, busy, state.move.id)
    return Step(_moving(state, state.move, ready, obs), [*switches, *besides])


def _is_awaited(entry: LeavingNode, obs: Observation) -> bool:
    """Check whether a restart is worth putting off for the pod: it was asked for just now, or is on its way."""
    prepared = obs.prepared.get(entry.replica)
    return prepared is None or replace_node.is_on_its_way(prepared)


def _moving(state: RecoveryState, move: PlannedMove, moved: list[LeavingNode], obs: Observation) -> RecoveryState:
    """Return the state in which the restart has begun."""
    move = replace(move, leaving=moved, generation=obs.generation, iterations=obs.iterations, switched_at=obs.now)
    left = [entry for entry in state.leaving if entry not in moved]
    return replace(state, leaving=left, move=move, moved_at=obs.now)


def _concluded(state: RecoveryState, obs: Observation) -> Step:
    """Close the move when training goes on, and learn what its restart has cost."""
    move = state.move
    if move is None or move.switched_at is None or state.stop is not None or obs.generation <= move.generation:
        return Step(state)
    if not training(obs, seen_before=move.iterations > 0 or state.levels.healthy_ns is not None):
        return Step(state)
    seconds = max(0.0, resumed_at(obs) - move.switched_at)
    default = replace_node.FACTS.default_seconds
    state = with_measured(replace(state, move=None), replace_node.TYPE, seconds, default_seconds=default, now=obs.now)
    return Step(state, events=[MoveClosed(incident=move, seconds=seconds)])
