"""Gather, start and release all members of one life of the process group together.

A generation begins in phase ``Stop``: every older process has to end while the new generation's pods are gathered. The
generation runs when all members are placed, their launchers wait for the plan, and no process of an older generation
can disturb it: each is dead, acknowledged as ended, or lost on a dead node. A gang that is not placed by its deadline
gives its nodes back and tries again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from falcon_core.errors.judge import encode_rules
from falcon_core.recovery import Member, Membership
from falcon_core.recovery.checkpoint_on_demand import wanted
from falcon_core.recovery.preflight.machine_test import LOAD_MS
from falcon_core.wire.reporting.messages import Detection, Plan, PlanMember
from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.trainingrun import Gang
from falcon_operator.base.ports import PodView
from falcon_operator.intent.model.intent import Intent, give_up_pods, master_port
from falcon_operator.intent.model.policy import error_rules
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import job_observation, pod_starts
from falcon_operator.intent.observation.pod_ends import over
from falcon_operator.intent.placement import last_resort, standby_pods
from falcon_operator.intent.placement.link_order import are_comparable, link_order

RELEASE_BACKOFF_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
NAMED_NODES = 5
replace = msgspec.structs.replace


class Gathering(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a generation towards running."""

    ready: bool
    waiting: str = ""  # what for, in one sentence
    placed: bool = False  # every member has a node


def gather(snap: Snapshot, intent: Intent) -> Gathering:
    """Return whether the generation may run, and if it may not, what it waits for."""
    membership = intent.membership
    if membership.phase == "Run":
        return Gathering(ready=True, placed=True)
    members = membership.members
    unplaced = [member for member in members if not member.node]
    if unplaced:
        return Gathering(ready=False, waiting=_unplaced(snap, intent, unplaced))
    waiting = _silent(snap, intent) or _leaving(snap, membership) or _unaddressed(snap, membership)
    return Gathering(ready=not waiting, placed=True, waiting=waiting)


def held(pods: Iterable[PodView], membership: Membership) -> list[PodView]:
    """Return the members' pods that scheduling gates hold. A pod that stands by may be held for good."""
    gated = {pod.name: pod for pod in pods if pod.gates and not pod.node}
    return [gated[member.pod_name] for member in membership.members if member.pod_name in gated] if gated else []


def leavers(snap: Snapshot, membership: Membership) -> list[PodView]:
    """Return the pods that are not members of the generation, are not being prepared for the next, nor stand by."""
    kept = {member.pod_name for member in membership.members}
    kept |= {move.pod_name for move in membership.replacements if move.prepared}
    kept |= {each.pod_name for each in (*membership.standbys, *membership.joining)}
    return [pod for pod in snap.pods if pod.name not in kept]


def is_out_of_the_way(snap: Snapshot, membership: Membership, pod: PodView) -> bool:
    """Check whether no process in a pod that leaves can disturb the present generation."""
    launch = job_observation.launch_status(snap, pod.uid)
    node = snap.nodes.get(pod.node)
    # A dead node's pod reports nothing; the gateways and the node together prove that it is gone.
    dead_node = node is None or not node.ready
    return (
        over(snap.job, pod)
        or (dead_node and job_observation.alive(snap, pod.uid) is False)
        or pod.uid in membership.lost_pods
        or job_observation.acknowledged(launch, membership.generation)
        or (launch is None and pod.phase == "Pending")
    )


def _unplaced(snap: Snapshot, intent: Intent, unplaced: list[Member]) -> str:
    membership, member = intent.membership, unplaced[0]
    pod = snap.pod(member.pod_name)
    # The scheduler does not look at them: they wait for no node.
    if gated := held(snap.pods, membership):
        return f"{len(gated)} of {len(membership.members)} pods are held: {pod_starts.waiting_for(gated[0])}"
    count = f"{len(unplaced)} of {len(membership.members)} pods wait for a node"
    if pod is not None:
        reason = "; ".join(part for part in (pod_starts.waiting_for(pod), _fences(snap)) if part)
    else:
        move = membership.replacement(member.replica)
        spareless = move is not None and move.pool and not move.node
        reason = _no_spare(snap, intent) if spareless else snap.refused
    return f"{count}: {reason}" if reason else count


