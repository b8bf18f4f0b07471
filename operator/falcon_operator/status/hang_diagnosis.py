"""A hang in words: who never arrived, at which call, what the process does meanwhile (DESIGN §3)."""

from __future__ import annotations

import msgspec

from falcon_core.model import Cause, Severity
from falcon_core.recovery.hanging import doing
from falcon_core.recovery.observation import HangClosed
from falcon_core.recovery.state import Awaited, HangFinding, HangIncident
from falcon_core.wire.ring import Op
from falcon_operator.api import DiagnosisStatus
from falcon_operator.times import clock_time, timestamp

_OPS = {
    Op.ALL_REDUCE: "all-reduce",
    Op.ALL_GATHER: "all-gather",
    Op.REDUCE_SCATTER: "reduce-scatter",
    Op.ALL_TO_ALL: "all-to-all",
    Op.BARRIER: "barrier",
    Op.BROADCAST: "broadcast",
    Op.REDUCE: "reduce",
    Op.GATHER: "gather",
    Op.SCATTER: "scatter",
    Op.SEND: "send",
    Op.RECV: "receive",
}
NOBODY_WAITS = "no rank is inside a call: a long checkpoint or evaluation, or late data"
_UNKNOWN = "the ranks' counts of calls do not tell whom they wait for"


def op_name(op: int) -> str:
    """``all-reduce``; "collective" for an operation that is not known."""
    return _OPS.get(Op(op), "collective") if op in set(Op) else "collective"


def size(count: int) -> str:
    """``4 B``, ``1.5 MiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"


def hang_note(hang: HangIncident) -> DiagnosisStatus:
    """An open hang."""
    first = hang.findings[0] if hang.findings else None
    places = [rank.place for rank in first.ranks] if first is not None else []
    nodes = {place.node for place in places}
    alone = first is not None and first.total == 1
    progress = f", after {hang.iterations} iterations" if hang.iterations else ""
    return DiagnosisStatus(
        id=hang.id,
        what="fail-stop, hang",
        where=_where(first) if first is not None else "not known: all ranks are silent",
        since=f"{timestamp(hang.since)} (generation {hang.generation}{progress})",
        slowdown="training stands still",
        why="; ".join([told(one) for one in hang.findings] or [_UNKNOWN]) + _state_of(first),
        cause=Cause.HANG.value,
        evidence=_evidence(first) if first is not None else "",
        next="nothing is done about a hang: it ends when these ranks go on, or when the program's own timeout ends a"
        " process; then all ranks are restarted",
        state="Open",
        severity=Severity.SEV2.value,
        node=nodes.pop() if len(nodes) == 1 else "",
        rank=places[0].rank if alone else None,
    )


def hang_closed(closed: HangClosed, now: float) -> DiagnosisStatus:
    """The note's last words."""
    after = f"at {clock_time(now)}, after {closed.seconds:.0f} s"
    result = f"training moves again by itself {after}" if closed.moved else f"all ranks were restarted {after}"
    note = hang_note(closed.incident)
    return msgspec.structs.replace(
        note, result=result, next="", slowdown="", state="Resolved", resolved_at=timestamp(now)
    )


def told(finding: HangFinding) -> str:
    """One finding as a sentence; it names no figure that changes while the hang lasts."""
    who = _who(finding)
    payload = f", {size(finding.size_bytes)}" if finding.size_bytes else ""
    call = f"call {finding.number} ({op_name(finding.op)}{payload}) of {_group(finding)}"
    if finding.pair:
        call = f"transfer {finding.number} {finding.comm}"
    match finding.kind:
        case "NeverArrived":
            inside = f"{finding.waiting} {'rank waits' if finding.waiting == 1 else 'ranks wait'}"
            return f"{who} never arrived at {call}, in which {inside}"
        case "Transfer" if finding.total < finding.members:
            return f"all ranks are inside {call}; {who} began no further call, as the others did"
        case "Transfer":
            return f"all ranks are inside {call} and none comes out: the network, or a member's device or process"
        case "Deadlock":
            return f"{who} did not arrive at {call}, being inside a call of another communicator: a deadlock"


def _group(finding: HangFinding) -> str:
    if finding.comm == "all ranks":
        return f"the communicator of all {finding.members} ranks"
    return f"the communicator of {finding.members} ranks ({finding.comm})"


def _who(finding: HangFinding) -> str:
    numbers = ", ".join(str(rank.place.rank) for rank in finding.ranks)
    more = f" and {finding.total - len(finding.ranks)} more" if finding.total > len(finding.ranks) else ""
    return f"{'rank' if finding.total == 1 else 'ranks'} {numbers}{more}"


def _where(finding: HangFinding) -> str:
    places = [rank.place for rank in finding.ranks]
    named = ", ".join(f"rank {one.rank} (pod {one.pod_name}, node {one.node or 'none'})" for one in places)
    return named + (f" and {finding.total - len(places)} more" if finding.total > len(places) else "")


def _state_of(finding: HangFinding | None) -> str:
    """What the named processes do, as far as their counters tell."""
    if finding is None or finding.total == finding.members:
        return ""
    return "".join(f"; {words}" for rank in finding.ranks[:2] if (words := _doing(rank)))


def _doing(rank: Awaited) -> str:
    number = rank.place.rank
    match doing(rank):
        case "Unknown":
            return ""
        case "Blocked":
            return (
                f"rank {number} has been in uninterruptible sleep for {rank.blocked_seconds:.0f} s: a device or a file"
                " system does not answer, or a long checkpoint is written"
            )
        case "Idle":
            return f"rank {number}'s process uses no CPU: it is stopped, or blocked outside any collective"
        case "Lull":
            return f"rank {number}'s process hardly uses its CPU: a long checkpoint, or blocked outside any collective"
        case "Working":
            return f"rank {number}'s process uses {rank.cpu:.1f} CPUs: it works, or spins, outside any collective"


def meanwhile(finding: HangFinding) -> str:
    """The same of a stall that may be none of a hang, as stable words: "" where nothing is known."""
    if finding.kind != "NeverArrived" or finding.total == finding.members:
        return ""
    words = {
        "Idle": "uses no CPU: it is stopped, or a long checkpoint",
        "Lull": "hardly uses its CPU: a long checkpoint, or a hang",
        "Blocked": "waits for a device or a file system: a long checkpoint, or a hang",
        "Working": "is at work: a long checkpoint or evaluation, or a hang",
    }
    told = words.get(doing(finding.ranks[0]), "")
    return f"; rank {finding.ranks[0].place.rank}'s process {told}" if told else ""


def _evidence(finding: HangFinding) -> str:
    counts = ", ".join(f"rank {rank.place.rank} {rank.entered}" for rank in finding.ranks if rank.entered is not None)
    return f"calls begun in that communicator: {counts}; at most {finding.entered}" if counts else ""
