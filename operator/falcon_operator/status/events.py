"""Kubernetes Events at the turning points, read off the difference between two statuses: each is told once.

They follow the write of the status that they tell of. An operator that dies in between leaves one out rather than
telling it twice; the status itself has everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from falcon_core.model import Cause
from falcon_core.recovery.observation import Abandon, Action
from falcon_operator.api import DiagnosisStatus, TrainingJobStatus
from falcon_operator.effects import Event
from falcon_operator.status.render import is_true

_OPENED = {Cause.SLOW_LINK.value: "SlowLink", Cause.HANG.value: "Hang"}
NOTE_LENGTH = 1000  # the API's own bound is 1024


def turning_points(before: TrainingJobStatus, after: TrainingJobStatus, actions: Sequence[Action]) -> list[Event]:
    """Everything between two statuses that is worth an Event, in the order of a reader's interest."""
    found: list[Event] = []
    known = {note.id: note for note in before.diagnoses}
    for note in reversed(after.diagnoses):
        found += _of_note(known.get(note.id), note)
    for action in actions:
        if isinstance(action, Abandon):
            found.append(Event("Warning", "ReplacementAbandoned", "the prepared pod did not take over; see Diagnoses"))
    found += _of_conditions(before, after)
    found += _of_generation(before, after)
    return [Event(one.type, one.reason, one.note[:NOTE_LENGTH]) for one in found]


def _of_note(old: DiagnosisStatus | None, new: DiagnosisStatus) -> list[Event]:
    slow = not new.severity
    found = []
    if old is None or (old.cause == Cause.SLOW_LINK != new.cause):
        reason = _OPENED.get(new.cause) or (
            "Straggler" if slow else {"SEV1": "NodeLost"}.get(new.severity, "RankFailed")
        )
        figures = f" ({new.slowdown})" if slow and new.slowdown else ""
        found.append(Event("Warning", reason, f"{new.what}: {new.where}{figures}; {new.why}"))
    elif slow and old.state == "Open" and new.state == "Mitigating":
        found.append(Event("Normal", "Replacing", f"{new.where}: {new.done}"))
    elif not slow and old.severity != new.severity and new.severity == "SEV1":
        found.append(Event("Warning", "NodeLost", f"{new.where}: {new.why}; {new.evidence}"))
    if new.state == "Resolved" and (old is None or old.state != "Resolved"):
        found.append(Event("Normal", "Resolved", f"{new.where}: {new.result}"))
    elif old is not None and old.state == "Resolved" and new.result != old.result:
        verdict = new.result.removeprefix(old.result).removeprefix("; ")
        kind = "Normal" if " not fenced: " in verdict or " may be used again " in verdict else "Warning"
        found.append(Event(kind, "NodeReturned" if " used again" in verdict else "BurnIn", verdict))
    return found


_CONDITIONS = (
    ("Succeeded", "Normal"),
    ("Failed", "Warning"),
    ("Suspended", "Normal"),
    ("AgentLost", "Warning"),
)


def _of_conditions(before: TrainingJobStatus, after: TrainingJobStatus) -> list[Event]:
    found = []
    for type_, kind in _CONDITIONS:
        if is_true(after, type_) and not is_true(before, type_):
            message = next(one.message for one in after.conditions if one.type == type_)
            found.append(Event(kind, type_, message))
    if is_true(before, "AgentLost") and not is_true(after, "AgentLost") and not after.completion_time:
        found.append(Event("Normal", "AgentBack", "every agent reports again"))
    return found


def _of_generation(before: TrainingJobStatus, after: TrainingJobStatus) -> list[Event]:
    old, new = before.generation, after.generation
    found = []
    if new is not None and new.phase == "Run" and (old is None or (old.number, old.phase) != (new.number, "Run")):
        nodes = ", ".join(member.node for member in new.members)
        found.append(Event("Normal", "Started", f"generation {new.number} runs on {nodes}"))
    if old is not None and old.members and new is not None and not new.members and after.state == "Pending":
        found.append(Event("Warning", "GangReleased", after.summary))
    return found
