"""Write each incident in the words of ``kubectl describe``, made again from the intent at each look.

Figures that would change with every look stand only in the job's summary. So a diagnosis changes only when there is
something new.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.model import Cause, Severity
from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery import (
    Culprit,
    Fault,
    Outage,
    Policy,
    RecoveryState,
    RetryIncident,
    Sampled,
    SlowIncident,
    StepTaken,
    StopIncident,
)
from falcon_core.recovery.views import STEP_WORDS, named_for_ns, setup_retries
from falcon_operator.api.trainingjob import DiagnosisStatus, DoneStep
from falcon_operator.api.trainingrun import ClosedIncident, NodeVerdict
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.intent.model.intent import Intent
from falcon_operator.status.text.action_log import done_step
from falcon_operator.status.text.causes import cause_words
from falcon_operator.status.text.exchanges import concurrent_link_next
from falcon_operator.status.text.format import (
    fault_where,
    iteration_ratio,
    listed,
    milliseconds,
    place,
    restore_words,
    seconds,
    since_words,
)
from falcon_operator.status.text.hang_diagnosis import describe_hang
from falcon_operator.status.text.node_kept import cause_of, imbalance_words
from falcon_operator.status.text.node_verdict import verdicts_words
from falcon_operator.status.text.outage import open_outage, outage_evidence, outage_next
from falcon_operator.status.text.planned_move import BACK, describe_move
from falcon_operator.status.text.probes import is_probed, probe_evidence, probe_next
from falcon_operator.status.text.slow_links import describe_link
from falcon_operator.status.text.slowdown_actions import beside_next, slow_done, slow_next

replace = msgspec.structs.replace


def diagnoses(intent: Intent, policy: Policy, next_strategy: Candidate | None) -> list[DiagnosisStatus]:
    """Return all incidents, open and over, the newest first.

    ``next_strategy``: the next strategy against the open slowdown, or the first of them.
    """
    recovery = intent.recovery
    found = [
        describe_stop(recovery.stop, policy, open_outage(recovery)) if recovery.stop else None,
        describe_hang(recovery.hang, policy) if recovery.hang else None,
        describe_move(recovery.move) if recovery.move else None,
        _with_probe(
            describe_slowdown(
                _by_itself(recovery, recovery.leader), policy, next_strategy, by_itself=_link_of(recovery) is not None
            ),
            recovery,
            policy,
            len(intent.membership.members),
            next_strategy,
        )
        if recovery.leader
        else None,
        *(describe_slowdown(slow, policy, None, recovery.leader) for slow in recovery.further),
        _concurrent_link(recovery, policy, len(intent.membership.members)),
        *(_closed(incident, policy, intent.verdicts) for incident in intent.history),
    ]
    return sorted((note for note in found if note is not None), key=_number, reverse=True)


def _with_probe(
    note: DiagnosisStatus | None,
    state: RecoveryState,
    policy: Policy,
    pods: int,
    next_strategy: Candidate | None,
) -> DiagnosisStatus | None:
    """Add what is being measured, or about to be, under a pause."""
    if note is None or state.leader is None:
        return note
    if wanted := probe_next(state, state.leader, policy, pods, next_strategy):
        note = replace(note, next=wanted, state="Validating" if is_probed(state, state.leader) else note.state)
    return note


def _concurrent_link(state: RecoveryState, policy: Policy, pods: int) -> DiagnosisStatus | None:
    """Describe a link that is slow while ranks are slow; None where there is none."""
    slow = _link_of(state)
    if slow is None or slow.link is None:
        return None
    note = describe_link(slow, slow.link, policy, None)
    if not slow.link.comm:
        note = replace(
            note, why="a slow link, found by measuring all links: the slow ranks explain only a part of the slowdown"
        )
    wanted = probe_next(state, slow, policy, pods, None) or concurrent_link_next(slow, policy)
    phase = "Validating" if is_probed(state, slow) else "Mitigating" if slow.restart.switched_at else "Open"
    return replace(
        note, slowdown=iteration_ratio(slow.times.slow_ns, slow.times.healthy_ns, alone=True), next=wanted, state=phase
    )


def _link_of(state: RecoveryState) -> SlowIncident | None:
    """Return the incident of a link that is slow while ranks are; None where there is none, or only a suspicion."""
    link = state.concurrent_link
    return link if link is not None and link.is_incident else None


def _by_itself(state: RecoveryState, slow: SlowIncident) -> SlowIncident:
    """Return the incident with what its rank alone makes of an iteration, where a link is slow, too."""
    culprit = slow.culprit
    if _link_of(state) is None or culprit is None:
        return slow
    return replace(slow, times=replace(slow.times, slow_ns=slow.times.well_ns + max(0, named_for_ns(culprit))))


def _number(diagnosis: DiagnosisStatus) -> int:
    """Return the incident's number, with which its id ends."""
    return int(diagnosis.id.rpartition("-")[2])


