"""Fit a status to the limits of its CRD: every string clipped, cleaned, and the whole within 16 KiB.

The limits of single strings are those of ``crds/trainingjobs.falcon.dev.yaml``; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from falcon_core.text import clean, clip
from falcon_operator.api.common import Condition
from falcon_operator.api.elastic import GroupStatus
from falcon_operator.api.trainingjob import DiagnosisStatus, DoneStep, IterationStatus, TrainingJobStatus
from falcon_operator.base.time_format import timestamp

STATUS_BYTES = 16 * 1024
SUMMARY = 140  # a slow link with two ranks, two nodes and its loss fits
CONDITION = 1024
DONE_STEPS = 12
LINE = 512  # of a diagnosis: where, since, slowdown, next, a step of done
TEXT = 1024  # of a diagnosis: why, evidence, result
EVENT = 1000  # the API's own bound is 1 024
MOST_DIAGNOSES = 10
MOVED = 0.05  # of an iteration time, that is worth a write
_NO_DIGITS = str.maketrans("", "", "0123456789")
replace = msgspec.structs.replace


def fit_text(text: str, most: int) -> str:
    """Return printable text of at most ``most`` characters."""
    return clip(clean(text), most)


def fit(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status within all limits. Of the diagnoses, the oldest resolved ones are removed first."""
    status = replace(
        status,
        summary=fit_text(status.summary, SUMMARY),
        conditions=[_condition(condition) for condition in status.conditions],
        diagnoses=[_diagnosis(diagnosis) for diagnosis in status.diagnoses[:MOST_DIAGNOSES]],
    )
    # Each text has its limit, but many of them together may still be too much for one object. What the operator says
    # unasked comes before what a user wanted to see.
    while len(msgspec.json.encode(status)) > STATUS_BYTES and (looked := status.metrics_check) and looked.maps:
        status = replace(status, metrics_check=replace(looked, maps=looked.maps[:-1]))
    # A diagnosis may need a person; of a group of ranks the newest change and the newest lost rank are enough.
    while len(msgspec.json.encode(status)) > STATUS_BYTES and (group := status.group) and _has_earlier(group):
        newer = replace(group, changes=group.changes[1:] or group.changes, lost=group.lost[1:] or group.lost)
        status = replace(status, group=newer)
    while len(msgspec.json.encode(status)) > STATUS_BYTES and status.diagnoses:
        last = max(
            (at for at, diagnosis in enumerate(status.diagnoses) if diagnosis.state == "Resolved"),
            default=len(status.diagnoses) - 1,
        )
        status = replace(status, diagnoses=[*status.diagnoses[:last], *status.diagnoses[last + 1 :]])
    return status


def _has_earlier(group: GroupStatus) -> bool:
    return max(len(group.changes), len(group.lost)) > 1


def _condition(condition: Condition) -> Condition:
    return replace(condition, message=fit_text(condition.message, CONDITION))


def _diagnosis(diagnosis: DiagnosisStatus) -> DiagnosisStatus:
    def line(text: str) -> str:
        return fit_text(text, LINE)

    def text(value: str) -> str:
        return fit_text(value, TEXT)

    return replace(
        diagnosis,
        where=line(diagnosis.where),
        since=line(diagnosis.since),
        slowdown=line(diagnosis.slowdown),
        next=line(diagnosis.next),
        why=text(diagnosis.why),
        evidence=text(diagnosis.evidence),
        result=text(diagnosis.result),
        done=_steps(diagnosis.done, line),
    )


def _steps(done: list[DoneStep], line: Callable[[str], str]) -> list[DoneStep]:
    """Keep the first step and the newest ones."""
    kept = done if len(done) <= DONE_STEPS else [done[0], *done[1 - DONE_STEPS :]]
    return [replace(step, what=line(step.what)) for step in kept]


# -- what is worth a write -------------------------------------------------------------------------------------------


def essence(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status without the figures that change with every look."""
    return replace(
        status,
        summary="",
        iteration="",
        healthy_iteration="",
        iterations=IterationStatus(),
        conditions=[replace(condition, message="") for condition in status.conditions],
        diagnoses=[replace(note, slowdown="", why="", evidence="", next="") for note in status.diagnoses],
    )


def have_moved(before: TrainingJobStatus, after: TrainingJobStatus) -> bool:
    """Check whether an iteration time has changed by 5 % or more, or words have changed."""
    old, new = before.iterations, after.iterations
    pairs = (
        (old.current_microseconds, new.current_microseconds),
        (old.healthy_microseconds, new.healthy_microseconds),
    )
    if any((a is None) != (b is None) or (a and b and abs(b - a) >= MOVED * a) for a, b in pairs):
        return True
    return _words(before) != _words(after)


def _words(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status without the digits in its words: a loss that grows is a figure as well."""
    bare = replace(status, summary=undigited(status.summary), iterations=IterationStatus())
    return replace(
        bare,
        iteration="",
        healthy_iteration="",
        conditions=[replace(condition, message=undigited(condition.message)) for condition in status.conditions],
        diagnoses=[
            replace(note, slowdown="", evidence="", why=undigited(note.why), next=undigited(note.next))
            for note in status.diagnoses
        ],
    )


def undigited(text: str) -> str:
    """Return the text without its digits: two texts that differ in figures alone say the same."""
    return text.translate(_NO_DIGITS)


def minimal(before: TrainingJobStatus, wanted: TrainingJobStatus, refusal: str, now: float) -> TrainingJobStatus:
    """Return a status with the least that has to be known, for when the API server refuses the whole status."""
    message = fit_text(f"the API server refused the status, so the operator shortened it: {refusal}", CONDITION)
    shown = next((c for c in before.conditions if c.type == "StatusShown"), None)
    # A time that changed with each look would make each look write the status.
    since = shown.last_transition_time if shown is not None and shown.status == "False" else timestamp(now)
    return TrainingJobStatus(
        observed_generation=wanted.observed_generation,
        state=wanted.state,
        summary=fit_text(wanted.summary, SUMMARY),
        ready=wanted.ready,
        conditions=[
            Condition(
                type="StatusShown",
                status="False",
                reason="Refused",
                message=message,
                last_transition_time=since,
                observed_generation=wanted.observed_generation,
            )
        ],
        counters=wanted.counters,
        start_time=wanted.start_time,
        completion_time=wanted.completion_time,
    )
