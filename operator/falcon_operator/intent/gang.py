"""One life of the process group: gathered whole, started together, released whole.

A generation begins in phase ``Stop``: every older process has to go while its pods are gathered. It runs when all
members are placed, their launchers wait for the plan, and nobody of an older generation is left who could disturb it:
dead, acknowledged, or lost on a dead node. A gang that is not placed by its deadline gives its nodes back and tries
again.
"""

from __future__ import annotations

import msgspec

from falcon_core.wire.messages import Detection, Plan, PlanMember
from falcon_operator.api import TAINT_FENCED, Generation, Member, TrainingJob
from falcon_operator.intent import observe
from falcon_operator.intent.intent import Intent, empty, master_port
from falcon_operator.intent.snapshot import Snapshot
from falcon_operator.ports import PodView
from falcon_operator.times import timestamp

RELEASE_BACKOFF_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
replace = msgspec.structs.replace


class Gathering(msgspec.Struct, frozen=True, kw_only=True):
    """How far the generation is from running."""

    ready: bool
    waiting: str = ""  # what for, in one sentence
    placed: bool = False  # every member has a node


def gather(snap: Snapshot, intent: Intent) -> Gathering:
    """Whether the generation may run, and otherwise what it waits for."""
    generation = intent.generation
    total = len(generation.members)
    unplaced = [member for member in generation.members if not member.node]
    if unplaced:
        return Gathering(ready=False, waiting=_unplaced(snap, intent, unplaced))
    silent = [member for member in generation.members if not _waits(snap, generation, member)]
    if silent:
        told = _silent(snap, generation, silent)
        return Gathering(
            ready=False, placed=True, waiting=f"{total - len(silent)} of {total} launchers are ready: {told}"
        )
    left = [pod for pod in leavers(snap, intent) if not _out_of_the_way(snap, intent, pod)]
    if left:
        return Gathering(
            ready=False, placed=True, waiting=f"the processes in pod {left[0].name} (node {left[0].node}) are to end"
        )
    first = snap.pod(generation.members[0].pod_name)
    if first is None or not first.pod_ip:
        return Gathering(ready=False, placed=True, waiting=f"pod {generation.members[0].pod_name} has no address yet")
    return Gathering(ready=True, placed=True)


def leavers(snap: Snapshot, intent: Intent) -> list[PodView]:
    """Pods that are no members of the generation, nor being prepared for the next one."""
    kept = {member.pod_name for member in intent.generation.members}
    kept |= {one.pod_name for one in intent.state.replacements if one.prepared}
    return [pod for pod in snap.pods if pod.name not in kept]


def _waits(snap: Snapshot, generation: Generation, member: Member) -> bool:
    launch = observe.launch_status(snap, member.pod_uid)
    return observe.alive(snap, member.pod_uid) is True and observe.acknowledged(launch, generation.number)


def _out_of_the_way(snap: Snapshot, intent: Intent, pod: PodView) -> bool:
    launch = observe.launch_status(snap, pod.uid)
    node = snap.nodes.get(pod.node)
    dead_node = node is None or not node.ready
    return (
        observe.over(snap.job, pod)
        or (dead_node and observe.alive(snap, pod.uid) is False)
        or pod.uid in intent.state.lost_pods
        or observe.acknowledged(launch, intent.generation.number)
        or (launch is None and pod.phase == "Pending")
    )


def _unplaced(snap: Snapshot, intent: Intent, unplaced: list[Member]) -> str:
    member = unplaced[0]
    pod = snap.pod(member.pod_name)
    count = f"{len(unplaced)} of {len(intent.generation.members)} pods wait for a node"
    if pod is not None:
        reason = observe.waiting_for(pod) + _fences(snap)
    else:
        moved = intent.replacement(member.replica)
        spareless = moved is not None and moved.pool and not moved.node
        reason = observe.spares(snap, intent).message if spareless else snap.refused
    return f"{count}: {reason}" if reason else count


def _fences(snap: Snapshot) -> str:
    """The scheduler says only that a taint was in the way: name the nodes, and how they come back."""
    fenced = sorted(node.name for node in snap.nodes.values() if TAINT_FENCED in node.taints)
    if not fenced:
        return ""
    return f"; fenced: {', '.join(fenced)} (once repaired: kubectl taint node {fenced[0]} {TAINT_FENCED}-)"


def _silent(snap: Snapshot, generation: Generation, silent: list[Member]) -> str:
    for member in silent:
        pod = snap.pod(member.pod_name)
        reason = observe.waiting_for(pod) if pod else ""
        if reason:
            return f"pod {member.pod_name}, {reason}"
    if snap.reports.session_healthy_since_seconds is None:
        return "the operator does not reach etcd, through which launchers report"
    return f"waiting for pod {silent[0].pod_name} (node {silent[0].node})"


def advance(snap: Snapshot, intent: Intent, gathering: Gathering) -> Intent:
    """Run a gathered generation; release one that has waited for its nodes for too long."""
    generation = intent.generation
    if generation.phase != "Stop" or not generation.members:
        return intent
    if gathering.ready:
        first = snap.pod(generation.members[0].pod_name)
        assert first is not None  # gather() has looked
        return replace(
            intent,
            generation=replace(
                generation,
                phase="Run",
                master_addr=first.pod_ip,
                master_port=master_port(snap.job, generation.number),
                started_at=timestamp(snap.now),
            ),
            state=replace(intent.state, gang=replace(intent.state.gang, releases=0, since=snap.now)),
        )
    waited = snap.now - intent.state.gang.since
    if gathering.placed or waited < snap.job.spec.scheduling_deadline_seconds:
        return intent
    gang = intent.state.gang
    pause = RELEASE_BACKOFF_SECONDS[min(gang.releases, len(RELEASE_BACKOFF_SECONDS) - 1)]
    released = empty(intent, snap.now)
    return replace(
        released,
        state=replace(released.state, gang=replace(gang, releases=gang.releases + 1, retry_at=snap.now + pause)),
    )


def plan(job: TrainingJob, generation: Generation, exit_code: int = 0) -> Plan:
    """The generation as the agents read it; the bus puts the leader's epoch in."""
    spec = job.spec
    return Plan(
        epoch=0,
        generation=generation.number,
        phase=generation.phase,
        procs_per_replica=spec.procs_per_replica,
        world_size=spec.replicas * spec.procs_per_replica,
        master_addr=generation.master_addr,
        master_port=generation.master_port,
        exit_code=exit_code,
        members=[
            PlanMember(
                replica=member.replica,
                pod_uid=member.pod_uid,
                pod_name=member.pod_name,
                node=member.node,
                first_rank=member.first_rank,
            )
            for member in generation.members
            if member.pod_uid
        ],
        detection=Detection(
            verify_percent=spec.detection.verify_percent,
            consecutive_iterations=spec.detection.consecutive_iterations,
            hang_factor=spec.detection.hang_factor,
        ),
    )