def _closed(closed: ClosedIncident, policy: Policy, verdicts: Sequence[NodeVerdict]) -> DiagnosisStatus | None:
    if closed.slow is not None:
        note = describe_slowdown(closed.slow, policy, None)
    elif closed.stop is not None:
        note = replace(describe_stop(closed.stop, policy), slowdown="")
    elif closed.hang is not None:
        note = replace(describe_hang(closed.hang), slowdown="")
    elif closed.move is not None:
        note = replace(describe_move(closed.move), slowdown="")
    elif closed.retry is not None:
        return describe_retries(closed.retry, closed.at)
    else:
        return None  # of a kind that a newer version has added
    if note is None:
        return None
    # What became of a node is known only after its incident was closed.
    about_nodes = [verdict for verdict in verdicts if verdict.incident == note.id]
    parts = [_result(closed), *_came_back(closed), *verdicts_words(about_nodes)]
    return replace(note, result="; ".join(parts), next="", state="Resolved", resolved_at=timestamp(closed.at))


def _came_back(closed: ClosedIncident) -> list[str]:
    """Return what became of the micro-batches that other ranks had computed until the slowdown was over."""
    moved = closed.slow.moved if closed.slow is not None else None
    if moved is None or moved.failed or closed.outcome != "Relieved":
        return []
    return [f"every rank computes its {moved.per_rank} micro-batches again"]


def _result(closed: ClosedIncident) -> str:
    at = clock_time(closed.at)
    if closed.outcome == "Resumed" and closed.stop is not None and closed.stop.others_train:
        return f"the pod's ranks run again since {at}; the ranks of the other pods trained on"
    iteration = f"iteration {milliseconds(closed.iteration_ns)}" if closed.iteration_ns else "iteration time not known"
    healthy = milliseconds(closed.slow.times.healthy_ns) if closed.slow else ""
    cost = f"; cost {seconds(closed.cost_seconds)}" if closed.cost_seconds is not None else ""
    lasted = seconds(closed.seconds or 0.0)
    began = "" if closed.restore is None else f", {restore_words(closed.restore)}"
    return {
        "Relieved": f"the slowdown ended by itself: {iteration} at {at}",
        "Helped": f"{iteration} at {at}{cost}",
        "NotHelped": f"did not help: {iteration} at {at}, healthy {healthy}{cost}",
        "OtherCalls": (
            f"the job's calls had changed by {at}: the slowdown can no longer be measured, and no rank stands out"
        ),
        "Resized": f"the job has another size since {at}, and its speed is judged from the start",
        "Superseded": f"its node was evicted from the job at {at} for another reason",
        "Resumed": f"training again {lasted} after the {'restart began' if closed.move else 'failure'}{began}",
        "GivenUp": f"Falcon gave up after {lasted}: spec.recovery allows no further attempt",
        "Moved": f"training went on by itself at {at}, after {lasted}",
        "Restarted": f"all ranks were restarted at {at}, after {lasted}",
        "Suspended": "the job was suspended first",
        "Ended": "the job ended first",
    }.get(closed.outcome, f"over since {at}")


# -- fail-slow -------------------------------------------------------------------------------------------------------


