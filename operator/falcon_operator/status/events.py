"""Derive Kubernetes Events from the comparison of two looks: each turning point is recorded once.

An Event is recorded after its cause was written. An operator that dies in between leaves out the Event rather than
recording it twice; the status itself has everything.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.model import ANOMALIES, Cause
from falcon_core.recovery import Abandon, Command, Demand, RecoveryState
from falcon_core.recovery.views import strategy_type
from falcon_operator.api.trainingjob import DiagnosisStatus, TrainingJobStatus
from falcon_operator.base.effects import Event
from falcon_operator.intent.model.intent import Intent
from falcon_operator.status.conditions import is_true
from falcon_operator.status.groups.group_events import group_events
from falcon_operator.status.limits import EVENT, fit_text
from falcon_operator.status.text.common_cause import common_words
from falcon_operator.status.text.format import change_words, listed
from falcon_operator.status.text.node_verdict import GOOD_NEWS, NODE_RETURNS, verdict_words
from falcon_operator.status.text.outage import open_outage
from falcon_operator.status.text.probes import probe_events

_OPENED = {
    Cause.SLOW_LINK.value: "SlowLink",
    Cause.IMBALANCE.value: "Imbalance",
    Cause.HANG.value: "Hang",
    Cause.COMMON_CAUSE.value: "CommonCause",
    Cause.DIVERGED.value: "Diverged",
}
_CONDITIONS = (
    ("Succeeded", "Normal"),
    ("Failed", "Warning"),
    ("Suspended", "Normal"),
    ("AgentLost", "Warning"),
    ("AgentsCutOff", "Warning"),
)
_WENT_WRONG = (
    ("Accepted", "NotAccepted"),
    ("NodesHealthy", "NodeTrouble"),
    ("MachinesChecked", ""),  # the condition's own reason
    ("WarmPoolUsable", "WarmPoolUnusable"),
    ("RunReadable", "RunUnreadable"),
    ("ReportsReadable", "ReportsUnreadable"),
)


class Look(msgspec.Struct, frozen=True):
    """The facts known at one look."""

    intent: Intent
    status: TrainingJobStatus


def turning_points(before: Look, after: Look, commands: Sequence[Command] = ()) -> list[Event]:
    """Return an Event for each turning point between two looks, the most interesting first."""
    found: list[Event] = []
    known = {note.id: note for note in before.status.diagnoses if note.id != _unnamed(before.intent)}
    # The oldest first, so that Events have the order in which things happened.
    for note in reversed(after.status.diagnoses):
        if note.id == _unnamed(after.intent):
            continue  # its Event follows when it is certain which rank failed first
        found += _of_diagnosis(known.get(note.id), note, after.intent.recovery)
    found += _of_anomalies(before, after)
    if any(isinstance(command, Abandon) for command in commands):
        found.append(Event("Warning", "ReplacementAbandoned", "the prepared pod did not take over; see Diagnoses"))
    found += _of_verdicts(before.intent, after.intent)
    found += _of_change(before.intent, after.intent)
    found += _of_outage(before.intent, after)
    found += _of_demand(before.intent.demand, after.intent.demand)
    found += _of_sharing(before.intent, after.intent)
    found += _of_size(before.intent, after)
    found += group_events(before.status.group, after.status.group)
    found += probe_events(before.intent.recovery, after.intent.recovery)
    found += _of_conditions(before.status, after.status)
    found += _of_generation(before.intent, after.intent, after.status.summary)
    return [Event(event.type, event.reason, fit_text(event.note, EVENT)) for event in found]


def _unnamed(intent: Intent) -> str:
    """Return the id of a failure of which later reports may still change the rank; empty for none."""
    stop = intent.recovery.stop
    return stop.id if stop is not None and not stop.named else ""


def _of_diagnosis(old: DiagnosisStatus | None, new: DiagnosisStatus, state: RecoveryState) -> list[Event]:
    # It is over when it is first seen: one Event says all.
    if new.cause == Cause.SET_UP_RETRIED:
        note = f"{new.where}: {new.why}; {new.result}"
        return [Event("Normal", "SetUpRetried", note)] if old is None else []
    if new.cause == Cause.NODE_LEAVES:
        return _of_move(old, new)
    slow = not new.severity
    found = []
    # A slow link may turn out to be a slow rank; to people that is another problem.
    if old is None or (old.cause == Cause.SLOW_LINK != new.cause):
        found.append(_opened(new, slow))
    elif slow and old.state == "Open" and new.state == "Mitigating":
        found.append(_acted(new, state))
    elif not slow and old.severity != new.severity and new.severity == "SEV1":
        found.append(Event("Warning", _grave(new), f"{new.where}: {new.why}; {new.evidence}"))
    if new.state == "Resolved" and (old is None or old.state != "Resolved"):
        found.append(Event("Normal", "Resolved", f"{new.where}: {new.result}"))
    return found


def _of_anomalies(before: Look, after: Look) -> list[Event]:
    """Return an Event for each anomaly that is over while its generation trains on."""
    left = {note.id for note in after.status.diagnoses}
    if before.intent.membership.generation != after.intent.membership.generation or after.intent.recovery.stop:
        return []
    return [
        Event("Normal", "AnomalyOver", f"{note.where}: no longer reported: {note.why}")
        for note in before.status.diagnoses
        if note.cause in ANOMALIES and note.id not in left and after.status.state in ("Running", "Degraded")
    ]


def _acted(note: DiagnosisStatus, state: RecoveryState) -> Event:
    """Return the Event of the strategy that restarts ranks, or prepares a pod for that."""
    applied = next((slow.applied for slow in state.slowdowns if slow.id == note.id), [])
    restarts = (facts for each in reversed(applied) if (facts := strategy_type(each.strategy)).restarts)
    reason = next((facts.event for facts in restarts), "Mitigating")
    return Event("Normal", reason, f"{note.where}: {note.done[-1].what if note.done else note.next}")


def _of_move(old: DiagnosisStatus | None, new: DiagnosisStatus) -> list[Event]:
    found = [Event("Normal", "Moving", f"{new.where}: {new.why}; {new.next}")] if old is None and new.next else []
    if new.state == "Resolved" and (old is None or old.state != "Resolved"):
        found.append(Event("Normal", "Moved", f"{new.where}: {new.result}"))
    return found


def _opened(note: DiagnosisStatus, slow: bool) -> Event:
    failed = _grave(note) if note.severity == "SEV1" else "RankFailed"
    reason = note.cause if note.cause in ANOMALIES else _OPENED.get(note.cause)
    reason = reason or ("Straggler" if slow else failed)
    figures = f" ({note.slowdown})" if slow and note.slowdown else ""
    return Event("Warning", reason, f"{note.what}: {note.where}{figures}; {note.why}")


def _grave(note: DiagnosisStatus) -> str:
    """Return the reason for the Event of a SEV1: the node is gone, its hardware fails, or it was found sick."""
    if note.cause in (Cause.NODE_LOST.value, Cause.POD_LOST.value):
        return "NodeLost"
    return "HardwareFailed" if note.error_class else "SickNode"


def _of_verdicts(before: Intent, after: Intent) -> list[Event]:
    return [
        Event(
            "Normal" if verdict.outcome in GOOD_NEWS else "Warning",
            "NodeReturned" if verdict.outcome in NODE_RETURNS else "BurnIn",
            verdict_words(verdict),
        )
        for verdict in after.verdicts
        if verdict not in before.verdicts and verdict.outcome != "NotReady"  # the Event NodeLost has reported that
    ]


def _of_change(before: Intent, after: Intent) -> list[Event]:
    """Return the Event for a change of the job. A phase that recurs, and a level that falls, make none."""
    old, new = before.recovery.levels.change, after.recovery.levels.change
    if old is not None and old.outside is not None and (new is None or new.since != old.since):
        # A later generation has forgotten the level: that does not show that the cause is gone.
        if old.generation != after.membership.generation:
            return []
        return [Event("Normal", "Resolved", f"all ranks: no longer slowed alike: {common_words(old.outside)}")]
    if new is not None and new.outside is not None:
        return []  # its diagnosis makes the Event
    if new is None or new.recurring or (old is not None and old.since == new.since):
        return []
    return [Event("Normal", "JobChanged", change_words(new))]


def _of_outage(before: Intent, after: Look) -> list[Event]:
    """Return the Event for the begin of an outage: several nodes miss something that lies outside the job."""
    known, outage = before.recovery.habits.outage, open_outage(after.intent.recovery)
    if outage is None or (known is not None and known.since == outage.since):
        return []
    said = next((entry.message for entry in after.status.conditions if entry.type == "Recovering"), "")
    return [Event("Warning", "Outage", said)]


def _of_demand(before: Demand, after: Demand) -> list[Event]:
    """Return the Event of a checkpoint that was asked for: it is there, or it did not come."""
    if before == after:
        return []
    if after.saved:
        why = "because a process will soon reach a limit" if after.ahead else "for a planned restart"
        return [Event("Normal", "CheckpointSaved", f"all ranks saved step {after.saved} {why}")]
    if after.given_up and after.ahead:
        note = "not all ranks saved a checkpoint in time, and a process will soon reach a limit"
        return [Event("Warning", "CheckpointMissing", f"{note}; the newest of all ranks is of step {after.before}")]
    if after.given_up:
        note = (
            "not all ranks saved a checkpoint for a planned restart in time; the restart begins from step"
            f" {after.before}"
        )
        return [Event("Warning", "CheckpointMissing", note)]
    return []


def _of_sharing(before: Intent, after: Intent) -> list[Event]:
    """Return the Event of micro-batches that are to be computed by other ranks."""
    old, new = before.recovery.sharing, after.recovery.sharing
    # Other fields of the record change as well: only new shares are news.
    if new is None or (old is not None and (old.generation, old.shares) == (new.generation, new.shares)):
        return []
    if not new.is_even:
        shares = listed([f"{share}" for share in new.shares])
        return [
            Event("Normal", "MicrobatchesMoved", f"micro-batches of each rank, instead of {new.per_rank}: {shares}")
        ]
    slow = after.recovery.leader
    if slow is not None and slow.moved is not None and slow.moved.failed:
        return [
            Event(
                "Warning",
                "MicrobatchesBack",
                f"every rank computes {new.per_rank} micro-batches again: {slow.moved.failed}",
            )
        ]
    return [Event("Normal", "MicrobatchesBack", f"every rank computes {new.per_rank} micro-batches again")]


def _of_conditions(before: TrainingJobStatus, after: TrainingJobStatus) -> list[Event]:
    found = []
    now = {condition.type: condition for condition in after.conditions}
    for type_, kind in _CONDITIONS:
        if is_true(after, type_) and not is_true(before, type_):
            found.append(Event(kind, type_, now[type_].message))
    for type_, reason in _WENT_WRONG:
        if _is_false(after, type_) and not _is_false(before, type_):
            found.append(Event("Warning", reason or now[type_].reason, now[type_].message))
    # A condition that is withdrawn because the job ended is no return of its agents.
    back = [c for c in after.conditions if c.type == "AgentLost" and c.reason == "AgentsAlive"]
    if back and is_true(before, "AgentLost"):
        found.append(Event("Normal", "AgentBack", "every agent reports again"))
    return found


def _of_size(before: Intent, after: Look) -> list[Event]:
    """Return the Event of a change of an elastic job's size."""
    resized, size = after.intent.resized, after.status.elastic
    if resized is None or size is None or (before.resized is not None and before.resized.at == resized.at):
        return []
    note = f"from {resized.before} to {resized.after} replicas: {size.why}; all ranks restart"
    shrunk = resized.after < resized.before
    return [Event("Warning" if shrunk else "Normal", "Shrunk" if shrunk else "Grown", note)]


def _is_false(status: TrainingJobStatus, type_: str) -> bool:
    return any(condition.type == type_ and condition.status == "False" for condition in status.conditions)


def _of_generation(before: Intent, after: Intent, summary: str) -> list[Event]:
    old, new = before.membership, after.membership
    found = []
    if new.phase == "Run" and new.members and (old.generation, old.phase) != (new.generation, "Run"):
        nodes = listed([member.node for member in new.members])
        found.append(Event("Normal", "Started", f"generation {new.generation} runs on {nodes}"))
    if after.gang.releases > before.gang.releases:
        found.append(Event("Warning", "GangReleased", summary))
    return found
