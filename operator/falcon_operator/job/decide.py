"""One look at one job: snapshot → the status to write, the effects to carry out, the events to tell.

The status comes first: it holds the intent from which each effect is derived, so an operator that dies between the two
derives the same effects again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.recovery import machine
from falcon_core.recovery.failslow import next_step
from falcon_core.recovery.observation import Action, GiveUp, HangClosed, SlowClosed, StopClosed
from falcon_core.recovery.witness import assess_liveness
from falcon_operator.api import DiagnosisStatus, TrainingJobStatus
from falcon_operator.effects import (
    ClaimSpare,
    CreatePod,
    DeletePod,
    Effect,
    EnsureGroundwork,
    Event,
    PublishPlan,
)
from falcon_operator.intent import exclusion, gang, last_resort, observe
from falcon_operator.intent import intent as intents
from falcon_operator.intent.intent import Intent, unused_claims
from falcon_operator.intent.snapshot import Snapshot
from falcon_operator.job import inactive
from falcon_operator.manifests import validation
from falcon_operator.manifests.pods import build_pod
from falcon_operator.manifests.service import build_service
from falcon_operator.status import diagnoses, hang_diagnosis, render
from falcon_operator.status.events import turning_points
from falcon_operator.times import timestamp

LOOK_SECONDS = 2.0  # while it runs: losses accumulate and deadlines pass also when nothing happens
GATHER_SECONDS = 1.0
LEAVE_SECONDS = 15.0  # a pod that is to go may acknowledge first; then it is deleted whatever it says
replace = msgspec.structs.replace


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What one look concludes."""

    status: TrainingJobStatus
    effects: list[Effect] = []
    events: list[Event] = []
    again_seconds: float | None = None  # look again after, if nothing happens before; None: no need


def decide(snap: Snapshot) -> Decision:
    """The whole decision."""
    job = snap.job
    before = job.status
    if job.metadata.deletion_timestamp:
        return Decision(status=before)  # owner references do the rest
    if inactive.is_over(before):
        return _conclude(snap, before, inactive.after(snap))
    if job.spec.suspend:
        return _conclude(snap, before, inactive.suspended(snap))
    intent = intents.stored(before)
    if snap.problems and (intent is None or not intent.generation.members):
        return _conclude(snap, before, inactive.invalid(snap))
    deadline = inactive.deadline(snap)
    if deadline is not None and deadline <= 0:
        message = f"spec.activeDeadlineSeconds ({job.spec.active_deadline_seconds} s) has passed"
        return _conclude(snap, before, inactive.failed(snap, intent, "DeadlineExceeded", message))
    decision = _live(snap, before, intent)
    if deadline is not None and decision.again_seconds is not None:
        decision = replace(decision, again_seconds=min(decision.again_seconds, deadline))
    return decision


def _conclude(snap: Snapshot, before: TrainingJobStatus, end: inactive.Ending) -> Decision:
    return Decision(
        status=end.status,
        effects=end.effects,
        events=turning_points(before, end.status, []),
        again_seconds=end.again_seconds,
    )


def _live(snap: Snapshot, before: TrainingJobStatus, intent: Intent | None) -> Decision:
    """A job that is to run: recover, gather, run."""
    job, now = snap.job, snap.now
    started = before.start_time or timestamp(now)
    before_start = replace(before, start_time=started)
    if intent is None or not intent.generation.members:
        if intent is not None and now < intent.state.gang.retry_at:
            return _released(snap, before_start, intent)
        intent = intents.begin(job, intent, now)
    intent = intents.adopt(intent, snap)
    rules = observe.policy(job)
    obs = observe.observe(snap, intent)
    members = intent.generation.members
    state, actions = machine.step(intent.state, obs, rules)
    intent = replace(intent, state=state)
    told = _close_notes(before.diagnoses, intent, actions, snap)
    given_up = next((action for action in actions if isinstance(action, GiveUp)), None)
    if given_up is not None:
        end = inactive.failed(snap, intent, "RecoveryExhausted", given_up.message, told)
        return replace(_conclude(snap, before, end), events=turning_points(before, end.status, actions))
    intent = exclusion.fence_lost_nodes(intents.apply(intent, actions, snap), actions, members)
    intent = exclusion.readmit(snap, exclusion.apply_burn_in_results(snap, intent))
    intent = last_resort.reuse_departed_node(snap, intent, rules)
    if observe.finished(snap, intent.generation):
        end = inactive.succeeded(snap, intent, exclusion.annotate(told, intent))
        return _conclude(snap, before, end)
    intent = gang.advance(snap, intent, gang.gather(snap, intent))
    if not intent.generation.members:
        return _released(snap, before_start, intent)
    for note in (
        diagnoses.stop_note(intent.state.stop) if intent.state.stop else None,
        hang_diagnosis.hang_note(intent.state.hang) if intent.state.hang else None,
        diagnoses.slow_note(intent.state.slow, intent, rules, next_step(intent.state, obs, rules))
        if intent.state.slow
        else None,
    ):
        told = diagnoses.upsert(told, note) if note is not None else told
    told = exclusion.annotate(told, intent)
    obs = observe.observe(snap, intent)
    view = render.View(
        snap=snap,
        intent=intent,
        obs=obs,
        live=assess_liveness(obs, intent.state.stop),
        gathering=gang.gather(snap, intent),
    )
    state_word = render.state_of(view)
    after = render.render(view, before_start, state_word, render.summary_of(view, state_word))
    after = replace(after, diagnoses=told)
    return Decision(
        status=after,
        effects=_effects(snap, intent, told),
        events=[*_warnings(snap), *turning_points(before, after, actions)],
        again_seconds=LOOK_SECONDS if intent.generation.phase == "Run" else GATHER_SECONDS,
    )