def describe_slowdown(
    slow: SlowIncident,
    policy: Policy,
    next_strategy: Candidate | None,
    first: SlowIncident | None = None,
    *,
    by_itself: bool = False,
) -> DiagnosisStatus | None:
    """Describe a slowdown; None while neither a rank nor a link is named.

    ``first``: the slowdown that leads, if this one does not. Then the job's figure is what this node costs by itself,
    as with ``by_itself``.
    """
    culprit = slow.culprit
    if culprit is None:
        if slow.link is None or not slow.is_incident:
            return None
        return describe_link(slow, slow.link, policy, next_strategy)
    cause = cause_of(slow, culprit)
    return DiagnosisStatus(
        id=slow.id,
        what=f"fail-slow, {'imbalance' if cause is Cause.IMBALANCE else 'computation'}",
        where=_slow_where(culprit),
        since=since_words(slow),
        slowdown=_slowdown(
            slow, culprit, by_itself=by_itself or first is not None or any(entry.shares for entry in slow.applied)
        ),
        why=imbalance_words(slow, culprit, policy)
        if cause is Cause.IMBALANCE
        else cause_words(culprit, slow.node_fault.evidence),
        cause=cause.value,
        evidence=_evidence(culprit) + probe_evidence(slow),
        done=slow_done(slow),
        next=slow_next(slow, policy, next_strategy) if first is None else beside_next(slow, policy, first),
        state="Open" if slow.phase == "Located" else "Mitigating",
        node=culprit.node,
        rank=culprit.rank,
    )


def _slowdown(slow: SlowIncident, culprit: Culprit, *, by_itself: bool) -> str:
    job = _job_factor(slow, by_itself=by_itself)
    if slow.onset.from_start:
        began = slow.onset.iteration
        first = "the first iteration" if began <= 1 else f"iteration {began}, when the job's calls had changed"
        reference = f"its peers' compute time, since {first}"
    else:
        reference = "its normal compute time"
    return f"{job}; rank {culprit.rank} takes {culprit.slowdown:.1f}x {reference}"


def _job_factor(slow: SlowIncident, *, by_itself: bool) -> str:
    """Say how much longer an iteration lasts, what already helps, and how much of it all ranks have in common."""
    well_ns = slow.times.well_ns
    if by_itself:
        return iteration_ratio(slow.times.slow_ns, well_ns, alone=True)
    others = f"{well_ns / slow.times.healthy_ns:.1f}x"
    helped = "" if slow.moved is None or slow.moved.failed else " with micro-batches moved"
    without = "" if others == "1.0x" else f", {others} without this rank"
    return f"{iteration_ratio(slow.times.slow_ns, slow.times.healthy_ns)}{helped}{without}"


def _slow_where(culprit: Culprit) -> str:
    also = (
        f"; further slow ranks: {listed([str(rank) for rank in culprit.also], culprit.also_total)}"
        if culprit.also
        else ""
    )
    return f"rank {culprit.rank} (pod {culprit.pod_name}, node {culprit.node}){also}"


def _evidence(culprit: Culprit) -> str:
    def pair(wait_ns: int | None, compute_ns: int) -> str:
        wait = "unknown" if wait_ns is None else f"{wait_ns / 1e9:.2f} s"
        return f"{wait}/{compute_ns / 1e9:.2f} s"

    text = (
        f"wait/compute per iteration: rank {culprit.rank} {pair(culprit.wait_ns, culprit.compute_ns)},"
        f" others {pair(culprit.peers.wait_ns, culprit.peers_compute_ns)}"
    )
    if culprit.healthy_compute_ns:
        text += f"; rank {culprit.rank} computed {culprit.healthy_compute_ns / 1e9:.2f} s before"
    if culprit.peers.hidden:
        basis = "the iteration time" if culprit.healthy_compute_ns else "the longest stretch between two calls"
        text += f"; calls cover a part of the computation, so the factor is that of {basis}"
    if culprit.peers.unseen_ns:
        text += (
            f"; {culprit.peers.unseen_ns / 1e9:.2f} s of the others' wait lie outside the calls that Falcon sees: it"
            " is a wait of unknown cause, in which they do not run"
        )
    return text + (_sampled(culprit.samples) if culprit.samples is not None else "")


def _sampled(samples: Sampled) -> str:
    """Say at which places of the program the rank was found."""
    places = [f"{place.samples} times in {', called by '.join(place.frames)}" for place in samples.places]
    return f"; of {samples.taken} samples of its main thread's stack: {'; '.join(places)}" if places else ""


# -- fail-stop -------------------------------------------------------------------------------------------------------

