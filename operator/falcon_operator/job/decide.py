"""Decide about one job in one look: snapshot → intent to store, status to show, effects to carry out, Events.

There is one sequence: recover → exclude → gather → check → render → effects. Each result is computed once and passed
on. The intent is written first, since each effect is derived from it: an operator that dies after that write derives
the same effects again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.recovery import (
    Command,
    GiveUp,
    HangClosed,
    Member,
    Membership,
    MoveClosed,
    Observation,
    Policy,
    Probe,
    Replacement,
    RetriesClosed,
    SlowClosed,
    StandbyPod,
    StopClosed,
    apply_actions,
)
from falcon_core.recovery import Event as RecoveryEvent
from falcon_core.recovery import Look as RecoveryLook
from falcon_core.recovery.detail_requests import wanted_detail
from falcon_core.recovery.idle import is_quiet
from falcon_core.recovery.views import assess_liveness, next_step, probe_controller
from falcon_core.times import KUBELET_SECONDS, LEAVE_SECONDS
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_operator.api.trainingjob import TrainingJobStatus
from falcon_operator.api.trainingrun import ClosedIncident, Held
from falcon_operator.base.effects import (
    AskDetail,
    ChangeClaims,
    CreatePod,
    DeletePod,
    Effect,
    EnsureGroundwork,
    Event,
    OrderMicrobatches,
    OrderProbe,
    PublishImports,
    PublishPeers,
    PublishPlan,
)
from falcon_operator.intent import copies, elastic, finish, on_demand, restored_ranks
from falcon_operator.intent.model.intent import (
    Intent,
    JobNames,
    adopt,
    begin,
    remember,
    unused_claims,
)
from falcon_operator.intent.model.policy import policy_of
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import job_observation
from falcon_operator.intent.observation.pod_ends import over
from falcon_operator.intent.placement import exclusion, gang, last_resort, preflight, smoke_test, standby_pods
from falcon_operator.intent.rebuild import rebuild
from falcon_operator.job import inactive
from falcon_operator.manifests import validation
from falcon_operator.manifests.pods import build_pod
from falcon_operator.manifests.service import build_service
from falcon_operator.status.events import Look, turning_points
from falcon_operator.status.render import render
from falcon_operator.status.view import View

LOOK_SECONDS = 2.0  # while it runs: losses accumulate and deadlines pass also when nothing happens
QUIET_SECONDS = 5.0  # while it runs, and is well
GATHER_SECONDS = 1.0
PROBE_SECONDS = 0.5  # while ranks stand still, or are about to
replace = msgspec.structs.replace


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one look. ``intent`` None: nothing is known yet, and nothing is written."""

    intent: Intent | None
    status: TrainingJobStatus
    effects: list[Effect] = []
    events: list[Event] = []
    again_seconds: float | None = None  # look again after, if nothing happens before; None: no need


def decide(snap: Snapshot) -> Decision:
    """Decide about one job."""
    job = snap.job
    if job.metadata.deletion_timestamp:
        return Decision(intent=None, status=job.status)  # owner references do the rest
    # Without a stored intent there may still be pods that train: derive the intent from them instead of starting
    # from nothing.
    intent = snap.intent if snap.intent is not None else rebuild(snap)
    if intent is None:
        return Decision(intent=None, status=job.status, again_seconds=GATHER_SECONDS)
    # A job that waits for a person waits until its spec changes.
    if intent.held is not None and intent.held.job_generation != job.metadata.generation:
        intent = replace(intent, held=None)
    rest = _without_pods(snap, intent)
    if rest is not None:
        return _conclude(snap, intent, rest)
    if job.spec.suspend:
        # A suspension is planned, so the ranks get the time to save first.
        asked, waits = on_demand.before_restart(snap, intent)
        return _live(snap, asked) if waits else _conclude(snap, intent, inactive.suspended(snap, asked))
    # The deadline holds for running jobs only, so it comes after all states without pods.
    deadline = inactive.deadline(snap, intent)
    if deadline is not None and deadline <= 0:
        message = f"spec.activeDeadlineSeconds ({job.spec.active_deadline_seconds} s) has passed"
        return _conclude(snap, intent, inactive.failed(snap, intent, "DeadlineExceeded", message))
    decision = _live(snap, intent)
    if deadline is not None and decision.again_seconds is not None:
        # No event marks the deadline, so the next look must not come later than it.
        decision = replace(decision, again_seconds=min(decision.again_seconds, deadline))
    return decision


