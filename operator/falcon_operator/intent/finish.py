"""Decide whether a job is over: its ranks ended well by themselves, and what they saved in memory is durable.

A program that gets SIGTERM may save a checkpoint and exit with 0, and has yet to finish its work. So an end counts if
it came before any signal to the launcher. The launcher knows that order: its state is then ``Exited``, and stays so
when the signal comes later; and its container ends with 0, whose exit code outlives every report.

A pod whose ranks are done may leave before the other ranks end, with its node. So it is remembered in the intent which
replicas are done, and the end of their pods is no failure.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import Member, Membership
from falcon_core.wire.launcher.launch import LaunchStatus
from falcon_core.wire.saves.directory import DirectoryReport
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import PodView
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation.job_observation import launch_status
from falcon_operator.manifests.pods import processes_per_pod, trainer_container

replace = msgspec.structs.replace


def remember_done(snap: Snapshot, intent: Intent) -> Intent:
    """Return the intent with the replicas that are done in the running generation, their results being durable."""
    membership = intent.membership
    if membership.phase != "Run":
        return intent
    # Once done, always done: the pod and its reports may be gone by the next look.
    ended = _ended_well(snap, membership)
    done = [
        member.replica
        for member in membership.members
        if member.replica in membership.done or (member.replica in ended and _is_durable(snap, membership, member))
    ]
    return intent if done == membership.done else replace(intent, membership=replace(membership, done=done))


def finished(membership: Membership) -> bool:
    """Check whether every replica of the running generation is done."""
    return bool(membership.members) and len(membership.done) == len(membership.members)


def ranks_done(snap: Snapshot, membership: Membership) -> bool:
    """Check whether every rank of the running generation ended with exit code 0, by itself."""
    if membership.phase != "Run" or not membership.members:
        return False
    over = _ended_well(snap, membership).union(membership.done)
    return all(member.replica in over for member in membership.members)


def directory(snap: Snapshot, pod_uid: str) -> DirectoryReport | None:
    """Return the pod's report of its folder in memory that is copied behind; None: no report yet."""
    summary = snap.summary(pod_uid)
    return summary.directory if summary else None


def _ended_well(snap: Snapshot, membership: Membership) -> set[int]:
    """Return the replicas whose ranks have all ended with exit code 0 before a signal came to their launcher."""
    name, has_pre_stop = trainer_container(snap.job), _has_pre_stop(snap.job)
    found = set()
    for member in membership.members:
        pod, launch = snap.pod(member.pod_name), launch_status(snap, member.pod_uid)
        if has_pre_stop and _is_ended_from_outside(pod):
            continue  # the hook runs before the signal, and may be what has ended the ranks
        trainer = pod.containers.get(name) if pod else None
        if (trainer is not None and trainer.exit_code == 0) or _all_ended_well(snap.job, membership, launch):
            found.add(member.replica)
    return found


def _all_ended_well(job: TrainingJob, membership: Membership, launch: LaunchStatus | None) -> bool:
    # While it is stopping or has stopped, a launcher lists the ranks of the generation before.
    return (
        launch is not None
        and launch.generation == membership.generation
        and launch.state == "Exited"
        and not launch.error
        and len(launch.ranks) == processes_per_pod(job)
        and all(rank.state == "Exited" and rank.exit_code == 0 for rank in launch.ranks)
    )


def _has_pre_stop(job: TrainingJob) -> bool:
    name = trainer_container(job)
    containers = job.spec.template["spec"]["containers"]
    lifecycle = next((each.get("lifecycle") for each in containers if each.get("name") == name), None)
    return bool((lifecycle or {}).get("preStop"))


def _is_ended_from_outside(pod: PodView | None) -> bool:
    return pod is None or pod.deleting or bool(pod.disruption) or pod.phase == "Failed"


def _is_durable(snap: Snapshot, membership: Membership, member: Member) -> bool:
    """Check whether what the member saved in memory is durable.

    A pod that a signal has ended may have left copies behind, even if its ranks had ended well. Its launcher's exit
    code is then not 0, and the last report has to say that nothing is left.
    """
    pod = snap.pod(member.pod_name)
    trainer = pod.containers.get(trainer_container(snap.job)) if pod else None
    if snap.job.spec.checkpoint.directory is None or (trainer is not None and trainer.exit_code == 0):
        return True
    report = directory(snap, member.pod_uid)
    return report is not None and report.is_durable(membership.generation)