_WHAT = {
    Cause.NODE_LOST: "fail-stop, node lost",
    Cause.POD_LOST: "fail-stop, pod lost",
    Cause.NOT_STARTED: "fail-stop, pod not started",
    Cause.CONTAINER_FAILED: "fail-stop, another container failed",
    Cause.OUT_OF_MEMORY: "fail-stop, out of memory",
    Cause.PROCESS_KILLED: "fail-stop, process killed",
    Cause.PROCESS_CRASHED: "fail-stop, process crashed",
    Cause.PROCESS_FAILED: "fail-stop, process failed",
    Cause.DIVERGED: "fail-stop, a number is NaN or infinite",
}


def _next(stop: StopIncident) -> str:
    if stop.undecided:
        return "Falcon chooses the repair when the process has ended"
    if stop.others_train:
        return "the ranks of the pod join those that train, when it has a node and has started"
    return BACK if stop.acts_at is None else f"all ranks are restarted at {clock_time(stop.acts_at)} (back-off)"


def describe_stop(stop: StopIncident, policy: Policy, outage: Outage | None = None) -> DiagnosisStatus:
    """Describe an open failure. ``outage``: what lies outside the job is away."""
    fault = stop.fault
    # A hang that was ended by a restart keeps its own words: nothing else has failed.
    if stop.hang is not None and fault.cause is Cause.HANG:
        hang = describe_hang(stop.hang)
        return replace(
            hang,
            evidence="; ".join(part for part in (hang.evidence, stop.smoke) if part),
            done=[_done_step(step) for step in stop.done],
            next=BACK,
            state="Mitigating",
            severity=Severity.SEV1.value if stop.left_sick else hang.severity,
        )
    progress = f", after {stop.iterations} iterations" if stop.iterations else ""
    recurred = f"it has failed {stop.recurrences + 1} times" if stop.recurrences else ""
    says = outage_evidence(outage) if outage is not None else fault.witness
    sound = f"checkpoints saved after {clock_time(stop.saved_before)} are left out" if stop.saved_before else ""
    evidence = (says, sound, fault.node_reports, stop.smoke, fault.signs, _meaning(fault, policy.judge), recurred)
    return DiagnosisStatus(
        id=stop.id,
        what=_WHAT.get(fault.cause, "fail-stop"),
        where=fault_where(fault),
        since=f"{timestamp(stop.since)} (generation {stop.generation}{progress})",
        slowdown="the ranks of the other pods train" if stop.others_train else "training is stopped",
        why=fault.text,
        cause=fault.cause.value,
        error_class=fault.error_class,
        evidence="; ".join(part for part in evidence if part),
        done=[_done_step(step) for step in stop.done],
        next=_next(stop) if outage is None else outage_next(stop, outage, policy),
        state="Mitigating",
        severity=(Severity.SEV1 if stop.left_sick else fault.severity).value,
        node=fault.node,
        rank=fault.rank,
    )


def describe_retries(retry: RetryIncident, over_at: float) -> DiagnosisStatus:
    """Describe set-up calls that were tried again in place. ``over_at``: unix seconds."""
    nodes = {at.node for at in retry.places}
    times = "once" if retry.retries == 1 else f"{retry.retries} times"
    return DiagnosisStatus(
        id=retry.id,
        what="transient, set-up of a communicator",
        where=listed([place(at) for at in retry.places], retry.ranks),
        since=f"{timestamp(retry.at)} (generation {retry.generation})",
        why=f"a peer could not be reached; the call was tried again in place, {times} in all",
        cause=Cause.SET_UP_RETRIED.value,
        error_class=setup_retries.ERROR_CLASS,
        result="all of these ranks went on; nothing was restarted",
        state="Resolved",
        severity=Severity.SEV3.value,
        node=nodes.pop() if len(nodes) == 1 and retry.ranks == 1 else "",
        rank=retry.places[0].rank if retry.ranks == 1 else None,
        resolved_at=timestamp(over_at),
    )


def _meaning(fault: Fault, judge: Judge) -> str:
    """Say what the class of a failure means, and what helps beyond what Falcon does."""
    kind = judge.get(fault.error_class)
    if kind is None:
        return ""
    remedy = f"; remedy: {_inline(kind.remedy)}" if kind.remedy else ""
    return f"{kind.name}: {_inline(kind.meaning)}{remedy}"


def _inline(sentence: str) -> str:
    return sentence.rstrip(".")


def _done_step(step: StepTaken) -> DoneStep:
    words = STEP_WORDS.get(step.what, step.what)  # a step that only a newer operator knows has no words
    return done_step(step.at, f"{words.format(node=step.node)} (generation {step.generation})")
