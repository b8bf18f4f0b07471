"""Handle a job without training: not accepted, not admitted, suspended, released, succeeded, failed, ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.times import FINISH_SECONDS
from falcon_operator.api.trainingjob import TrainingJobStatus
from falcon_operator.api.trainingrun import End, Held
from falcon_operator.base.effects import ChangeClaims, DeleteJob, DeletePod, Effect, PublishPlan
from falcon_operator.base.ports import PodView
from falcon_operator.base.time_format import timestamp
from falcon_operator.intent.model.intent import Intent, close_open_incidents, give_up_pods, unused_claims
from falcon_operator.intent.model.policy import policy_of
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import job_observation
from falcon_operator.intent.placement import gang
from falcon_operator.status.conditions import Finding, put
from falcon_operator.status.diagnoses import diagnoses
from falcon_operator.status.limits import fit
from falcon_operator.status.render import counters
from falcon_operator.status.text.elastic import size_without_pods

LOOK_SECONDS = 2.0
RETRY_SECONDS = 30.0  # a quota or an admission policy may change without the job's doing
SOON_SECONDS = 5.0  # an object of the job's name is removed by a person, a webhook comes back
FAILED_EXIT_CODE = 1
replace = msgspec.structs.replace


class Inactive(msgspec.Struct, frozen=True, kw_only=True):
    """An intent, its status, the effects that they ask for, and when to look again."""

    intent: Intent
    status: TrainingJobStatus
    effects: list[Effect] = []
    again_seconds: float | None = None


def deadline(snap: Snapshot, intent: Intent) -> float | None:
    """Return the seconds until ``activeDeadlineSeconds`` has passed; None without a deadline, or before the start."""
    limit = snap.job.spec.active_deadline_seconds
    if limit is None or not intent.started_at:
        return None
    return intent.started_at + limit - snap.now


def _quiet(
    snap: Snapshot,
    intent: Intent,
    state: Literal["Pending", "Suspended", "Succeeded", "Failed"],
    summary: str,
    findings: list[Finding],
) -> TrainingJobStatus:
    """Return a status in which nothing trains: measured figures stay, figures of the running job are emptied."""
    before, job = snap.job.status, snap.job
    total = (len(intent.membership.members) or job.spec.replicas) * job.spec.procs_per_replica
    return fit(
        replace(
            before,
            observed_generation=job.metadata.generation,
            state=state,
            summary=summary,
            ready=f"0/{total}",
            iteration="",
            elastic=size_without_pods(job),
            group=None,
            iterations=replace(before.iterations, current_microseconds=None),
            counters=counters(intent),
            start_time=timestamp(intent.started_at) if intent.started_at else "",
            completion_time=timestamp(intent.end.at) if intent.end else "",
            diagnoses=diagnoses(intent, policy_of(job, snap.settings, len(intent.membership.members)), None),
            conditions=put(before.conditions, findings, now=snap.now, observed_generation=job.metadata.generation),
        )
    )


def _all_false(reason: str, message: str, *types: str) -> list[Finding]:
    return [Finding(type_, False, reason, message) for type_ in types]


def invalid(snap: Snapshot, intent: Intent) -> Inactive:
    """Refuse a spec that cannot run. The job does not end: a corrected spec is looked at again."""
    message = "; ".join(snap.problems)
    findings = [
        Finding("Ready", False, "InvalidSpec", message),
        Finding("Accepted", False, "InvalidSpec", message, shown=True),
    ]
    status = _quiet(snap, intent, "Pending", f"the spec cannot run: {message}", findings)
    return Inactive(intent=intent, status=status, again_seconds=RETRY_SECONDS)


def hindered(snap: Snapshot, intent: Intent) -> Inactive:
    """Wait for what the cluster refuses now and may admit later: a quota, a ServiceAccount, an admission webhook.

    So too for the end of another object that has one of the job's names.
    """
    reason = snap.hindrance_reason
    refusal = "" if reason == "NameTaken" else "the API server does not admit the job's pods at present: "
    message = refusal + snap.hindrance
    status = _quiet(snap, intent, "Pending", message, [Finding("Ready", False, reason, message)])
    again = RETRY_SECONDS if reason == "NotAdmitted" else SOON_SECONDS
    return Inactive(intent=intent, status=status, again_seconds=again)


def suspended(snap: Snapshot, intent: Intent) -> Inactive:
    """Run no pods while ``spec.suspend`` is true; the job goes on with a new generation afterwards."""
    message = "spec.suspend is true: no pods; the job goes on from its last checkpoint when it is false"
    return _without_pods(snap, intent, "Suspended", "suspended (spec.suspend)", message)


def held(snap: Snapshot, intent: Intent, why: Held) -> Inactive:
    """Run no pods until a person has changed the spec of a job whose failure came again or lies outside it."""
    message = (
        f"{why.message} spec.recovery.onRepeated is Suspend: no pods. Set spec.suspend to true, mend the job, and set"
        " it to false: the job goes on from its last checkpoint"
    )
    return _without_pods(snap, intent, why.reason, f"waits for a person: {why.message}", message)


def _without_pods(snap: Snapshot, intent: Intent, reason: str, brief: str, message: str) -> Inactive:
    if intent.membership.members or intent.started_at:
        intent = give_up_pods(close_open_incidents(intent, "Suspended", snap.now), snap.now)
        # What was measured and counted belongs to the shape and the template that may now change.
        levels = replace(intent.recovery.levels, healthy_ns=None, settled=None, slowest=None)
        recovery = replace(
            intent.recovery, levels=levels, habits=replace(intent.recovery.habits, repeats=[], outage=None), attempts=[]
        )
        intent = replace(intent, recovery=recovery, started_at=0.0)
    # Processes may save for as long as their grace period lasts, so the state says that they are still ending.
    left = [pod for pod in snap.pods if not _is_terminal(pod)]
    summary = f"suspended; {len(left)} pods are still ending" if left else brief
    findings = [
        Finding("Suspended", True, reason, message),
        *_all_false("Suspended", message, "Ready", "Degraded", "Recovering", "AgentLost", "Elastic"),
    ]
    effects: list[Effect] = [DeletePod(pod) for pod in snap.pods if not pod.deleting]
    # A job without pods needs no spares: other jobs may claim them.
    effects += _give_back(snap, None)
    return Inactive(
        intent=intent,
        status=_quiet(snap, intent, "Suspended", summary, findings),
        effects=effects,
        again_seconds=LOOK_SECONDS if left else None,
    )


def released(snap: Snapshot, intent: Intent) -> Inactive:
    """Hold no node while a gang that could not be placed in time waits for its next attempt."""
    limit = snap.job.spec.scheduling_deadline_seconds
    at = timestamp(intent.gang.retry_at)
    message = (
        f"not all {snap.job.spec.replicas} pods found a node within {limit} s (spec.schedulingDeadlineSeconds): all"
        f" were released; attempt {intent.gang.releases + 1} at {at}. Free nodes, or lower the resources that"
        " spec.template asks for"
    )
    findings = [
        Finding("Ready", False, "Unschedulable", message),
        *_all_false("Released", message, "Recovering", "Elastic"),
    ]
    summary = f"not all pods found a node within {limit} s: all released; attempt {intent.gang.releases + 1} at {at}"
    effects: list[Effect] = [DeletePod(pod) for pod in snap.pods if not pod.deleting]
    return Inactive(
        intent=intent,
        status=_quiet(snap, intent, "Pending", summary, findings),
        effects=[*effects, *_give_back(snap, intent)],
        again_seconds=max(1.0, min(30.0, intent.gang.retry_at - snap.now)),
    )


def succeeded(snap: Snapshot, intent: Intent) -> Inactive:
    """End a job whose ranks all ended with exit code 0."""
    message = f"all ranks exited with code 0 in generation {intent.membership.generation}"
    return _over(snap, intent, End(at=snap.now, succeeded=True, reason="Succeeded", message=message))


def failed(snap: Snapshot, intent: Intent, reason: str, message: str) -> Inactive:
    """End the job as failed. Its pods end with a failing exit code and stay, so that their logs can be read."""
    return _over(snap, intent, End(at=snap.now, succeeded=False, reason=reason, message=message))


def _over(snap: Snapshot, intent: Intent, end: End) -> Inactive:
    intent = close_open_incidents(intent, "Ended", snap.now)
    membership = replace(intent.membership, phase="Finish", since=snap.now, replacements=[])
    intent = replace(intent, membership=membership, end=end)
    type_: Literal["Succeeded", "Failed"] = "Succeeded" if end.succeeded else "Failed"
    findings = [
        Finding(type_, True, end.reason, end.message),
        *_all_false(end.reason, end.message, "Ready", "Degraded", "Recovering", "AgentLost", "Elastic"),
    ]
    return _ended(snap, intent, end, _quiet(snap, intent, type_, end.message, findings))


def after(snap: Snapshot, intent: Intent) -> Inactive:
    """End the launchers of a job that is over, and delete pods that do not end.

    The job itself is deleted when its ``ttlSecondsAfterFinished`` has passed.
    """
    assert intent.end is not None  # the caller has looked
    status = snap.job.status
    if not status.completion_time:  # the operator died between its two writes
        return _over(snap, intent, intent.end)
    return _ended(snap, intent, intent.end, status)


def _ended(snap: Snapshot, intent: Intent, end: End, status: TrainingJobStatus) -> Inactive:
    since = snap.now - end.at
    left = [pod for pod in snap.pods if not _is_terminal(pod) and not pod.deleting]
    effects = [*_endings(snap, intent, end, left), *_give_back(snap, None)]
    again = LOOK_SECONDS if left else None
    ttl = snap.job.spec.ttl_seconds_after_finished
    if ttl is None:
        return Inactive(intent=intent, status=status, effects=effects, again_seconds=again)
    if since >= ttl:
        return Inactive(intent=intent, status=status, effects=[*effects, DeleteJob()])
    return Inactive(intent=intent, status=status, effects=effects, again_seconds=min(again or ttl, ttl - since))


def _endings(snap: Snapshot, intent: Intent, end: End, left: list[PodView]) -> list[Effect]:
    """Order the launchers to end the pods that are left, and delete the pods that do not end."""
    members = {member.pod_name for member in intent.membership.members}
    plan: list[Effect] = []
    if members and left:
        plan = [PublishPlan(gang.plan(snap, intent, 0 if end.succeeded else FAILED_EXIT_CODE))]
    late = snap.now - end.at > FINISH_SECONDS
    # A launcher gets time to end its ranks by itself. In a pod without one no process reads the order.
    deletions = [
        DeletePod(pod)
        for pod in left
        if late or pod.name not in members or job_observation.launch_status(snap, pod.uid) is None
    ]
    return [*plan, *deletions]


def _give_back(snap: Snapshot, intent: Intent | None) -> list[Effect]:
    """Give back the spares that the job does not use any more."""
    unused = unused_claims(snap.job, intent, snap.pods, snap.pool)
    return [ChangeClaims(release=unused)] if unused else []


def _is_terminal(pod: PodView) -> bool:
    return pod.phase in ("Succeeded", "Failed")
