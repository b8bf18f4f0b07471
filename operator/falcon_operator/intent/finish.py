"""Whether a job is over: its ranks have ended well, and what they saved in memory is durable."""

from __future__ import annotations

from falcon_core.recovery.membership import Member, Membership
from falcon_core.wire.directory import DirectoryReport
from falcon_operator.intent.observe import launch_status
from falcon_operator.intent.pod_ends import over
from falcon_operator.intent.snapshot import Snapshot
from falcon_operator.manifests.pods import trainer_container


def finished(snap: Snapshot, membership: Membership) -> bool:
    """Check whether every rank of the running generation ended well, and all that they wrote is durable."""
    return ranks_done(snap, membership) and all(_is_durable(snap, membership, each) for each in membership.members)


def ranks_done(snap: Snapshot, membership: Membership) -> bool:
    """Check whether every rank of the running generation ended with exit code 0."""

    def done(member: Member) -> bool:
        pod = snap.pod(member.pod_name)
        trainer = pod.containers.get(trainer_container(snap.job)) if pod else None
        if trainer is not None and trainer.exit_code == 0:
            return True
        launch = launch_status(snap, member.pod_uid)
        return (
            launch is not None
            and launch.generation == membership.generation
            and bool(launch.ranks)
            and all(rank.state == "Exited" and rank.exit_code == 0 for rank in launch.ranks)
        )

    members = membership.members
    return membership.phase == "Run" and bool(members) and all(done(member) for member in members)


def directory(snap: Snapshot, pod_uid: str) -> DirectoryReport | None:
    """Return what the pod says of its folder in memory that is copied behind; None: nothing yet."""
    summary = snap.summary(pod_uid)
    return summary.directory if summary else None


def _is_durable(snap: Snapshot, membership: Membership, member: Member) -> bool:
    pod = snap.pod(member.pod_name)
    if snap.job.spec.checkpoint.directory is None or (pod is not None and over(snap.job, pod)):
        return True
    report = directory(snap, member.pod_uid)
    return report is not None and report.is_durable(membership.generation)
