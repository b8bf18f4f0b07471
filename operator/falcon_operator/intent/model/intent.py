"""Define what is durable about a job: its members, the memory of its recovery, and the conclusions about its nodes.

The intent is written to the job's TrainingRun before any effect is carried out. Every look derives all effects from the
intent again. All times are unix seconds.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from falcon_core.recovery import Demand, Member, Membership, RecoveryState
from falcon_core.recovery.preflight.machine_test import Preflight
from falcon_core.recovery.preflight.smoke_test import Smoke
from falcon_core.recovery.views import left_nodes
from falcon_core.recovery.views import membership as members
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.trainingrun import ClosedIncident, End, Gang, Held, NodeVerdict, Resized
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import PodView
from falcon_operator.manifests.pods import pod_name

# Below the kernel's ephemeral range, so that no outgoing connection holds the port.
FIRST_PORT, PORTS = 20_000, 10_000
HISTORY = 10  # incidents that are over and still shown
replace = msgspec.structs.replace


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a TrainingRun."""

    membership: Membership = Membership()
    master_addr: str = ""
    master_port: int = 0
    gang: Gang = Gang()
    recovery: RecoveryState = RecoveryState()
    preflight: Preflight = Preflight()
    smoke: Smoke = Smoke()
    demand: Demand = Demand()
    verdicts: list[NodeVerdict] = []  # newest last
    history: list[ClosedIncident] = []  # newest first
    started_at: float = 0.0  # 0: not yet
    end: End | None = None
    held: Held | None = None
    resized: Resized | None = None  # the newest change of an elastic job's size


class JobNames(msgspec.Struct, frozen=True):
    """The ``membership.Names`` of a job: the names of its pods and of its claims of spares."""

    job: TrainingJob

    @property
    def pool(self) -> str:
        reference = self.job.spec.warm_pool_ref
        return reference.name if reference else ""

    def pod(self, replica: int, number: int) -> str:
        return pod_name(self.job, replica, number)

    def claim(self, number: int) -> str:
        return f"{claim_prefix(self.job)}{number}"


def claim_prefix(job: TrainingJob) -> str:
    """Return the prefix that all claims of the job have."""
    return f"{job.metadata.namespace}/{job.metadata.name}/{job.metadata.uid}/"


def master_port(job: TrainingJob, generation: int) -> int:
    """Return a port that differs from generation to generation.

    A process that outlived its generation then cannot join the rendezvous of the next generation.
    """
    seed = int.from_bytes(hashlib.sha256(job.metadata.uid.encode()).digest()[:4], "big")
    return FIRST_PORT + (seed + 7 * generation) % PORTS


def begin(job: TrainingJob, intent: Intent, now: float) -> Intent:
    """Name new pods for every replica, for the first generation, or for the next after a release or a suspension."""
    spec = job.spec
    membership = members.begin(
        intent.membership, JobNames(job), replicas=spec.replicas, procs=spec.procs_per_replica, now=now
    )
    return replace(
        intent,
        membership=membership,
        master_addr="",
        master_port=0,
        started_at=intent.started_at or now,
        resized=None,
    )


def give_up_pods(intent: Intent, now: float) -> Intent:
    """Release every pod (suspension, or a gang that is released); incidents that were open are dropped."""
    recovery = left_nodes.paused(intent.recovery, len(intent.membership.members), now)
    return replace(
        intent,
        membership=members.release(intent.membership),
        master_addr="",
        master_port=0,
        recovery=_without_incidents(recovery),
    )


def _without_incidents(recovery: RecoveryState) -> RecoveryState:
    return replace(recovery, slowdowns=[], stop=None, hang=None, leaving=[], move=None)


def adopt(intent: Intent, pods: dict[str, PodView], pool: WarmPool | None) -> Intent:
    """Take over what was created (pod uids, nodes, claimed spares); forget what is no longer needed."""
    membership = intent.membership
    seats = [_seated(member, pods.get(member.pod_name)) for member in membership.members]
    claimed = claimed_nodes(pool)
    present = {pod.uid for pod in pods.values()}
    # A replacement is over when its pod has its node and the old pod is gone.
    placed = {member.pod_name for member in seats if member.node}
    under_way = [
        move
        for move in membership.replacements
        if move.prepared or move.pod_name not in placed or move.old_pod_uid in present
    ]
    return replace(
        intent,
        membership=replace(
            membership,
            members=seats,
            replacements=[replace(move, node=move.node or claimed.get(move.claim_key, "")) for move in under_way],
            # A pod that is gone can never come back under its uid, so the list forgets it.
            lost_pods=[uid for uid in membership.lost_pods if uid in present],
        ),
    )


def claimed_nodes(pool: WarmPool | None) -> dict[str, str]:
    """Return the nodes of the pool's claimed spares, by the key of the claim."""
    return {spare.claimed_by: spare.node for spare in pool.status.spares if spare.claimed_by} if pool else {}


def _seated(member: Member, pod: PodView | None) -> Member:
    """Return the member with what is known of its pod. A pod of the same name with another uid is not its pod."""
    if pod is None or member.pod_uid not in ("", pod.uid):
        return member
    node = pod.node or member.node
    if (member.pod_uid, member.node) == (pod.uid, node):
        return member
    return replace(member, pod_uid=pod.uid, node=node)


def unused_claims(job: TrainingJob, intent: Intent | None, pods: list[PodView], pool: WarmPool | None) -> list[str]:
    """Return the claims of spares that the job holds but does not run on and is not about to move to."""
    if pool is None:
        return []
    ours = claim_prefix(job)
    membership = intent.membership if intent else Membership()
    wanted = {move.claim_key for move in membership.replacements} | {pod.claim_key for pod in membership.standbys}
    wanted |= {pod.claim_key for pod in membership.joining}
    # By the pods that exist, and not by the members: a pod that is being deleted still uses its node.
    used = {pod.node for pod in pods if pod.phase not in ("Succeeded", "Failed")}
    return [
        spare.claimed_by
        for spare in pool.status.spares
        if spare.claimed_by.startswith(ours) and spare.claimed_by not in wanted and spare.node not in used
    ]


def remember(intent: Intent, closed: list[ClosedIncident]) -> Intent:
    """Put incidents that are over into the history, without an open one that has come back; the oldest are dropped."""
    recovery = intent.recovery
    open_ids = {slow.id for slow in recovery.slowdowns}
    past = [old for old in intent.history if old.slow is None or old.slow.id not in open_ids]
    ids = {incident.slow.id for incident in closed if incident.slow is not None}
    past = [old for old in past if old.slow is None or old.slow.id not in ids]
    return replace(intent, history=[*reversed(closed), *past][:HISTORY])


def close_open_incidents(intent: Intent, outcome: str, now: float) -> Intent:
    """Close the open incidents when the job ends or is suspended. ``outcome``: "Suspended" or "Ended"."""
    recovery = intent.recovery
    last = (recovery.concurrent_link, *recovery.further, recovery.leader)  # the history has the leader first
    found: list[tuple[str, Any]] = [("slow", slow) for slow in last]
    found += [("stop", recovery.stop), ("hang", recovery.hang), ("move", recovery.move)]
    closed = [
        ClosedIncident(at=now, outcome="Suspended" if outcome == "Suspended" else "Ended", **{kind: incident})
        for kind, incident in found
        if incident is not None and incident.id
    ]
    return replace(remember(intent, closed), recovery=_without_incidents(recovery))
