"""Run ``kubectl falcon top``: print a line for each job, the job that has lost most time first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from falcon_core.text import clean, clip
from kubectl_falcon.objects import Incident, Job, Run
from kubectl_falcon.words import iteration, span

_HEADS = ("NAMESPACE", "NAME", "STATE", "READY", "ITERATION", "HEALTHY", "SLOWDOWN", "LOST", "GOODPUT", "RESTARTS")
_MORE = ("REPLACED", "SUMMARY")
_GAP = "   "
_MOST_SUMMARY = 140


@dataclass(frozen=True)
class Row:
    """A job, the seconds that it is known to have lost, and at most which share of its time was of use."""

    job: Job
    lost_seconds: float | None
    goodput: float | None


def row(job: Job, run: Run | None, now: float) -> Row:
    """Return the figures of a job. ``now``: unix seconds.

    Lost is what the incidents cost that the run remembers: slow iterations, and training that stood still. The work
    that a restart repeats is not known, so the goodput is an upper bound. It is unknown where incidents have been
    dropped from the run, and for a job that was ever suspended.
    """
    if run is None:
        return Row(job, None, None)
    lost = sum(_lost(incident, now) for incident in run.incidents)
    lasted = (run.ended_at or job.completed_at or now) - run.started_at
    suspended = job.suspend or job.condition("Suspended") is not None
    known = run.is_complete and run.started_at > 0 and lasted > 0 and not suspended
    return Row(job, lost, max(0.0, 1 - lost / lasted) if known else None)


def _lost(incident: Incident, now: float) -> float:
    stands = incident.end is None and incident.still_from is not None and incident.still_to is None
    return incident.lost_seconds + (max(0.0, now - (incident.still_from or now)) if stands else 0.0)


def table(rows: Sequence[Row], *, namespaces: bool, width: int | None) -> str:
    """Return the table. ``namespaces``: with their column; ``width``: the terminal's columns, None where it is none."""
    ordered = sorted(rows, key=lambda each: (-(each.lost_seconds or 0.0), each.job.namespace, each.job.name))
    lines = [(*_HEADS, *_MORE), *(_cells(each) for each in ordered)]
    if not namespaces:
        lines = [line[1:] for line in lines]
    sizes = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    text = [_GAP.join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip() for line in lines]
    return "\n".join(line if width is None else clip(line, max(width, 1)) for line in text)


def _cells(each: Row) -> tuple[str, ...]:
    job = each.job
    return (
        clean(job.namespace),
        clean(job.name),
        clean(job.state) or "-",
        clean(job.ready) or "-",
        iteration(job.current_us) if job.current_us else "-",
        iteration(job.healthy_us) if job.healthy_us else "-",
        f"{job.slowdown:.2f}x" if job.slowdown is not None else "-",
        "-" if each.lost_seconds is None else span(each.lost_seconds),
        "-" if each.goodput is None else f"≤ {each.goodput:.1%}",
        str(job.restarts),
        str(job.replacements),
        clip(" ".join(clean(job.summary).split()), _MOST_SUMMARY),
    )