def _no_spare(snap: Snapshot, intent: Intent) -> str:
    message = job_observation.spares(snap, intent.membership).message
    return "; ".join(part for part in (message, last_resort.outlook(snap, intent)) if part)


def _fences(snap: Snapshot) -> str:
    """Name the fenced nodes and how to release them.

    The scheduler's own message says only that a taint was in the way.
    """
    fenced = sorted(node.name for node in snap.nodes.values() if TAINT_FENCED in node.taints)
    if not fenced:
        return ""
    named = ", ".join(fenced[:NAMED_NODES]) + (f" and {len(fenced) - NAMED_NODES} more" * (len(fenced) > NAMED_NODES))
    return f"fenced: {named} (once repaired: kubectl taint node {fenced[0]} {TAINT_FENCED}-)"


def _silent(snap: Snapshot, intent: Intent) -> str:
    """Return which launchers do not wait for the plan yet, in words; "" if all wait."""
    membership = intent.membership
    members = membership.members
    silent = [
        member
        for member in members
        if job_observation.alive(snap, member.pod_uid) is not True
        or not job_observation.acknowledged(job_observation.launch_status(snap, member.pod_uid), membership.generation)
    ]
    if not silent:
        return ""
    return f"{len(members) - len(silent)} of {len(members)} launchers are ready: {_why_silent(snap, intent, silent)}"


def _why_silent(snap: Snapshot, intent: Intent, silent: list[Member]) -> str:
    judge = snap.judge
    for member in silent:
        if words := pod_starts.waiting_words(snap, intent, member, judge):
            return words
    if snap.reports.session_healthy_since_seconds is None:
        return "the operator reaches neither etcd nor all gateways, through which launchers report"
    name = silent[0].pod_name
    where = f"waiting for pod {name} (node {silent[0].node}); see its Events: kubectl describe pod {name}"
    return where + pod_starts.outlook(snap, intent, silent[0], judge)


def _leaving(snap: Snapshot, membership: Membership) -> str:
    for pod in leavers(snap, membership):
        if not is_out_of_the_way(snap, membership, pod):
            return f"the processes in pod {pod.name} (node {pod.node}) are to end"
    return ""


def _unaddressed(snap: Snapshot, membership: Membership) -> str:
    first = snap.pod(membership.members[0].pod_name)
    return "" if first is not None and first.pod_ip else f"pod {membership.members[0].pod_name} has no address yet"


def advance(snap: Snapshot, intent: Intent, gathering: Gathering) -> Intent:
    """Run a gathered generation; release a gang that has waited for its nodes for too long."""
    membership = intent.membership
    if membership.phase != "Stop" or not membership.members:
        return intent
    if gathering.ready:
        first = snap.pod(membership.members[0].pod_name)
        assert first is not None  # gather() has looked
        return replace(
            intent,
            membership=replace(membership, phase="Run", since=snap.now),
            master_addr=first.pod_ip,
            master_port=master_port(snap.job, membership.generation),
            gang=replace(intent.gang, releases=0),
            preflight=replace(intent.preflight, rounds=0),
        )
    # The deadline is for finding nodes: a gang that has all its nodes may take its time to start.
    if gathering.placed or _gathered_seconds(snap, intent) < snap.job.spec.scheduling_deadline_seconds:
        return intent
    releases = intent.gang.releases
    # Jitter keeps two gangs that block each other from trying again at the same moment.
    pause = RELEASE_BACKOFF_SECONDS[min(releases, len(RELEASE_BACKOFF_SECONDS) - 1)] * _jitter(snap.job, releases)
    return replace(give_up_pods(intent, snap.now), gang=Gang(releases=releases + 1, retry_at=snap.now + pause))


