"""The doctor's note: an incident in the words of ``kubectl describe`` (DESIGN §3).

Figures that would change with every look are left to the job's summary; a note changes when there is something new.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.model import Cause
from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.observation import Policy, SlowClosed, StopClosed
from falcon_core.recovery.state import Applied, Culprit, Fault, SlowIncident, SlowLink, Step, StopIncident
from falcon_core.recovery.strategies import ignore, replace_node
from falcon_operator.api import DiagnosisStatus
from falcon_operator.intent.intent import Intent
from falcon_operator.status.hang_diagnosis import op_name
from falcon_operator.times import clock_time, timestamp

MAX_DIAGNOSES = 10
replace = msgspec.structs.replace


def milliseconds(nanoseconds: float) -> str:
    """An iteration time for a printer column: ``612ms``, ``12.3s``."""
    return f"{nanoseconds / 1e6:.0f}ms" if nanoseconds < 10e9 else f"{nanoseconds / 1e9:.1f}s"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def upsert(notes: Sequence[DiagnosisStatus], note: DiagnosisStatus) -> list[DiagnosisStatus]:
    """The note in its place, or as the newest; the oldest are dropped."""
    if any(one.id == note.id for one in notes):
        return [note if one.id == note.id else one for one in notes]
    return [note, *notes][:MAX_DIAGNOSES]


# -- fail-slow -------------------------------------------------------------------------------------------------------


def slow_note(
    slow: SlowIncident, intent: Intent, policy: Policy, next_strategy: Candidate | None
) -> DiagnosisStatus | None:
    """An open slowdown; None while nobody is named."""
    culprit = slow.culprit
    if culprit is None:
        return None if slow.link is None else _link_note(slow, slow.link, policy)
    return DiagnosisStatus(
        id=slow.id,
        what="fail-slow, computation",
        where=_slow_where(culprit),
        since=_since(slow),
        slowdown=f"job {slow.slow_ns / slow.healthy_ns:.1f}x; rank {culprit.slowdown:.1f}x",
        why=_why(culprit),
        cause=culprit.cause.value,
        evidence=_evidence(culprit),
        done=_slow_done(slow, intent),
        next=_slow_next(slow, policy, next_strategy),
        state="Open" if slow.phase == "Located" else "Mitigating",
        node=culprit.node,
        rank=culprit.rank,
    )


def _link_note(slow: SlowIncident, link: SlowLink, policy: Policy) -> DiagnosisStatus:
    unavailable = [name for name, _ in policy.strategies if name not in (ignore.TYPE, replace_node.TYPE)]
    missing = f" ({', '.join(unavailable)}: not available in this version)" if unavailable else ""
    growth = f"{(link.compute_growth - 1) * 100:+.0f} %"
    if link.compute_growth > 1 + policy.verify:
        others = "no computation, though slower as well, accounts for it"
    else:
        others = "nobody computes slower or lacks CPU"
    return DiagnosisStatus(
        id=slow.id,
        what="fail-slow, communication",
        where=link_where(link),
        since=_since(slow),
        slowdown=f"job {slow.slow_ns / slow.healthy_ns:.1f}x",
        why=f"a slow link: every member's {op_name(link.op)} takes longer, in {_comms(link)}, and {others}",
        cause=Cause.SLOW_LINK.value,
        evidence=(
            f"transfers last {link.excess_ns / 1e9:.2f} s an iteration longer than in healthy ones, in sum and at all"
            f" members; iteration {milliseconds(slow.healthy_ns)} before, {milliseconds(slow.slow_ns)} now; computation"
            f" of the rank whose own grew most: {growth}"
        ),
        done="ignored",
        next=f"endured: no strategy of this version mends a link{missing}",
        state="Open",
        node=link.node,
    )


def link_where(link: SlowLink) -> str:
    """Both ends, or as many as cannot be told apart."""
    places = ", ".join(f"rank {one.rank} (pod {one.pod_name}, node {one.node})" for one in link.ranks)
    more = f" and {link.members - len(link.ranks)} more" if link.members > len(link.ranks) else ""
    if link.node:
        return f"the link of node {link.node}: {places}{more}"
    return f"{'the link' if link.members == 2 else 'a link'} between {places}{more}"


def link_brief(link: SlowLink) -> str:
    """For a line in a table."""
    if link.node:
        return f"the link of {link.node} is slow"
    more = f" and {link.members - len(link.ranks)} more" if link.members > len(link.ranks) else ""
    nodes = ", ".join(dict.fromkeys(one.node for one in link.ranks))
    which = "the link" if link.members == 2 else "a link"
    return f"{which} between ranks {', '.join(str(one.rank) for one in link.ranks)}{more} ({nodes}) is slow"


def _comms(link: SlowLink) -> str:
    if link.comm == "all ranks":
        return f"the communicator of all {link.members} ranks"
    return link.comm


def _slow_where(culprit: Culprit) -> str:
    also = f"; further slow ranks: {', '.join(map(str, culprit.also))}" if culprit.also else ""
    return f"rank {culprit.rank} (pod {culprit.pod_name}, node {culprit.node}){also}"


def _since(slow: SlowIncident) -> str:
    if slow.onset_iteration <= 1:
        return f"{timestamp(slow.onset_at)} (from the first iteration of generation {slow.onset_generation})"
    after = max(1, slow.reported_iteration - slow.onset_iteration + 1)
    return f"{timestamp(slow.onset_at)} (iteration {slow.onset_iteration}, reported after {after} iterations)"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share * 100:.0f} %"


def _delay(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} s"


def _why(culprit: Culprit) -> str:
    match culprit.cause:
        case Cause.CPU_THROTTLING:
            return (
                f"CPU throttling: its container was throttled in {_percent(culprit.cause_culprit)} of periods"
                f" (peers: {_percent(culprit.cause_peers)}; itself before: {_percent(culprit.cause_healthy)})"
            )
        case Cause.CPU_CONTENTION:
            return (
                f"CPU contention: something else on the node takes its cores; it was ready to run but waited"
                f" {_delay(culprit.cause_culprit)} a second (peers: {_delay(culprit.cause_peers)}; itself before:"
                f" {_delay(culprit.cause_healthy)}), and no quota of its own stopped it"
            )
        case _:
            return "unknown: neither the container's CPU quota nor a wait for the node's cores explains it"


def _evidence(culprit: Culprit) -> str:
    def pair(wait_ns: int | None, compute_ns: int) -> str:
        wait = "unknown" if wait_ns is None else f"{wait_ns / 1e9:.2f} s"
        return f"{wait}/{compute_ns / 1e9:.2f} s"

    text = (
        f"wait/compute per iteration: rank {culprit.rank} {pair(culprit.wait_ns, culprit.compute_ns)},"
        f" others {pair(culprit.peers_wait_ns, culprit.peers_compute_ns)}"
    )
    if culprit.healthy_compute_ns:
        text += f"; rank {culprit.rank} computed {culprit.healthy_compute_ns / 1e9:.2f} s before"
    return text


def _slow_done(slow: SlowIncident, intent: Intent) -> str:
    acted = next((one for one in slow.applied if one.strategy == replace_node.TYPE), None)
    if acted is None:
        return "ignored so far" if any(one.strategy == ignore.TYPE for one in slow.applied) else ""
    parts = [_endured(slow, acted)]
    if acted.observed_only:
        return f"{parts[0]}; mode Observe: the node would have been replaced at {clock_time(acted.at)}"
    node = slow.culprit.node if slow.culprit else ""
    if any(one.node == node for one in intent.excluded):
        parts.append(f"{node} excluded")
    if slow.switched_at is not None:
        parts.append(f"replaced by {slow.replaced_by} at {clock_time(slow.switched_at)}")
    return "; ".join(parts)


def _endured(slow: SlowIncident, acted: Applied) -> str:
    return (
        f"ignored for {seconds(acted.at - slow.onset_at)}, until the loss ({acted.loss_seconds:.1f} s) reached a"
        f" replacement's cost ({_cost(acted)})"
    )


def _cost(price: Applied | Candidate) -> str:
    """``13 s``, or ``13 s + 900 s of work since the last checkpoint + 40 s for a spare that a failure may need``.

    The last two are estimates that move with time, so two of their digits are shown.
    """
    parts = [f"{price.overhead_seconds - price.spare_seconds - price.redo_seconds:.3g} s"]
    if price.redo_seconds >= 1:
        parts.append(f"{float(f'{price.redo_seconds:.2g}'):.0f} s of work since the last checkpoint")
    if price.spare_seconds >= 1:
        parts.append(f"{float(f'{price.spare_seconds:.2g}'):.0f} s for a spare that a failure may need")
    return " + ".join(parts)


def _slow_next(slow: SlowIncident, policy: Policy, next_strategy: Candidate | None) -> str:
    if slow.phase == "Mitigating":
        return "a pod is being prepared on another node while training goes on; then all ranks restart"
    if slow.phase == "Checking":
        return "all ranks restart from the last checkpoint; the iteration time tells whether it helped"
    if slow.blocked:
        return f"waits: {slow.blocked}; tried again as soon as that changes"
    if any(one.observed_only for one in slow.applied):
        return "mode Observe: the node would have been replaced; nothing is done"
    if next_strategy is None:
        unavailable = [name for name, _ in policy.strategies if name not in (ignore.TYPE, replace_node.TYPE)]
        missing = f" ({', '.join(unavailable)}: not available in this version)" if unavailable else ""
        return f"endured: spec.mitigation.strategies offers nothing further{missing}"
    action = "the node is replaced" if policy.enforce else "mode Observe: the node would be replaced"
    cost = _cost(next_strategy)
    return f"{action} when the loss reaches a replacement's cost ({cost})"


def slow_closed(note: DiagnosisStatus, closed: SlowClosed, now: float) -> DiagnosisStatus:
    """The note's last words."""
    iteration = f"iteration {milliseconds(closed.iteration_ns)}" if closed.iteration_ns else "iteration time not known"
    healthy = milliseconds(closed.incident.healthy_ns)
    cost = f"; cost {seconds(closed.cost_seconds)}" if closed.cost_seconds is not None else ""
    result = {
        "Relieved": f"relieved by itself: {iteration} at {clock_time(now)}",
        "Helped": f"{iteration} at {clock_time(now)}{cost}",
        "NotHelped": f"did not help: {iteration} at {clock_time(now)}, healthy {healthy}{cost}",
        "Superseded": f"its node was left at {clock_time(now)} after a failure",
    }[closed.outcome]
    return replace(note, result=result, next="", state="Resolved", resolved_at=timestamp(now))