def _warnings(snap: Snapshot) -> list[Event]:
    """What the spec asks for and will not get, told once at the job's start."""
    if snap.job.status.generation is not None:
        return []
    return [Event("Warning", "SpecNote", str(note)) for note in validation.notes(snap.job)]


def _released(snap: Snapshot, before: TrainingJobStatus, intent: Intent) -> Decision:
    """A gang that gave its nodes back waits for its next attempt."""
    end = inactive.released(snap, before, intent)
    return replace(
        _conclude(snap, before, end), again_seconds=max(1.0, min(30.0, intent.state.gang.retry_at - snap.now))
    )


def _close_notes(
    told: Sequence[DiagnosisStatus], intent: Intent, actions: Sequence[Action], snap: Snapshot
) -> list[DiagnosisStatus]:
    """The notes of incidents that ended with this look."""
    result = list(told)
    for action in actions:
        if isinstance(action, StopClosed):
            result = diagnoses.upsert(result, diagnoses.stop_closed(action, snap.now))
        elif isinstance(action, HangClosed):
            result = diagnoses.upsert(result, hang_diagnosis.hang_closed(action, snap.now))
        elif isinstance(action, SlowClosed):
            note = diagnoses.slow_note(action.incident, intent, observe.policy(snap.job), None)
            if note is not None:
                result = diagnoses.upsert(result, diagnoses.slow_closed(note, action, snap.now))
    return result


def _effects(snap: Snapshot, intent: Intent, told: Sequence[DiagnosisStatus]) -> list[Effect]:
    wanted: list[Effect] = [EnsureGroundwork(build_service(snap.job))]
    wanted.append(PublishPlan(gang.plan(snap.job, intent.generation)))
    wanted += _claims(snap, intent)
    wanted += _creations(snap, intent)
    wanted += _deletions(snap, intent)
    wanted += exclusion.effects(snap, intent, told)
    return wanted


def _claims(snap: Snapshot, intent: Intent) -> list[Effect]:
    """Claim what a replacement has named; give back what an abandoned one held."""
    wanted: list[Effect] = [
        ClaimSpare(one.pool, one.claim_key)
        for one in intent.state.replacements
        if one.claim_key and not one.node and observe.spares(snap, intent).available
    ]
    return [*wanted, *unused_claims(snap, intent)]


def _creations(snap: Snapshot, intent: Intent) -> list[Effect]:
    """Pods that are named and do not exist yet. One that waits for a spare waits."""
    wanted: list[Effect] = []
    for member in intent.generation.members:
        moved = intent.replacement(member.replica)
        moved = moved if moved is not None and moved.pod_name == member.pod_name else None
        if member.pod_uid or snap.pod(member.pod_name) or (moved is not None and moved.pool and not moved.node):
            continue
        wanted.append(
            CreatePod(build_pod(snap.job, member, snap.settings, excluded=intent.excluded, replacement=moved))
        )
    for moved in intent.state.replacements:
        if not moved.prepared or snap.pod(moved.pod_name) or (moved.pool and not moved.node):
            continue
        member = replace(intent.generation.members[moved.replica], pod_name=moved.pod_name, pod_uid="", node=moved.node)
        wanted.append(
            CreatePod(build_pod(snap.job, member, snap.settings, excluded=intent.excluded, replacement=moved))
        )
    return wanted


def _deletions(snap: Snapshot, intent: Intent) -> list[Effect]:
    """Pods that belong to nobody: at once where nothing in them can be cut short, else after they had time to stop."""
    generation = intent.generation
    age = snap.now - intent.state.gang.since
    wanted: list[Effect] = []
    for pod in gang.leavers(snap, intent):
        launch = observe.launch_status(snap, pod.uid)
        stopped = (
            generation.phase == "Run"
            or observe.over(snap.job, pod)
            or launch is None
            or pod.uid in intent.state.lost_pods
            or observe.acknowledged(launch, generation.number)
            or observe.alive(snap, pod.uid) is False
        )
        if not pod.deleting and (stopped or age > LEAVE_SECONDS):
            wanted.append(DeletePod(pod))
    return wanted
