"""What the recovery's actions mean for the job's durable intent: generation, members, excluded nodes, counters.

The intent is written to status before anything is done about it; every effect is derived from it again each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from falcon_core.recovery import departures
from falcon_core.recovery.observation import Abandon, Action, Prepare, Recreate, Replace, Restart, Switch
from falcon_core.recovery.state import RecoveryState, Replacement
from falcon_operator.api import Counters, Excluded, Generation, Member, TrainingJob, TrainingJobStatus
from falcon_operator.effects import ReleaseSpare
from falcon_operator.intent.snapshot import Snapshot
from falcon_operator.manifests.pods import pod_name
from falcon_operator.times import timestamp

# Below the kernel's ephemeral range, so that no outgoing connection holds the port.
FIRST_PORT, PORTS = 20_000, 10_000
_INDENT = " " * 6  # where kubectl describe begins the text, or near it
replace = msgspec.structs.replace


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The durable half of a job's status."""

    generation: Generation
    state: RecoveryState = RecoveryState()
    excluded: list[Excluded] = []
    counters: Counters = Counters()

    def replacement(self, replica: int) -> Replacement | None:
        return next((one for one in self.state.replacements if one.replica == replica), None)


def encode_state(state: RecoveryState) -> dict[str, Any]:
    """For ``status.incident``: one text, since ``kubectl describe`` would spread an object's fields over pages; in
    lines of a readable length, since it wraps none."""
    return {"version": state.version, "state": _wrapped(msgspec.json.encode(state).decode())}


def _wrapped(text: str, width: int = 100) -> str:
    """The same JSON with line breaks after commas outside of strings."""
    lines, start, comma, quoted, escaped = [], 0, 0, False, False
    for at, character in enumerate(text):
        if at - start >= width and comma > start:
            lines.append(text[start:comma])
            start = comma
        quoted ^= character == '"' and not escaped
        escaped = quoted and character == "\\" and not escaped
        if character == "," and not quoted:
            comma = at + 1
    return f"\n{_INDENT}".join([*lines, text[start:]])


def decode_state(incident: dict[str, Any] | None) -> RecoveryState:
    """The inverse; a fresh state where there is none."""
    return msgspec.json.decode((incident or {}).get("state", "{}"), type=RecoveryState)


def stored(status: TrainingJobStatus) -> Intent | None:
    """The intent that stands in status; None before the first generation."""
    if status.generation is None:
        return None
    return Intent(
        generation=status.generation,
        state=decode_state(status.incident),
        excluded=list(status.excluded_nodes),
        counters=status.counters,
    )


def master_port(job: TrainingJob, generation: int) -> int:
    """A new port each generation: a process that outlived its own cannot meet the next one's rendezvous."""
    seed = int.from_bytes(hashlib.sha256(job.metadata.uid.encode()).digest()[:4], "big")
    return FIRST_PORT + (seed + 7 * generation) % PORTS


