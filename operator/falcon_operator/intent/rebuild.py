"""Make a lost TrainingRun again from the job's pods, so that training goes on undisturbed.

Each pod's labels say for which replica it was made; its launcher says which generation it runs, and which ranks, since
pods may have exchanged their roles. What cannot be seen is lost: exclusions (the pool and the fences still know the
nodes), counters, learned figures, the history.
"""

from __future__ import annotations

from falcon_core.recovery import Member, Membership
from falcon_core.recovery.views import elastic
from falcon_core.times import FRESH_SECONDS
from falcon_core.wire.launcher.launch import LaunchStatus
from falcon_operator.api.common import LABEL_REPLICA
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.trainingrun import End
from falcon_operator.base.ports import PodView
from falcon_operator.base.time_format import unix_seconds
from falcon_operator.intent.model.intent import Intent, master_port
from falcon_operator.intent.model.policy import elastic_bounds
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.manifests.service import most_replicas


def rebuild(snap: Snapshot) -> Intent | None:
    """Return an intent that fits what runs; None while too little is known because launchers have not reported."""
    job = snap.job
    # A job that had ended must not start again.
    if job.status.completion_time:
        return _ended(job)
    if not snap.pods:
        return Intent()
    newest = _newest_by_number(snap.pods)
    if _may_be_larger(snap, newest):
        return None
    # After an exchange of roles a pod's label no longer says which ranks it runs; its launcher does.
    pods = _by_role(snap, newest)
    size = _size(snap, pods)
    pods = {replica: pod for replica, pod in pods.items() if size == job.spec.replicas or replica < size}
    first = pods.get(0)
    launches = _launches(snap, pods)
    generation = max((launch.generation for launch in launches), default=0)
    complete = len(pods) == size and first is not None and bool(first.pod_ip)
    if complete and len(launches) < len(pods) and _may_report(snap):
        return None
    # Ranks train on only if every pod runs the same generation; else all are stopped and gathered again.
    running = complete and generation > 0 and all(launch.generation == generation for launch in launches)
    members = [_member(job, replica, pods.get(replica)) for replica in range(size)]
    if not all(member.pod_name for member in members):
        # Some replica has no pod: begin again with a number that no launcher has seen; the pods that are left end.
        return Intent(membership=Membership(generation=generation, pods_made=_unused_number(snap.now)))
    membership = Membership(
        generation=max(1, generation),
        phase="Run" if running else "Stop",
        since=snap.now,
        members=members,
        pods_made=_unused_number(snap.now),
    )
    return Intent(
        membership=membership,
        master_addr=first.pod_ip if running and first else "",
        master_port=master_port(job, generation) if running else 0,
        started_at=unix_seconds(job.status.start_time) or snap.now,
    )


def _may_be_larger(snap: Snapshot, pods: dict[int, PodView]) -> bool:
    """Check whether an elastic job may run in a pod of which nothing has been heard yet.

    A pod without a node, or that has ended, is idle. The launchers alone say how many replicas the job has: without one
    of them it would look smaller.
    """
    if not _sizes(snap.job) or not _may_report(snap):
        return False
    placed = {replica: pod for replica, pod in pods.items() if pod.node and pod.phase not in ("Succeeded", "Failed")}
    return len(_launches(snap, placed)) < len(placed)


def _launches(snap: Snapshot, pods: dict[int, PodView]) -> list[LaunchStatus]:
    """Return what the launchers of these pods have reported; the silent ones are left out."""
    return [summary.launch for pod in pods.values() if (summary := snap.summary(pod.uid)) and summary.launch]


def _may_report(snap: Snapshot) -> bool:
    """Check whether a launcher that is silent may report still, and its report is worth the wait."""
    # Nothing says when the bus returns: the pods of an elastic job that is suspended meanwhile go all the same.
    is_deaf = snap.reports.session_healthy_since_seconds is None
    if is_deaf and snap.job.spec.suspend and _sizes(snap.job):
        return False
    return not _heard_out(snap)


def _heard_out(snap: Snapshot) -> bool:
    """Check whether the bus has been heard for so long that every living agent has reported."""
    since = snap.reports.session_healthy_since_seconds
    return since is not None and snap.monotonic - since >= FRESH_SECONDS


def _ended(job: TrainingJob) -> Intent:
    succeeded = job.status.state == "Succeeded"
    return Intent(
        end=End(
            at=unix_seconds(job.status.completion_time),
            succeeded=succeeded,
            reason=job.status.state,
            message=job.status.summary,
        )
    )


def _newest_by_number(pods: list[PodView]) -> dict[int, PodView]:
    newest: dict[int, PodView] = {}
    for pod in sorted(pods, key=lambda pod: pod.created_unix):
        if not pod.deleting:
            newest[int(pod.labels[LABEL_REPLICA])] = pod
    return newest


def _by_role(snap: Snapshot, pods: dict[int, PodView]) -> dict[int, PodView]:
    """Return the pods by the replica that each plays, as their launchers say; as made where that is unclear."""
    played = {role: pod for pod in pods.values() if (role := _role(snap, pod)) is not None}
    return played if len(played) in (len(pods), snap.job.spec.replicas, *_sizes(snap.job)) else pods


def _size(snap: Snapshot, pods: dict[int, PodView]) -> int:
    """Return how many replicas the running generation has: of an elastic job, as many as launchers run without gaps."""
    roles = {replica for replica, pod in pods.items() if _role(snap, pod) == replica}
    fits = len(roles) in _sizes(snap.job) and roles == set(range(len(roles)))
    return len(roles) if fits else snap.job.spec.replicas


def _sizes(job: TrainingJob) -> list[int]:
    allowed = elastic_bounds(job)
    return [] if allowed is None else elastic.possible_sizes(allowed)


def _role(snap: Snapshot, pod: PodView) -> int | None:
    """Return the replica whose ranks run in a pod; None where its launcher does not say."""
    summary = snap.summary(pod.uid)
    ranks = summary.launch.ranks if summary is not None and summary.launch is not None else []
    role = (ranks[0].rank - ranks[0].local_rank) // snap.job.spec.procs_per_replica if ranks else None
    return role if role is not None and 0 <= role < most_replicas(snap.job) else None


def _member(job: TrainingJob, replica: int, pod: PodView | None) -> Member:
    first_rank = replica * job.spec.procs_per_replica
    if pod is None:
        return Member(replica=replica, pod_name="", first_rank=first_rank)
    number = int(pod.labels[LABEL_REPLICA])
    return Member(
        replica=replica,
        pod_name=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        first_rank=first_rank,
        pod_number=None if number == replica else number,
    )


def _unused_number(now: float) -> int:
    """Return a number for the next pods that was never used: it is above any count, and grows with the clock."""
    return int(now)
