"""The quiet states of a job: invalid, suspended, released, succeeded, failed, and the time after its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from falcon_operator.api import Condition, DiagnosisStatus, Generation, TrainingJobStatus
from falcon_operator.effects import DeleteJob, DeletePod, Effect, PublishPlan
from falcon_operator.intent import gang, observe
from falcon_operator.intent import intent as intents
from falcon_operator.intent.intent import Intent
from falcon_operator.intent.snapshot import Snapshot
from falcon_operator.ports import PodView
from falcon_operator.status.render import set_condition
from falcon_operator.times import timestamp, unix_seconds

FINISH_SECONDS = 20.0  # launchers get this long to end by themselves; what is left then is deleted
LOOK_SECONDS = 2.0
INVALID_SECONDS = 30.0  # a quota or an admission policy may change without the job's doing
FAILED_EXIT_CODE = 1
replace = msgspec.structs.replace


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """A status, what it asks for, and when to look again."""

    status: TrainingJobStatus
    effects: list[Effect] = []
    again_seconds: float | None = None


def is_over(status: TrainingJobStatus) -> bool:
    return bool(status.completion_time)


def deadline(snap: Snapshot) -> float | None:
    """Seconds until ``activeDeadlineSeconds`` has passed; None without one, or before the start."""
    limit = snap.job.spec.active_deadline_seconds
    if limit is None or not snap.job.status.start_time:
        return None
    return unix_seconds(snap.job.status.start_time) + limit - snap.now


def _quiet(
    snap: Snapshot, state: Literal["Pending", "Suspended", "Succeeded", "Failed"], summary: str, intent: Intent | None
) -> TrainingJobStatus:
    """A status in which nothing trains; what was measured stays, what moves goes."""
    before = snap.job.status
    total = snap.job.spec.replicas * snap.job.spec.procs_per_replica
    status = replace(
        before,
        observed_generation=snap.job.metadata.generation,
        state=state,
        summary=summary[:1024],
        ready=f"0/{total}",
        iteration="",
        iterations=replace(before.iterations, current_microseconds=None),
    )
    if intent is None:
        return status
    return replace(
        status,
        generation=intent.generation,
        incident=intents.encode_state(intent.state),
        excluded_nodes=intent.excluded,
        counters=intent.counters,
    )


def _conditions(snap: Snapshot, conditions: list[Condition], *changes: tuple[str, bool, str, str]) -> list[Condition]:
    for type_, value, reason, message in changes:
        conditions = set_condition(
            conditions,
            type_,
            value,
            reason,
            message,
            now=snap.now,
            observed_generation=snap.job.metadata.generation,
        )
    return conditions


def invalid(snap: Snapshot) -> Ending:
    """The spec cannot run. It is no end: a better spec is looked at again."""
    message = "; ".join(snap.problems)
    status = _quiet(snap, "Failed", f"the spec cannot run: {message}", intents.stored(snap.job.status))
    conditions = _conditions(
        snap,
        list(status.conditions),
        ("Ready", False, "InvalidSpec", message),
        ("Failed", True, "InvalidSpec", message),
    )
    return Ending(status=replace(status, conditions=conditions), again_seconds=INVALID_SECONDS)


def suspended(snap: Snapshot) -> Ending:
    """No pods while ``spec.suspend`` is true; the next life begins with a new generation."""
    intent = intents.stored(snap.job.status)
    if intent is not None:
        # What was measured and counted belongs to the shape and the template that may now change.
        intent = intents.empty(intent, snap.now)
        intent = replace(intent, state=replace(intent.state, healthy_ns=None, level=None, attempts=[]))
    left = [pod for pod in snap.pods if pod.phase not in ("Succeeded", "Failed")]
    summary = f"suspended; {len(left)} pods are still ending" if left else "suspended (spec.suspend)"
    status = replace(_quiet(snap, "Suspended", summary, intent), start_time="")
    message = "spec.suspend is true: no pods; the job goes on from its last checkpoint when it is false"
    conditions = _conditions(
        snap,
        list(status.conditions),
        ("Ready", False, "Suspended", message),
        ("Suspended", True, "Suspended", message),
        ("Degraded", False, "Suspended", message),
        ("Recovering", False, "Suspended", message),
        ("AgentLost", False, "Suspended", message),
        ("Failed", False, "Suspended", message),
    )
    effects: list[Effect] = [DeletePod(pod) for pod in snap.pods if not pod.deleting]
    effects += intents.unused_claims(snap, None)
    closed = [
        note
        if note.state == "Resolved"
        else replace(note, state="Resolved", next="", result="ended by suspension", resolved_at=timestamp(snap.now))
        for note in status.diagnoses
    ]
    return Ending(
        status=replace(status, conditions=conditions, diagnoses=closed),
        effects=effects,
        again_seconds=LOOK_SECONDS if left else None,
    )


def released(snap: Snapshot, before: TrainingJobStatus, intent: Intent) -> Ending:
    """A gang that could not be placed in time holds no node while it waits for its next attempt."""
    gang_state = intent.state.gang
    limit = snap.job.spec.scheduling_deadline_seconds
    message = (
        f"not all {snap.job.spec.replicas} pods found a node within {limit} s (spec.schedulingDeadlineSeconds): all"
        f" were released; attempt {gang_state.releases + 1} at {timestamp(gang_state.retry_at)}. Free nodes, or lower"
        " the resources that spec.template asks for"
    )
    status = replace(_quiet(snap, "Pending", message, intent), start_time=before.start_time)
    conditions = _conditions(
        snap,
        list(status.conditions),
        ("Ready", False, "Unschedulable", message),
        ("Recovering", False, "Released", message),
    )
    effects: list[Effect] = [DeletePod(pod) for pod in snap.pods if not pod.deleting]
    return Ending(
        status=replace(status, conditions=conditions), effects=[*effects, *intents.unused_claims(snap, intent)]
    )


def succeeded(snap: Snapshot, intent: Intent, told: Sequence[DiagnosisStatus]) -> Ending:
    """All ranks ended with exit code 0."""
    iterations = snap.job.status.iterations.count
    message = f"all ranks exited with code 0 in generation {intent.generation.number}"
    ended = _finish(intent)
    status = _quiet(snap, "Succeeded", message, ended)
    status = replace(
        status,
        completion_time=timestamp(snap.now),
        iterations=replace(status.iterations, count=iterations),
        diagnoses=_all_closed(snap, told, "the job ended first"),
        conditions=_conditions(
            snap,
            list(status.conditions),
            ("Ready", False, "Succeeded", message),
            ("Succeeded", True, "Succeeded", message),
            ("Degraded", False, "Succeeded", message),
            ("Recovering", False, "Succeeded", message),
            ("AgentLost", False, "Succeeded", message),
        ),
    )
    return _ended(snap, status, ended.generation, 0)


def failed(
    snap: Snapshot,
    intent: Intent | None,
    reason: str,
    message: str,
    told: Sequence[DiagnosisStatus] | None = None,
) -> Ending:
    """The job is given up; its pods end with a failing exit code and stay for their logs."""
    ended = _finish(intent) if intent is not None else None
    status = _quiet(snap, "Failed", message, ended)
    status = replace(
        status,
        completion_time=timestamp(snap.now),
        diagnoses=_all_closed(snap, snap.job.status.diagnoses if told is None else told, "the job was given up"),
        conditions=_conditions(
            snap,
            list(status.conditions),
            ("Ready", False, reason, message),
            ("Failed", True, reason, message),
            ("Degraded", False, reason, message),
            ("Recovering", False, reason, message),
            ("AgentLost", False, reason, message),
        ),
    )
    return _ended(snap, status, ended.generation if ended else None, FAILED_EXIT_CODE)


def _finish(intent: Intent) -> Intent:
    return replace(
        intent,
        generation=replace(intent.generation, phase="Finish"),
        state=replace(intent.state, slow=None, stop=None, replacements=[]),
    )


def _all_closed(snap: Snapshot, told: Sequence[DiagnosisStatus], result: str) -> list[DiagnosisStatus]:
    return [
        note
        if note.state == "Resolved"
        else replace(note, state="Resolved", next="", result=result, resolved_at=timestamp(snap.now))
        for note in told
    ]


def after(snap: Snapshot) -> Ending:
    """The job is over: let its launchers end, remove what does not, and the job itself when its time is up."""
    status = snap.job.status
    code = 0 if status.state == "Succeeded" else FAILED_EXIT_CODE
    return _ended(snap, status, status.generation, code)


def _ended(snap: Snapshot, status: TrainingJobStatus, generation: Generation | None, exit_code: int) -> Ending:
    since = snap.now - unix_seconds(status.completion_time)
    left = [pod for pod in snap.pods if not _is_terminal(pod) and not pod.deleting]
    effects: list[Effect] = []
    if generation is not None and generation.members and left:
        effects.append(PublishPlan(gang.plan(snap.job, generation, exit_code)))
    members = {member.pod_name for member in generation.members} if generation else set()
    effects += [
        DeletePod(pod)
        for pod in left
        if since > FINISH_SECONDS or pod.name not in members or observe.launch_status(snap, pod.uid) is None
    ]
    effects += intents.unused_claims(snap, None)
    ttl = snap.job.spec.ttl_seconds_after_finished
    again = LOOK_SECONDS if left else None
    if ttl is not None:
        remaining = ttl - since
        if remaining <= 0:
            return Ending(status=status, effects=[*effects, DeleteJob()])
        again = min(again or remaining, remaining)
    return Ending(status=status, effects=effects, again_seconds=again)


def _is_terminal(pod: PodView) -> bool:
    return pod.phase in ("Succeeded", "Failed")