def _without_pods(snap: Snapshot, intent: Intent) -> inactive.Inactive | None:
    """Return what becomes of a job that has ended, waits for a person, or cannot begin; None where it may run."""
    # A job that has ended stays so, whatever its spec or its pods are now.
    if intent.end is not None:
        return inactive.after(snap, intent)
    if intent.held is not None:
        return inactive.held(snap, intent, intent.held)
    # A spec that cannot run stops no job that runs already: its pods have the older template.
    if snap.job.spec.suspend or intent.membership.members:
        return None
    if snap.problems:
        return inactive.invalid(snap, intent)
    return inactive.hindered(snap, intent) if snap.hindrance else None


def _conclude(snap: Snapshot, before: Intent, rest: inactive.Inactive, commands: Sequence[Command] = ()) -> Decision:
    return Decision(
        intent=rest.intent,
        status=rest.status,
        effects=rest.effects,
        events=turning_points(Look(before, snap.job.status), Look(rest.intent, rest.status), commands),
        again_seconds=rest.again_seconds,
    )


def _live(snap: Snapshot, before: Intent) -> Decision:
    """Decide about a job that is to run."""
    intent = before
    if not intent.membership.members:
        # A gang that found no room gives its nodes back and waits before it tries again.
        if snap.now < intent.gang.retry_at:
            return _conclude(snap, before, inactive.released(snap, intent))
        intent = begin(snap.job, intent, snap.now)
        snap = replace(snap, phase_seen_at=snap.monotonic)  # what was seen so far is the pause before this generation
    intent = elastic.look(snap, standby_pods.look(snap, adopt(intent, snap.pods_by_name, snap.pool)))
    intent = finish.remember_done(snap, intent)  # first: the end of a pod whose ranks are done is no failure
    policy = policy_of(snap.job, snap.settings, len(intent.membership.members))
    # From here on everything is decided from one observation of the pods and reports.
    obs = on_demand.with_checkpoints(job_observation.observe(snap, intent.membership), snap, intent.membership)
    intent, commands = _recover(snap, intent, obs, policy)
    # Giving up ends the job, so nothing that the other commands prepare is needed any more.
    given_up = next((command for command in commands if isinstance(command, GiveUp)), None)
    if given_up is not None and given_up.waits:
        held = Held(
            at=snap.now,
            message=given_up.message,
            job_generation=snap.job.metadata.generation,
            reason=given_up.reason,
        )
        return _conclude(snap, before, inactive.held(snap, replace(intent, held=held), held), commands)
    if given_up is not None:
        return _conclude(snap, before, inactive.failed(snap, intent, given_up.reason, given_up.message), commands)
    snap = _in_phase(snap, intent, before)
    # The recovery has evicted nodes: exclude them before new pods choose their nodes.
    intent = _exclude(snap, intent, policy)
    intent = elastic.ask(snap, intent, before.membership.excluded_nodes, enforce=policy.enforce)
    sized = elastic.resize(snap, intent, obs, policy)
    if sized.membership.members != intent.membership.members:
        # The ranks have other numbers from here on.
        policy = policy_of(snap.job, snap.settings, len(sized.membership.members))
        obs = job_observation.observe(snap, sized.membership)
    intent = sized
    if finish.finished(intent.membership):
        return _conclude(snap, before, inactive.succeeded(snap, intent), commands)
    snap = _in_phase(snap, intent, before)
    gathering = gang.gather(snap, intent)
    # A check may exchange a node, and a start must know that: so both checks come before ``advance``.
    intent, gathering = preflight.check(snap, intent, gathering, obs.spares, policy.judge)
    intent, gathering = smoke_test.check(snap, intent, gathering, obs.spares, policy.judge)
    intent = gang.advance(snap, intent, gathering)
    if not intent.membership.members:
        return _conclude(snap, before, inactive.released(snap, intent), commands)
    # What people read describes the members after this look, not before it.
    obs = _after(obs, intent)
    view = View(
        snap=snap,
        intent=intent,
        policy=policy,
        obs=obs,
        live=assess_liveness(obs, intent.recovery.stop),
        gathering=gathering,
    )
    status = render(view, next_step(intent.recovery, RecoveryLook(obs, policy)))
    events = turning_points(Look(before, snap.job.status), Look(intent, status), commands)
    return Decision(
        intent=intent,
        status=status,
        effects=[
            *_effects(snap, intent),
            AskDetail(intent.membership.generation, wanted_detail(intent.recovery, RecoveryLook(obs, policy))),
            *_orders(intent),
        ],
        events=[*_warnings(snap, before), *events],
        again_seconds=_again_seconds(intent, obs),
    )


