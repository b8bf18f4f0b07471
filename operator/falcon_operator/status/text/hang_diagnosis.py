"""Describe a hang: which rank never arrived, at which call, and what its process does meanwhile."""

from __future__ import annotations

from falcon_core.model import Cause, Severity
from falcon_core.recovery import Awaited, HangFinding, HangIncident, Policy
from falcon_core.recovery.views import hang_activity, hang_due_at
from falcon_core.times import PATIENCE_SECONDS
from falcon_operator.api.trainingjob import DiagnosisStatus
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.status.text.format import listed, op_name, place, size

NOBODY_WAITS = "no rank is inside a call: a long checkpoint or evaluation, or late data"
_UNKNOWN = "the ranks' counts of calls do not show which rank they wait for"


def describe_hang(hang: HangIncident, policy: Policy | None = None) -> DiagnosisStatus:
    """Describe a hang. ``policy``: of the job, while the hang is open and nothing has been done about it."""
    first = hang.findings[0] if hang.findings else None
    places = [rank.place for rank in first.ranks] if first is not None else []
    nodes = {place.node for place in places}
    # Of several ranks none is named by itself: which of them is the cause is not known.
    alone = first is not None and first.total == 1
    progress = f", after {hang.iterations} iterations" if hang.iterations else ""
    return DiagnosisStatus(
        id=hang.id,
        what="fail-stop, hang",
        where=_where(first) if first is not None else "not known: all ranks are silent",
        since=f"{timestamp(hang.since)} (generation {hang.generation}{progress})",
        slowdown="training is stopped",
        why="; ".join([finding_words(finding) for finding in hang.findings] or [_UNKNOWN]) + _state_of(first),
        cause=Cause.HANG.value,
        evidence="; ".join(part for part in (_evidence(first), _said(hang), _stacks(hang)) if part),
        next=_next(hang, policy) if policy is not None else "",
        state="Open",
        severity=Severity.SEV2.value,
        node=nodes.pop() if len(nodes) == 1 else "",
        rank=places[0].rank if alone else None,
    )


def _next(hang: HangIncident, policy: Policy) -> str:
    # The two parts of the price stand apart: only the second falls when a job saves more often.
    price = f"{hang.restart_seconds - hang.redo_seconds:.0f} s"
    if hang.redo_seconds >= 1:
        price += f" + {hang.redo_seconds:.0f} s of work since the last checkpoint"
    due = clock_time(hang_due_at(hang))
    if not policy.enforce:
        return (
            f"mode Observe: nothing is done; Enforce would restart all ranks at {due} (a restart"
            f" costs {price}); the hang ends when these ranks go on, or when the program's own timeout ends a process"
        )
    return (
        f"all ranks are restarted at {due} if none has made progress by then: the hang has then cost"
        f" as much as a restart ({price}), or lasted for {PATIENCE_SECONDS / 60:.0f} minutes"
    )


def _said(hang: HangIncident) -> str:
    """Return the errors that silent ranks have printed since their newest call."""
    return "; ".join(f"last error that rank {rank} printed: {text}" for rank, text in hang.said.items())


def _stacks(hang: HangIncident) -> str:
    """Return where the ranks stand in their programs, innermost call first."""
    groups = []
    for group in hang.stacks:
        numbers = listed([str(rank) for rank in group.ranks], group.total)
        groups.append(f"{'rank' if group.total == 1 else 'ranks'} {numbers}: {' < '.join(group.frames)}")
    return f"stacks: {'; '.join(groups)}" if groups else ""


def finding_words(finding: HangFinding) -> str:
    """Return a finding as a sentence without figures that change while the hang lasts."""
    who = _who(finding)
    payload = f", {size(finding.size_bytes)}" if finding.size_bytes else ""
    call = f"call {finding.number} ({op_name(finding.op)}{payload}) of {_group(finding)}"
    if finding.pair:
        call = f"transfer {finding.number} {finding.comm}"
    match finding.kind:
        case "NeverArrived":
            inside = f"{finding.waiting} {'rank waits' if finding.waiting == 1 else 'ranks wait'}"
            return f"{who} never arrived at {call}, in which {inside}"
        case "Transfer" if not all(rank.answers for rank in finding.ranks):
            return f"all ranks are inside {call} and none returns; {who} did not answer a request for the stack"
        case "Transfer" if finding.total < finding.members:
            return f"all ranks are inside {call}; {who} began no further call, but the other ranks did"
        case "Transfer":
            return (
                f"all ranks are inside {call} and none returns: the network, or a member's device or process, is at"
                " fault"
            )
        case "Deadlock":
            return (
                f"{who} did not arrive at {call}, because {'it is' if finding.total == 1 else 'they are'} inside a"
                " call of another communicator: a deadlock"
            )


def _group(finding: HangFinding) -> str:
    if finding.comm == "all ranks":
        return f"the communicator of all {finding.members} ranks"
    return f"the communicator of {finding.members} ranks ({finding.comm})"


def _who(finding: HangFinding) -> str:
    numbers = listed([str(rank.place.rank) for rank in finding.ranks], finding.total)
    return f"{'rank' if finding.total == 1 else 'ranks'} {numbers}"


def _where(finding: HangFinding) -> str:
    return listed([place(rank.place) for rank in finding.ranks], finding.total)


def _state_of(finding: HangFinding | None) -> str:
    """Return what the named processes do, as far as their counters show it."""
    if finding is None or finding.total == finding.members:
        return ""
    return "".join(f"; {words}" for rank in finding.ranks[:2] if (words := _doing(rank)))


def _doing(rank: Awaited) -> str:
    number = rank.place.rank
    match hang_activity(rank):
        case "Unknown":
            return ""
        case "Blocked":
            return (
                f"rank {number} has been in uninterruptible sleep for {rank.blocked_seconds:.0f} s: a device or a file"
                " system does not answer, or a long checkpoint is written"
            )
        case "Mute":
            return (
                f"rank {number}'s interpreter does not answer, but other ranks' do: its process is stopped, or about"
                " to end"
            )
        case "Idle" if not rank.answers:
            return (
                f"rank {number}'s process uses no CPU, and its interpreter does not answer, but other ranks' do: it is"
                " stopped, or about to end"
            )
        case "Idle":
            return f"rank {number}'s process uses no CPU: it is stopped, or blocked outside any collective"
        case "Lull":
            return f"rank {number}'s process hardly uses its CPU: a long checkpoint, or blocked outside any collective"
        case "Working":
            return f"rank {number}'s process uses {rank.cpu:.1f} CPUs: it works, or spins, outside any collective"


def meanwhile(finding: HangFinding) -> str:
    """Return what the awaited process does while a stall may still be no hang; "" where nothing is known."""
    if finding.kind != "NeverArrived" or finding.total == finding.members:
        return ""
    words = {
        "Mute": "does not answer: it is stopped, or about to end",
        "Idle": "uses no CPU: it is stopped, or a long checkpoint",
        "Lull": "hardly uses its CPU: a long checkpoint, or a hang",
        "Blocked": "waits for a device or a file system: a long checkpoint, or a hang",
        "Working": "is at work: a long checkpoint or evaluation, or a hang",
    }
    process = words.get(hang_activity(finding.ranks[0]), "")
    return f"; rank {finding.ranks[0].place.rank}'s process {process}" if process else ""


def _evidence(finding: HangFinding | None) -> str:
    if finding is None:
        return ""
    counts = ", ".join(f"rank {rank.place.rank} {rank.entered}" for rank in finding.ranks if rank.entered is not None)
    return f"calls begun in that communicator: {counts}; at most {finding.entered}" if counts else ""
