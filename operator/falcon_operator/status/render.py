"""Build the job's status for people: state, summary, conditions and printer columns."""

from __future__ import annotations

import msgspec

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery import JobChange, Policy, RecoveryState, SlowIncident, StopIncident
from falcon_core.recovery.views import checked_strategy
from falcon_operator.api.trainingjob import Counters, DiagnosisStatus, IterationStatus, TrainingJobStatus
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.intent.model.intent import Intent
from falcon_operator.status.anomalies import anomalies, brief
from falcon_operator.status.checkpoints import checkpoint_in_memory, degraded_protection
from falcon_operator.status.checks import machines_checked
from falcon_operator.status.comparisons import comparisons, witnessed
from falcon_operator.status.conditions import agents_lost, is_shown, live_conditions, put
from falcon_operator.status.diagnoses import diagnoses
from falcon_operator.status.directories import checkpoints_durable, waiting
from falcon_operator.status.groups.silent_corruption import silent_corruption
from falcon_operator.status.limits import fit
from falcon_operator.status.metrics_check import metrics_check
from falcon_operator.status.text.common_cause import describe_common_cause
from falcon_operator.status.text.exchanges import swapping_words
from falcon_operator.status.text.format import fault_brief, judged_words, link_brief, listed, milliseconds
from falcon_operator.status.text.node_kept import is_kept
from falcon_operator.status.text.outage import open_outage, outage_brief
from falcon_operator.status.text.planned_move import move_summary
from falcon_operator.status.text.probes import check_status, is_probed, pauses
from falcon_operator.status.tracking import tracking
from falcon_operator.status.view import State, View

replace = msgspec.structs.replace


def render(view: View, next_strategy: Candidate | None) -> TrainingJobStatus:
    """Return the status of a job that starts, runs or recovers.

    ``next_strategy``: the next strategy against the open slowdown.
    """
    before = view.snap.job.status
    intent = view.intent
    state = state_of(view)
    compared = comparisons(view)
    odd = [*anomalies(view), *silent_corruption(view), *compared]
    common = _common_cause(view)
    weighed, size = view.weighed, view.size
    incidents = [witnessed(note, compared) for note in diagnoses(intent, view.policy, next_strategy)]
    # What is over comes last: it is the first to be left out where there is much to say.
    over = [note for note in incidents if note.state == "Resolved"]
    if size is not None and weighed is not None and weighed.shrinking is not None and intent.recovery.stop is not None:
        awaited = f"the job waits for {size.next}"
        incidents = [
            replace(note, next=f"{note.next}; {awaited}" if note.next else awaited)
            if note.id == intent.recovery.stop.id and note.state != "Resolved"
            else note
            for note in incidents
        ]
    status = replace(
        before,
        state=state,
        elastic=size,
        counters=counters(intent),
        pauses=pauses(intent.recovery),
        check=check_status(intent.recovery),
        metrics_check=metrics_check(view),
        start_time=timestamp(intent.started_at),
        diagnoses=[*(note for note in incidents if note.state != "Resolved"), *common, *odd, *over],
    )
    if view.unheard and view.blind_since is None:
        return fit(status)  # what was shown stays until the first report
    # Figures of the running job are shown only when its ranks have reported.
    current, healthy = view.current_ns, _healthy_ns(intent.recovery)
    generation = view.snap.job.metadata.generation
    return fit(
        replace(
            status,
            observed_generation=generation,
            summary=summary_of(view, state, brief(odd)),
            ready=ready_ranks(view),
            group=view.group,
            iteration=milliseconds(current) if current else "",
            healthy_iteration=milliseconds(healthy) if healthy else "",
            iterations=IterationStatus(
                current_microseconds=round(current / 1e3) if current else None,
                healthy_microseconds=round(healthy / 1e3) if healthy else None,
                count=view.obs.iterations if view.obs.running else 0,
            ),
            conditions=put(
                before.conditions,
                [
                    *live_conditions(view, state, view.snap.unreadable),
                    tracking(view),
                    checkpoint_in_memory(view),
                    degraded_protection(view),
                    checkpoints_durable(view),
                    machines_checked(view),
                ],
                now=view.snap.now,
                observed_generation=generation,
            ),
        )
    )


def ready_ranks(view: View) -> str:
    """Return how many ranks train, over all ranks of the current size."""
    group = view.group
    # A launcher runs on when a rank of its own is lost: the ranks' group alone knows.
    stop = view.intent.recovery.stop
    are_living = view.training == view.total or (stop is not None and stop.others_train)
    lacks = group is not None and are_living and group.wanted == view.total
    return f"{min(view.training, group.ranks) if lacks and group is not None else view.training}/{view.total}"