def _in_phase(snap: Snapshot, intent: Intent, before: Intent) -> Snapshot:
    """Return the snapshot with the age of the phase that the job is in now, which may have begun in this look."""
    now, then = intent.membership, before.membership
    is_new = (now.generation, now.phase) != (then.generation, then.phase)
    return replace(snap, phase_seen_at=snap.monotonic) if is_new else snap


def _again_seconds(intent: Intent, obs: Observation) -> float:
    if intent.membership.phase != "Run":
        return GATHER_SECONDS
    if intent.recovery.probe is not None:
        return PROBE_SECONDS
    # A node whose agent fell silent just now is lost or not within seconds: the kubelet's word is awaited.
    if any(member.alive is False and member.silent_seconds < KUBELET_SECONDS for member in obs.members):
        return KUBELET_SECONDS / 3
    is_settled = not intent.membership.exclusions and not intent.membership.replacements
    return QUIET_SECONDS if is_settled and is_quiet(intent.recovery, obs) else LOOK_SECONDS


# -- recover ---------------------------------------------------------------------------------------------------------


def _recover(snap: Snapshot, intent: Intent, obs: Observation, policy: Policy) -> tuple[Intent, list[Command]]:
    """Run one step of the recovery's ladders, and apply their commands to the intent."""
    intent, step = on_demand.recover(snap, intent, obs, policy)
    # A closed incident leaves the recovery's state. It is kept in the history, with how the ranks were restored.
    closed = [incident for event in step.events if (incident := _closed(event, snap.now)) is not None]
    restore = restored_ranks.restored(snap, intent.membership)
    closed = [
        replace(each, restore=restore) if each.outcome == "Resumed" and each.retry is None else each for each in closed
    ]
    intent = remember(replace(intent, recovery=step.state), closed)
    # The nodes as they were before the commands: a fence belongs to the node that the member had.
    seats = intent.membership.members
    membership = apply_actions(intent.membership, step.commands, JobNames(snap.job), snap.now)
    # A new generation needs a rendezvous of its own: processes of the old one may still hold the port.
    if membership.generation != intent.membership.generation:
        intent = replace(intent, master_addr="", master_port=0)
    intent = replace(intent, membership=membership)
    return exclusion.fence_lost_nodes(intent, step.commands, seats, snap.now), step.commands


def _closed(event: RecoveryEvent, now: float) -> ClosedIncident | None:
    """Return the incident that the event closes; None for a slowdown without a number."""
    match event:
        case StopClosed(incident=stop, resumed=resumed, seconds=seconds):
            return ClosedIncident(at=now, outcome="Resumed" if resumed else "GivenUp", stop=stop, seconds=seconds)
        case HangClosed(incident=hang, moved=moved, seconds=seconds):
            return ClosedIncident(at=now, outcome="Moved" if moved else "Restarted", hang=hang, seconds=seconds)
        case RetriesClosed(incident=retry):
            return ClosedIncident(at=now, outcome="Resumed", retry=retry)
        case MoveClosed(incident=move, seconds=seconds):
            return ClosedIncident(at=now, outcome="Resumed", move=move, seconds=seconds)
        case SlowClosed(incident=slow) if slow.id:
            return ClosedIncident(
                at=now,
                outcome=event.outcome,
                slow=slow,
                iteration_ns=event.iteration_ns,
                cost_seconds=event.cost_seconds,
            )
        case SlowClosed():
            return None


def _exclude(snap: Snapshot, intent: Intent, policy: Policy) -> Intent:
    """Take over what is known of the nodes that the job has left."""
    intent = exclusion.apply_burn_in_results(snap, intent)
    intent = exclusion.readmit(snap, intent)
    return last_resort.find_nodes(snap, intent, policy)


def _after(obs: Observation, intent: Intent) -> Observation:
    """Return the observation to show: after a change of generation or phase, nothing is known of the ranks yet."""
    membership = intent.membership
    running = membership.phase == "Run"
    if (obs.generation, obs.running) == (membership.generation, running):
        return obs
    return replace(obs, generation=membership.generation, running=running, running_seconds=0.0, ranks=[])


# -- effects ---------------------------------------------------------------------------------------------------------


def _warnings(snap: Snapshot, before: Intent) -> list[Event]:
    """Return the job's notes once, at its start: what the spec asks for and will not get."""
    if before.membership.generation:
        return []
    return [Event("Warning", "SpecNote", str(note)) for note in validation.notes(snap.job)]


def _effects(snap: Snapshot, intent: Intent) -> list[Effect]:
    peers = copies.peers(snap, intent.membership, intent.recovery)
    imports = standby_pods.imports(snap, intent.membership)
    return [
        EnsureGroundwork(build_service(snap.job)),
        *([PublishPeers(peers)] if peers is not None else []),  # before the plan: ranks start by it
        PublishPlan(gang.plan(snap, intent)),
        *([PublishImports(imports)] if imports is not None else []),
        *_claims(snap, intent),
        *_creations(snap, intent),
        *_deletions(snap, intent),
        *exclusion.effects(snap, intent),
    ]


