"""Record what happened when: segments for core's goodput account, iteration times, and notes for people."""

from __future__ import annotations

import msgspec

from falcon_core.planning.goodput import Activity, Goodput, Segment, account
from falcon_core.recovery import (
    Abandon,
    Command,
    Event,
    GiveUp,
    Prepare,
    Recreate,
    Replace,
    Restart,
    SlowClosed,
    StopClosed,
    Swap,
    Switch,
)
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.scenario import Job

_JOINED_SECONDS = 1e-6


class Note(msgspec.Struct, frozen=True):
    """One line of the story."""

    at_seconds: float
    kind: str
    text: str


class Restarted(msgspec.Struct, frozen=True):
    """A generation that began after another one."""

    at_seconds: float
    redone_iterations: float  # that were made before, since the checkpoint from which it began
    planned: bool  # for a slow node, and not after a failure


class Timeline:
    """A run's timeline, built from the first moment to the last."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._segments: list[Segment] = []
        self.notes: list[Note] = []
        self.restarts: list[Restarted] = []
        self.ends_seconds: list[Floats] = []
        self.iteration_seconds: list[Floats] = []
        self.made = 0.0
        self.lost = 0.0

    @property
    def useful(self) -> float:
        return self.made - self.lost

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments)

    def note(self, at_seconds: float, kind: str, text: str) -> None:
        self.notes.append(Note(round(at_seconds, 3), kind, text))

    def note_decision(self, at_seconds: float, decided: Command | Event) -> None:
        """Note what the recovery did, or which incident it closed."""
        match decided:
            case SlowClosed(outcome=outcome, incident=incident):
                self.note(at_seconds, "closed", f"slowdown {incident.id or 'unlocated'}: {outcome}")
            case StopClosed(seconds=seconds, incident=incident):
                self.note(at_seconds, "closed", f"failure {incident.id}: training again after {seconds:.0f} s")
            case Prepare(replica=replica, reason=reason):
                self.note(at_seconds, "action", f"replica {replica} to be replaced: {reason}")
            case Replace(replica=replica, reason=reason):
                self.note(at_seconds, "action", f"replica {replica} replaced: {reason}")
            case Swap(pods_of=pods_of):
                moved = [str(role) for role, of in enumerate(pods_of) if role != of]
                self.note(at_seconds, "action", f"nodes exchanged: roles {', '.join(moved)}")
            case Restart() | Recreate() | Switch() | Abandon() | GiveUp():
                self.note(at_seconds, "action", type(decided).__name__)
            case _:
                pass  # a hang's end: the simulator has none

    def add(self, activity: Activity, start: float, end: float, iterations: float = 0.0) -> None:
        """Add the time from ``start`` to ``end``, joined with the segment before if the activity is the same."""
        if end <= start:
            return
        self.made += iterations
        last = self._segments[-1] if self._segments else None
        if last is not None and last.activity is activity and abs(last.end_seconds - start) < _JOINED_SECONDS:
            longer = msgspec.structs.replace(last, end_seconds=end, iterations=last.iterations + iterations)
            self._segments[-1] = longer
            return
        self._segments.append(
            Segment(
                activity=activity,
                start_seconds=last.end_seconds if last is not None else start,
                end_seconds=end,
                workers=self._workers,
                iterations=iterations,
            )
        )

    def train(self, activity: Activity, start: float, seconds: Floats, count: int | None = None) -> None:
        """Add iterations, one after another: [n] seconds; or one stretch that stands for ``count``."""
        self.add(activity, start, start + float(seconds.sum()), float(len(seconds) if count is None else count))
        self.ends_seconds.append(start + seconds.cumsum())
        self.iteration_seconds.append(seconds if count is None else seconds / count)

    def restart(self, at_seconds: float, iterations: float, *, planned: bool) -> None:
        """Take off iterations that were made before and are gone (back to a checkpoint)."""
        self.restarts.append(Restarted(at_seconds, iterations, planned))
        if iterations and self._segments:
            last = self._segments[-1]
            lost = last.lost_iterations + iterations
            self._segments[-1] = msgspec.structs.replace(last, lost_iterations=lost)
            self.lost += iterations

    def goodput(self, job: Job, healthy_seconds: float) -> Goodput:
        """Return core's account of the timeline."""
        return account(
            self._segments,
            healthy_iteration_seconds=healthy_seconds,
            weight=job.weight,
            flops_per_iteration=job.flops_per_iteration,
            peak_flops_per_worker=job.peak_flops_per_worker,
        )