def _healthy_ns(recovery: RecoveryState) -> int | None:
    """Return the healthy iteration time, estimated where the job has taken a slow start for its health."""
    slow, change = recovery.leader, recovery.levels.change
    if slow is None or not slow.is_incident:
        # The level to which something outside has slowed the job is not its health.
        return change.before_ns if change is not None and change.outside is not None else recovery.levels.healthy_ns
    from_start = slow.onset.from_start or (slow.link is not None and bool(slow.link.siblings))
    return slow.times.healthy_ns if from_start else recovery.levels.healthy_ns


def counters(intent: Intent) -> Counters:
    """Return the numbers of restarts and replacements since the job began."""
    return Counters(restarts=intent.membership.restarts, replacements=intent.membership.replaced)


def state_of(view: View) -> State:
    """Return the job's state in one word."""
    recovery, phase = view.intent.recovery, view.intent.membership.phase
    slow = recovery.leader
    # Ranks that stand still for a repair are "Recovering", whatever else is wrong.
    moves = recovery.move is not None and recovery.move.restarts
    if recovery.is_stopped or moves or (slow is not None and slow.phase == "Checking"):
        return "Recovering"
    if phase == "Stop":
        return "Starting" if view.gathering.placed else "Pending"
    if view.unheard and view.blind_since is None:
        return view.snap.job.status.state or "Starting"
    # A silent agent must not make the job look as if it were starting again, nor a pod without which the others train.
    known = recovery.stop is not None or agents_lost(view)
    if view.training + view.finished < view.total and view.blind_since is None and not known:
        return "Starting"
    return "Degraded" if _is_degraded(recovery, view.policy) else "Running"


def _is_degraded(recovery: RecoveryState, policy: Policy) -> bool:
    """Check whether the job is slow: by a rank, a link, a cause that all ranks share, or for an unknown reason."""
    slow = recovery.leader
    named = slow is not None and (slow.culprit is not None or slow.link is not None)
    return named or (slow is not None and is_shown(slow, policy)) or _outside(recovery) is not None


def _outside(recovery: RecoveryState) -> JobChange | None:
    """Return the job's level where something outside of the job has set it; None where nothing has."""
    change = recovery.levels.change
    return change if change is not None and change.outside is not None else None


def _common_cause(view: View) -> list[DiagnosisStatus]:
    change = view.intent.recovery.levels.change
    if change is None or change.generation != view.intent.membership.generation:
        return []  # a level of another generation holds until its agents have learned their own
    nodes = [member.node for member in view.obs.members]
    note = describe_common_cause(change, view.snap.job.metadata.name, view.total, nodes)
    return [note] if note is not None else []


def summary_of(view: View, state: State, odd: str = "") -> str:
    """Return one line: what is wrong, and what is being done about it. ``odd``: the most urgent anomaly."""
    text = _summary(view, state)
    if odd and state == "Running":
        text = f"{text}; {odd}"
    if (lost := agents_lost(view)) and state in ("Running", "Degraded"):
        names = listed([view.obs.members[replica].pod_name for replica in lost], most=1)
        goes_on = ", training goes on" if view.goes_on_without(lost) else ""
        text = f"agent lost in {names}{goes_on}; {text}"
    return text


def pods_that_join(view: View) -> str:
    """Return what the pods wait for that were lost, and whose ranks join the others."""
    members = [each for each in view.obs.members if each.pod != "Present" or not _runs(view, each.replica)]
    waits = [f"{each.pod_name} has no node yet" for each in members if not each.node]
    starts = [f"{each.pod_name} starts on {each.node}" for each in members if each.node]
    return listed([*waits, *starts]) or "the ranks of its pod join them"


def _runs(view: View, replica: int) -> bool:
    return all(rank.process == "Running" for rank in view.obs.ranks if rank.replica == replica)


def _stop_next(stop: StopIncident, view: View) -> str:
    if stop.undecided:
        return "its process is ending"
    if (outage := open_outage(view.intent.recovery)) is not None:
        return outage_brief(stop, outage)
    if stop.acts_at is not None:
        return f"restarting at {clock_time(stop.acts_at)}"
    if stop.others_train:
        return f"{_trains(view)}; {pods_that_join(view)}"
    waiting = view.gathering.waiting if view.intent.membership.phase == "Stop" else ""
    return waiting or "restarting"