# -- fail-stop -------------------------------------------------------------------------------------------------------

_WHAT = {
    Cause.NODE_LOST: "fail-stop, node lost",
    Cause.POD_LOST: "fail-stop, pod lost",
    Cause.OUT_OF_MEMORY: "fail-stop, out of memory",
    Cause.PROCESS_KILLED: "fail-stop, process killed",
    Cause.PROCESS_CRASHED: "fail-stop, process crashed",
    Cause.PROCESS_FAILED: "fail-stop, process failed",
}
_DONE = {
    "Restart": "all ranks restarted in their pods",
    "Recreate": "the pod made anew, all ranks restarted",
    "Replace": "node {node} excluded, its pod moved, all ranks restarted",
    "Recall": "no spare was ready: node {node}, which the job had left, used again",
}


def fault_where(fault: Fault) -> str:
    who = f"rank {fault.rank}" if fault.rank is not None else f"replica {fault.replica}"
    return f"{who} (pod {fault.pod_name}, node {fault.node or 'none'})"


def stop_note(stop: StopIncident) -> DiagnosisStatus:
    """An open failure."""
    fault = stop.fault
    progress = f", after {stop.iterations} iterations" if stop.iterations else ""
    recurred = f"; it has failed {stop.recurrences + 1} times" if stop.recurrences else ""
    return DiagnosisStatus(
        id=stop.id,
        what=_WHAT.get(fault.cause, "fail-stop"),
        where=fault_where(fault),
        since=f"{timestamp(stop.since)} (generation {stop.generation}{progress})",
        slowdown="training stands still",
        why=fault.text,
        cause=fault.cause.value,
        evidence=(f"{fault.witness}{recurred}" if fault.witness else recurred.removeprefix("; ")),
        done="; ".join(_step(step) for step in stop.done),
        next="training goes on from the last checkpoint as soon as all ranks are back",
        state="Mitigating",
        severity=fault.severity.value,
        node=fault.node,
        rank=fault.rank,
    )


def _step(step: Step) -> str:
    return f"{_DONE[step.what].format(node=step.node)} at {clock_time(step.at)} (generation {step.generation})"


def stop_closed(closed: StopClosed, now: float) -> DiagnosisStatus:
    note = stop_note(closed.incident)
    if closed.resumed:
        result = f"training again {seconds(closed.seconds)} after the failure"
    else:
        result = f"given up after {seconds(closed.seconds)}: spec.recovery allows no further attempt"
    return replace(note, result=result, next="", slowdown="", state="Resolved", resolved_at=timestamp(now))