def _orders(intent: Intent) -> list[Effect]:
    sharing, probe, generation = intent.recovery.sharing, intent.recovery.probe, intent.membership.generation
    orders: list[Effect] = []
    if sharing is not None and sharing.generation == generation:
        orders.append(OrderMicrobatches(generation, sharing.shares))
    if probe is not None and probe.generation == generation:
        orders.append(OrderProbe(_probe_order(probe)))
    return orders


def _probe_order(probe: Probe) -> ProbeOrder:
    """Return the order of the probe that is on."""
    holds = probe.phase == "Hold"
    return ProbeOrder(
        epoch=0,  # the bus writes this leader's
        generation=probe.generation,
        number=probe.number,
        phase=probe.phase,
        stops=probe.stops if holds else {},
        calls_before=probe.calls_before if holds else {},
        arrive_ms=round(1e3 * probe_controller.arrive_seconds(probe)) if holds else 0,
        deadline_ms=round(1e3 * probe_controller.deadline_seconds(probe)) if holds else 0,
        links=probe_controller.links_order(probe) if holds else None,
    )


def _claims(snap: Snapshot, intent: Intent) -> list[Effect]:
    """Claim the spares that replacements and standby pods have named; give back those that are no longer needed."""
    membership = intent.membership
    holders: list[Replacement | StandbyPod] = [*membership.replacements, *membership.standbys, *membership.joining]
    take = [holder.claim_key for holder in holders if holder.claim_key and not holder.node]
    if not take or not job_observation.unclaimed(snap, membership).available:
        take = []
    release = unused_claims(snap.job, intent, snap.pods, snap.pool)
    return [ChangeClaims(take, release, snap.avoided(membership))] if take or release else []


def _creations(snap: Snapshot, intent: Intent) -> list[Effect]:
    """Create the pods that are named and do not exist yet, except pods whose spare is not claimed yet."""
    membership = intent.membership
    wanted: list[Effect] = []
    for member, holder in _seats(membership):
        if snap.pod(member.pod_name) or (holder is not None and holder.pool and not holder.node):
            continue
        # A prepared pod never lands on the node that it leaves, whatever its tolerations are.
        leaves = [holder.old_node] if isinstance(holder, Replacement) and holder.prepared else []
        excluded = [*membership.excluded_nodes, *leaves]
        manifest = build_pod(snap.job, member, snap.settings, excluded=excluded, replacement=holder)
        wanted.append(CreatePod(manifest))
    return wanted


def _seats(membership: Membership) -> list[tuple[Member, Replacement | StandbyPod | None]]:
    """Return the pods that the job wants and of which no uid is known, with what names their node."""
    # A member that takes over a replacement's pod has its name: then the replacement says which node is meant.
    moves = {move.pod_name: move for move in membership.replacements}
    seats: list[tuple[Member, Replacement | StandbyPod | None]] = [
        (member, moves.get(member.pod_name)) for member in membership.members if not member.pod_uid
    ]
    for move in membership.replacements:
        if move.prepared:
            # The pod of a prepared move exists besides the member's own pod, until the ranks change over.
            before = membership.members[move.replica]
            seats.append((replace(before, pod_name=move.pod_name, pod_uid="", node=move.node), move))
    for standby in (*membership.standbys, *membership.joining):
        if not standby.pod_uid:
            seats.append((Member(replica=standby.number, pod_name=standby.pod_name, node=standby.node), standby))
    return seats


def _deletions(snap: Snapshot, intent: Intent) -> list[Effect]:
    """Delete the pods that are no longer needed.

    A pod in which no process can be cut short is deleted at once, any other pod after ``LEAVE_SECONDS`` in the phase.
    """
    membership = intent.membership
    late = snap.phase_seconds > LEAVE_SECONDS
    return [
        DeletePod(pod)
        for pod in gang.leavers(snap, membership)
        if not pod.deleting and (late or _has_stopped(snap, intent, pod.uid) or over(snap.job, pod))
    ]


def _has_stopped(snap: Snapshot, intent: Intent, pod_uid: str) -> bool:
    membership = intent.membership
    launch = job_observation.launch_status(snap, pod_uid)
    return (
        membership.phase == "Run"
        or launch is None
        or pod_uid in membership.lost_pods
        or job_observation.acknowledged(launch, membership.generation)
        or job_observation.alive(snap, pod_uid) is False
    )
