"""Rebuild what happened to a job over time, from what is kept of it: iteration times, incidents, actions, starts.

The cluster keeps no history of iteration times (Prometheus may). An incident holds the iteration times around
it: healthy before its onset, slow since, and that at its end. An iteration time that rises by a tenth makes an
incident, so between incidents the time is taken for that which was measured last; such a stretch is marked as
*assumed*. A watch adds samples of the status.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kubectl_falcon.objects import Diagnosis, Event, Incident, Job, Run


@dataclass(frozen=True)
class Stretch:
    """An iteration time that holds from ``begin`` to ``end`` (unix seconds), in microseconds."""

    begin: float
    end: float
    microseconds: float
    measured: bool


@dataclass(frozen=True)
class Mark:
    """A thing that was done; ``number``: of its incident, from 1."""

    at: float
    what: str
    number: int


@dataclass(frozen=True)
class Shown:
    """An incident of the picture; ``note``: its diagnosis, where the status still has it."""

    number: int
    incident: Incident
    note: Diagnosis | None


@dataclass(frozen=True)
class Sample:
    """An iteration time of the status, as a watch saw it."""

    at: float
    microseconds: float


@dataclass(frozen=True)
class Timeline:
    """All that a picture shows, from ``begin`` to ``end``; unix seconds."""

    title: str
    begin: float
    end: float
    stretches: tuple[Stretch, ...]  # in order, without overlap
    stills: tuple[tuple[float, float], ...]  # training stood still
    shown: tuple[Shown, ...]
    marks: tuple[Mark, ...]
    starts: tuple[float, ...]  # of generations
    samples: tuple[Sample, ...]


def timeline(
    job: Job,
    run: Run | None,
    events: Sequence[Event],
    *,
    now: float,
    last_seconds: float | None = None,
    samples: Sequence[Sample] = (),
) -> Timeline:
    """Put a job's story together. ``now``: unix seconds; ``last_seconds``: only the newest part of it."""
    # A job without a start has waited for nodes since it was created.
    began = job.started_at or (run.started_at if run else 0.0) or job.created_at
    end = max(job.completed_at or now, began + 1.0)
    begin = began if last_seconds is None else max(began, end - last_seconds)
    incidents = run.incidents if run else ()
    notes = {note.id: note for note in job.diagnoses}
    seen = [each for each in incidents if (each.end or end) >= begin and each.begin <= end]
    shown = [Shown(number, each, notes.get(each.id)) for number, each in enumerate(seen, start=1)]
    marks = [
        Mark(step.at, step.what, each.number)
        for each in shown
        if each.note
        for step in each.note.done
        if begin <= step.at <= end
    ]
    return Timeline(
        title=f"{job.namespace}/{job.name}: {job.state or 'not seen by the operator yet'}",
        begin=begin,
        end=end,
        stretches=tuple(_clipped(_stretches(job, incidents, began, end), begin)),
        stills=tuple(sorted(still for each in seen for still in _still(each, begin, end))),
        shown=tuple(shown),
        marks=tuple(sorted(marks, key=lambda mark: mark.at)),
        starts=tuple(event.at for event in events if event.reason == "Started" and begin <= event.at <= end),
        samples=tuple(sample for sample in samples if begin <= sample.at <= end),
    )


def _still(incident: Incident, begin: float, end: float) -> list[tuple[float, float]]:
    """Return when training stood still for an incident, within ``begin`` and ``end``."""
    if incident.still_from is None:
        return []
    over = min(incident.still_to or end, end)
    return [(max(incident.still_from, begin), over)] if over > begin else []


def _stretches(job: Job, incidents: Sequence[Incident], begin: float, end: float) -> list[Stretch]:
    """Return the iteration times from ``begin`` to ``end``; of slowdowns that overlap, the later one counts."""
    found: list[Stretch] = []
    slow = [each for each in incidents if each.kind == "slow" and each.healthy_us and each.slow_us]
    at, level = begin, job.healthy_us
    for place, each in enumerate(slow):
        # A slowdown counts until the next one begins, even if it was closed later.
        following = slow[place + 1].begin if place + 1 < len(slow) else end
        onset, over = max(each.begin, at), min(each.end or end, following, end)
        if each.healthy_us:
            found.append(Stretch(at, onset, each.healthy_us, measured=False))
        found += _slowdown(each, onset, over)
        at, level = max(at, over), each.after_us or each.healthy_us
    # After the last incident, the newest measured time is the best guess for the rest.
    now = job.current_us or level
    if now:
        found.append(Stretch(at, end, now, measured=False))
    return [stretch for stretch in found if stretch.end > stretch.begin]


def _slowdown(slow: Incident, begin: float, end: float) -> list[Stretch]:
    """Return the slow iterations, and those between the restart that ended them and the end of the incident."""
    left = end if slow.still_from is None else min(slow.still_from, end)
    found = [Stretch(begin, left, slow.slow_us, measured=True)] if slow.slow_us else []
    if slow.still_to is not None and slow.after_us:
        found.append(Stretch(max(left, slow.still_to), end, slow.after_us, measured=True))
    return found


def _clipped(stretches: Sequence[Stretch], begin: float) -> list[Stretch]:
    return [
        Stretch(max(each.begin, begin), each.end, each.microseconds, each.measured)
        for each in stretches
        if each.end > begin
    ]