def _summary(view: View, state: State) -> str:
    recovery = view.intent.recovery
    stop, slow = recovery.stop, recovery.leader
    # The order is that of urgency: training has stopped, cannot be seen, stands still, is slow, waits.
    if stop is not None and (recovery.is_stopped or view.stalled_since is None):
        return f"{fault_brief(stop.fault)} at {clock_time(stop.failed_at)}; {_stop_next(stop, view)}"
    if view.blind_since is not None:
        return f"blind: no report from any agent since {clock_time(view.blind_since)}"
    if view.stalled_since is not None:
        return _stalled_summary(view, clock_time(view.stalled_since))
    if recovery.move is not None:
        return move_summary(recovery.move)
    if slow is not None and is_shown(slow, view.policy):
        return _slow_summary(slow, recovery, view.policy, probed=is_probed(recovery, slow))
    if (common := _outside(recovery)) is not None:
        factor = f"iterations have taken {common.after_ns / common.before_ns:.1f}x the healthy time"
        return f"{factor} since {clock_time(common.since)}: something outside of the job slows all ranks alike"
    if view.unheard:
        return view.snap.job.status.summary
    if copying := waiting(view):
        return copying
    if signalled := [member.pod_name for member in view.obs.members if member.launcher.signalled]:
        return f"pod {listed(signalled)} got a signal to end; its programs are ending"
    if state in ("Pending", "Starting"):
        return view.gathering.waiting or f"{view.training} of {view.total} ranks have started"
    return _trains(view)


def _stalled_summary(view: View, since: str) -> str:
    if view.unended:  # shown first, as the line is short
        return f"stalled since {since}: {view.unended}"
    awaited = f"; {view.awaited}" if view.awaited else ""
    return f"stalled: no rank has made progress since {since}{awaited}"


def _trains(view: View) -> str:
    if view.unended:
        return view.unended
    text = f"all ranks train, not watched: {view.untracked}" if view.untracked else "all ranks train"
    group = view.group
    if group is not None and group.ranks < group.wanted:
        awaits = f"; waits for {group.next}" if group.next else ""
        return f"{group.ranks} of {group.wanted} ranks train{awaits}"
    weighed, size = view.weighed, len(view.intent.membership.members)
    return (
        f"{text}, with {size} of {weighed.wanted} replicas" if weighed is not None and size < weighed.wanted else text
    )


def _slow_summary(slow: SlowIncident, recovery: RecoveryState, policy: Policy, *, probed: bool) -> str:
    since = clock_time(slow.onset.at)
    if slow.culprit is not None:
        culprit = slow.culprit
        whose = "its peers'" if slow.onset.from_start else "its normal"
        from_first = slow.onset.from_start and slow.onset.iteration <= 1
        reference = f"{whose} compute time {'from the start' if from_first else f'since {since}'}"
        # The line has room for one slow node, the first. Of the others it gives the number.
        further = len(recovery.further)
        more = f", and {further} more node{'s' * (further > 1)}" if further else ""
        link = recovery.concurrent_link
        if link is not None and link.is_incident and link.link is not None:
            more += f", and {link_brief(link.link)}"
        doing = "measuring its machine" if probed else _slow_doing(slow, policy)
        return f"rank {culprit.rank} on {culprit.node} has taken {culprit.slowdown:.1f}x {reference}{more}; {doing}"
    since = "from the start" if slow.link is not None and slow.link.siblings else f"since {since}"
    factor = f"iterations have taken {slow.times.slow_ns / slow.times.healthy_ns:.1f}x the healthy time {since}"
    if slow.link is not None:
        return f"{factor}: {link_brief(slow.link)}; {'measuring the links' if probed else swapping_words(slow)}"
    return f"{factor}; no rank stands out"


def _slow_doing(slow: SlowIncident, policy: Policy) -> str:
    match slow.phase:
        case "Mitigating":
            return "replacing the node"
        case "Checking" if (judged := checked_strategy(slow)) is not None:
            by_spare = judged.facts.takes_spare and slow.restart.replaced_by
            return judged_words(f"replaced by {slow.restart.replaced_by}" if by_spare else judged.facts.judged, slow)
        case _ if slow.moved is not None and not slow.moved.failed and slow.phase == "Located":
            return f"micro-batches moved to other ranks, {slow.loss.seconds:.1f} s lost"
        case _ if is_kept(slow, policy):
            return "node kept: it may not be at fault"
        case _ if slow.blocked:
            return f"waits: {slow.blocked}"
        case _:
            return f"{slow.loss.seconds:.1f} s lost, no action yet"