def _gathered_seconds(snap: Snapshot, intent: Intent) -> float:
    """Return for how long the gang has been gathered, from the newest move of a pod that did not start."""
    # A pod that was moved looks for its new node from then on, not from the gang's begin.
    moved = [snap.now - attempt.at for attempt in intent.recovery.attempts if attempt.kind == "Moved"]
    # A queue may hold pods for hours: released, they would lose their place in it.
    ungated = [] if snap.gated_at is None else [snap.monotonic - snap.gated_at]
    return min([snap.phase_seconds, *moved, *ungated])


def _jitter(job: TrainingJob, releases: int) -> float:
    """Return a factor of 0.75 … 1.25 that differs by job and attempt.

    With equal pauses, two half-placed gangs would compete for the same nodes again and again.
    """
    digest = hashlib.sha256(f"{job.metadata.uid}/{releases}".encode()).digest()
    return 0.75 + 0.5 * digest[0] / 255


def plan(snap: Snapshot, intent: Intent, exit_code: int = 0) -> Plan:
    """Return the generation as the agents read it; the bus sets the leader's epoch."""
    spec, membership = snap.job.spec, intent.membership
    # Another launcher starts its workers itself, so that none can be held before its first line.
    standby = spec.recovery.standby if spec.launcher == "Falcon" else "None"
    # Machines are measured before the ranks start; during training a measurement would slow them.
    checks = membership.phase == "Stop" and intent.preflight.asked_at > 0
    return Plan(
        epoch=0,
        generation=membership.generation,
        phase=membership.phase,
        procs_per_replica=spec.procs_per_replica,
        world_size=len(membership.members) * spec.procs_per_replica,
        master_addr=intent.master_addr,
        master_port=intent.master_port,
        retries=spec.recovery.retries,
        standby=standby,
        next_master_port=master_port(snap.job, membership.generation + 1) if standby == "Processes" else 0,
        check=intent.preflight.number if checks else 0,
        check_ms=LOAD_MS if checks else 0,
        check_links=checks and are_comparable(membership),
        smoke=intent.smoke.number if _smokes(intent) else 0,
        links=link_order(snap, membership, intent.preflight),
        # No rank trains while the job stops: an order to save would be met by no step.
        checkpoint=wanted(intent.demand, membership.generation) if membership.phase == "Run" else 0,
        saved_before_ms=_saved_before_ms(intent),
        exit_code=exit_code,
        members=[
            PlanMember(
                replica=member.replica,
                pod_uid=member.pod_uid,
                pod_name=member.pod_name,
                node=member.node,
                first_rank=member.first_rank,
            )
            for member in membership.members
            # A pod that was not created yet has no uid, and nothing in it could read the plan. While the others train,
            # its place is kept: earlier agents count the members.
            if member.pod_uid or membership.phase == "Run"
        ],
        standby_pods=[each.pod_uid for each in (*membership.standbys, *membership.joining) if each.pod_uid],
        imports_of=standby_pods.imports_of(snap, membership) if membership.phase == "Run" else "",
        detection=Detection(
            verify_percent=spec.detection.verify_percent,
            consecutive_iterations=spec.detection.consecutive_iterations,
            hang_factor=spec.detection.hang_factor,
        ),
        errors=encode_rules(error_rules(snap.job, snap.settings)),
        verify_every=spec.anomalies.verify_every,
        metrics=list(spec.anomalies.metrics),
    )


def _saved_before_ms(intent: Intent) -> int:
    """Return before when a checkpoint was saved that the ranks may load, unix ms; 0: any.

    When the incident is closed, all ranks have loaded, and what they left out is gone.
    """
    stop = intent.recovery.stop
    return 0 if stop is None or stop.saved_before is None else int(stop.saved_before * 1000)


def _smokes(intent: Intent) -> bool:
    return intent.smoke.asked_at > 0 and intent.smoke.generation == intent.membership.generation