def unused_claims(snap: Snapshot, intent: Intent | None) -> list[ReleaseSpare]:
    """Spares that the job holds and neither runs on nor is about to move to."""
    if snap.pool is None:
        return []
    meta = snap.job.metadata
    ours = f"{meta.namespace}/{meta.name}/{meta.uid}/"
    wanted = {one.claim_key for one in intent.state.replacements} if intent else set()
    used = {pod.node for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")}
    return [
        ReleaseSpare(snap.pool.metadata.name, spare.claimed_by)
        for spare in snap.pool.status.spares
        if spare.claimed_by.startswith(ours) and spare.claimed_by not in wanted and spare.node not in used
    ]


def begin(job: TrainingJob, before: Intent | None, now: float) -> Intent:
    """A new generation with new pods for every replica: the first one, or the one after a release or a suspension."""
    state = before.state if before else RecoveryState()
    number = before.generation.number + 1 if before else 1
    made = state.pods_made
    members = [
        Member(
            replica=replica,
            pod_name=pod_name(job, replica, made + replica + 1),
            first_rank=replica * job.spec.procs_per_replica,
        )
        for replica in range(job.spec.replicas)
    ]
    return Intent(
        generation=Generation(number=number, phase="Stop", members=members, started_at=timestamp(now)),
        state=replace(
            state,
            pods_made=made + job.spec.replicas,
            replacements=[],
            gang=replace(state.gang, since=now),
        ),
        excluded=before.excluded if before else [],
        counters=before.counters if before else Counters(restarts=0, replacements=0),
    )


def empty(intent: Intent, now: float) -> Intent:
    """No members: every pod goes (suspension, or a gang that is released)."""
    return replace(
        intent,
        generation=replace(intent.generation, phase="Stop", members=[], master_addr="", master_port=0),
        state=replace(
            departures.paused(intent.state, len(intent.generation.members), now),
            replacements=[],
            slow=None,
            stop=None,
            hang=None,
            lost_pods=[],
        ),
    )


def adopt(intent: Intent, snap: Snapshot) -> Intent:
    """Take over what has come into being: pod uids, their nodes, claimed spares; forget what is no longer needed."""
    members = []
    for member in intent.generation.members:
        pod = snap.pod(member.pod_name)
        if pod is not None and not (member.pod_uid and member.pod_uid != pod.uid):
            member = replace(member, pod_uid=pod.uid, node=pod.node or member.node)
        members.append(member)
    claimed = (
        {spare.claimed_by: spare.node for spare in snap.pool.status.spares if spare.claimed_by} if snap.pool else {}
    )
    present = {pod.uid for pod in snap.pods}
    current = {member.pod_name for member in members if member.node}
    replacements = [
        replace(one, node=claimed[one.claim_key]) if one.claim_key in claimed and not one.node else one
        for one in intent.state.replacements
        if one.prepared or one.pod_name not in current or one.old_pod_uid in present
    ]
    return replace(
        intent,
        generation=replace(intent.generation, members=members),
        state=replace(
            intent.state,
            replacements=replacements,
            lost_pods=[uid for uid in intent.state.lost_pods if uid in present],
        ),
    )


def apply(intent: Intent, actions: Sequence[Action], snap: Snapshot) -> Intent:
    """The intent after the recovery's actions; at most one new generation, whatever their number."""
    changed = intent
    bump = False
    for action in actions:
        match action:
            case Restart():
                bump = True
            case Recreate(replica=replica, stay=stay):
                changed = _recreate(changed, snap, replica, stay)
                bump = True
            case Replace(replica=replica, reason=reason, lost=lost):
                changed = _exclude(changed, replica, reason, snap.now)
                changed = _replace(changed, snap, replica, lost=lost)
                bump = True
            case Prepare(replica=replica, reason=reason):
                changed = _exclude(changed, replica, reason, snap.now)
                changed = _move(changed, snap, replica, prepared=True)
            case Switch(replica=replica, lost=lost):
                changed = _switch(changed, replica, lost=lost)
                bump = True
            case Abandon(replica=replica):
                changed = _abandon(changed, replica)
    return _next_generation(changed, snap.now) if bump else changed


def _next_generation(intent: Intent, now: float) -> Intent:
    """Stop everything older, then run; while the last one has not run yet, its number is still free to use."""
    generation = intent.generation
    restarted = replace(intent.counters, restarts=intent.counters.restarts + 1)
    if generation.phase != "Run":
        return intent
    return replace(
        intent,
        generation=replace(
            generation,
            number=generation.number + 1,
            phase="Stop",
            master_addr="",
            master_port=0,
            started_at=timestamp(now),
        ),
        state=replace(intent.state, gang=replace(intent.state.gang, since=now)),
        counters=restarted,
    )


def _member(intent: Intent, replica: int) -> Member:
    return intent.generation.members[replica]


def _with_member(intent: Intent, member: Member) -> Intent:
    members = [member if one.replica == member.replica else one for one in intent.generation.members]
    return replace(intent, generation=replace(intent.generation, members=members))


def _exclude(intent: Intent, replica: int, reason: str, now: float) -> Intent:
    node = _member(intent, replica).node
    if not node or any(one.node == node for one in intent.excluded):
        return intent
    entry = Excluded(node=node, reason=reason, since=timestamp(now), burn_in="Pending")
    return replace(intent, excluded=[*intent.excluded, entry])


def _move(intent: Intent, snap: Snapshot, replica: int, *, prepared: bool, stay: bool = False) -> Intent:
    """Name the replica's new pod, and the claim of a spare for it."""
    member = _member(intent, replica)
    job = snap.job
    number = intent.state.pods_made + 1
    pool = job.spec.warm_pool_ref.name if job.spec.warm_pool_ref and not stay else ""
    meta = job.metadata
    moved = Replacement(
        replica=replica,
        pod_name=pod_name(job, replica, number),
        pool=pool,
        claim_key=f"{meta.namespace}/{meta.name}/{meta.uid}/{number}" if pool else "",
        node=member.node if stay else "",
        old_pod_name=member.pod_name,
        old_pod_uid=member.pod_uid,
        old_node=member.node,
        prepared=prepared,
        at=snap.now,
    )
    others = [one for one in intent.state.replacements if one.replica != replica]
    return replace(intent, state=replace(intent.state, pods_made=number, replacements=[*others, moved]))


def _recreate(intent: Intent, snap: Snapshot, replica: int, stay: bool) -> Intent:
    moved = (
        _move(intent, snap, replica, prepared=False, stay=True)
        if stay
        else _move(intent, snap, replica, prepared=False)
    )
    return _take_over(moved, replica)


def _replace(intent: Intent, snap: Snapshot, replica: int, *, lost: bool) -> Intent:
    uid = _member(intent, replica).pod_uid
    moved = _take_over(_move(intent, snap, replica, prepared=False), replica)
    return _replaced(moved, uid if lost else "")


def _switch(intent: Intent, replica: int, *, lost: bool) -> Intent:
    uid = _member(intent, replica).pod_uid
    kept = [replace(one, prepared=False) if one.replica == replica else one for one in intent.state.replacements]
    switched = _take_over(replace(intent, state=replace(intent.state, replacements=kept)), replica)
    return _replaced(switched, uid if lost else "")


def _replaced(intent: Intent, lost_pod: str) -> Intent:
    """Count it; ``lost_pod`` is the uid of a pod whose processes count as dead, "" where they have to acknowledge."""
    lost_pods = [*intent.state.lost_pods, lost_pod] if lost_pod else intent.state.lost_pods
    return replace(
        intent,
        state=replace(intent.state, lost_pods=lost_pods),
        counters=replace(intent.counters, replacements=intent.counters.replacements + 1),
    )


def _take_over(intent: Intent, replica: int) -> Intent:
    """The replica's named new pod is its member from now on."""
    moved = intent.replacement(replica)
    assert moved is not None  # it was named by _move
    return _with_member(intent, replace(_member(intent, replica), pod_name=moved.pod_name, pod_uid="", node=""))


def _abandon(intent: Intent, replica: int) -> Intent:
    moved = intent.replacement(replica)
    if moved is None or not moved.prepared:
        return intent
    return replace(
        intent,
        state=replace(intent.state, replacements=[one for one in intent.state.replacements if one is not moved]),
        excluded=[one for one in intent.excluded if one.node != moved.old_node],
    )
