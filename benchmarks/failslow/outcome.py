"""One fault from its beginning to its end: when it was named, what was done, and how fast the job was meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from benchmarks.failslow.kinds import SETTLED_SECONDS, Kind, Struck, named_by
from benchmarks.failstop.stage import heal
from dev.install import wait_for_spare
from dev.kubectl import Json, KubectlError, WaitTimeoutError, wait_for
from tests.e2e.jobs import Job

SETTLED_ITERATIONS: Final = 100  # transfers are judged against the job's own healthy transfers
STEPS: Final = 20  # of a median
SLOW_STEPS: Final = 8  # before an action, or before the fault ends
LOOK_SECONDS: Final = 0.5
FAST_AGAIN: Final = 0.5  # of what was lost that an action has to remove at least


class Outcome(msgspec.Struct, kw_only=True):
    """What came of one fault. Seconds; times since the fault began."""

    kind: str
    healthy: float = 0.0  # an iteration
    slow: float | None = None  # likewise, while the fault was on and nothing was done
    after: float | None = None  # likewise, in the end
    named: float | None = None  # all of it
    acted: float | None = None
    standstill: float | None = None  # of the action, between two steps
    actions: list[str] = []
    problems: list[str] = []
    notes: dict[str, Json] = {}  # by id: what was open while the fault was on, as it was last

    @property
    def removed(self) -> float | None:
        """Return which part of the slowdown the action has removed; None where nothing was done."""
        if self.acted is None or self.slow is None or self.after is None or self.slow <= self.healthy:
            return None
        return (self.slow - self.after) / (self.slow - self.healthy)


def suffer(job: Job, kind: Kind, rank: int) -> Outcome:
    """Bring a fault about in a job that is well, and follow it to its end."""
    _wait_quiet(job)
    healthy = job.own_clock_seconds(STEPS)
    outcome = Outcome(kind=kind.name, healthy=healthy)
    before, left = job.status(), _left(job)
    began, at = time.monotonic(), time.time()
    struck = kind.strike(job, rank)
    try:
        _follow(job, kind, struck, outcome, began)
        if kind.action:
            outcome.after = _settled(job)
    except (WaitTimeoutError, KubectlError, LookupError, AssertionError) as error:
        outcome.problems.append(f"{type(error).__name__}: {str(error)[:300]}")
    finally:
        struck.relieve()
    _measure(job, outcome, at)
    _judge(job, kind, struck, outcome, before, left)
    return outcome


def _wait_quiet(job: Job) -> None:
    """Wait until the job trains as before any fault, and a spare is there."""
    heal(job.kubectl, job, job.run())
    if "warmPoolRef" in job.get()["spec"]:
        wait_for_spare(job.kubectl)

    def quiet(status: Json) -> bool:
        notes = status.get("diagnoses") or []
        is_open = any(note.get("state", "Open") != "Resolved" for note in notes)
        return status.get("state") == "Running" and not is_open

    job.wait("it is well", quiet, 240)
    job.wait_settled(SETTLED_ITERATIONS)


def _follow(job: Job, kind: Kind, struck: Struck, outcome: Outcome, began: float) -> None:
    """Look at the job until all that is expected has happened."""
    counters = job.status()["counters"]
    relieved_at = 0.0
    while True:
        now = time.monotonic() - began
        status = job.status()
        listed = status.get("diagnoses") or []
        is_open = [note for note in listed if note.get("state", "Open") != "Resolved"]
        outcome.notes |= {note["id"]: note for note in listed if note in is_open or note["id"] in outcome.notes}
        notes = list(outcome.notes.values())
        if outcome.named is None and all(named_by(each, notes) for each in struck.expected):
            outcome.named = now
        if outcome.acted is None and status["counters"]["restarts"] > counters["restarts"]:
            outcome.acted = now
        ends = (kind.relieved_after and now > kind.relieved_after) or (
            kind.relieved_when_named
            and outcome.named is not None
            and now > outcome.named + SLOW_STEPS * outcome.healthy
        )
        if ends and not relieved_at:
            struck.relieve()
            relieved_at = now
        is_over = bool(notes) and all(_is_over(note, kind) for note in notes)
        if kind.action and outcome.acted is not None and outcome.named is not None and is_over:
            return
        if relieved_at and now > relieved_at + SETTLED_SECONDS:
            return
        if now > kind.limit_seconds:
            outcome.problems.append(f"not over after {now:.0f} s: {status.get('summary')}")
            return
        time.sleep(LOOK_SECONDS)


def _is_over(note: Json, kind: Kind) -> bool:
    """Check whether a diagnosis is over, or of a link that nothing is to be done about."""
    return note.get("state") == "Resolved" or (note["cause"] == "SlowLink" and kind.action != "SwapNodes")


def _settled(job: Job) -> float:
    """Return the time of an iteration once the ranks have trained for a while again."""
    seen = len(job.steps())
    wait_for("more steps", lambda: len(job.steps()) >= seen + STEPS, timeout_seconds=60)
    return job.own_clock_seconds(STEPS)


def _measure(job: Job, outcome: Outcome, at: float) -> None:
    """Add what the script's own clock says of the time of the fault."""
    steps = [line for line in job.all_lines() if line["event"] == "step"]
    ends = [float(step["unix_seconds"]) for step in steps]
    until = at + (outcome.acted or outcome.named or 0.0)
    during = [step["step_seconds"] for step, end in zip(steps, ends, strict=True) if at < end <= until]
    if len(during) >= 2:
        outcome.slow = statistics.median(during[-SLOW_STEPS:])
    if outcome.acted is not None:
        gaps = [after - before for before, after in pairwise(ends) if before >= at]
        outcome.standstill = max(gaps, default=None)


def _judge(job: Job, kind: Kind, struck: Struck, outcome: Outcome, before: Json, left_before: set[str]) -> None:
    """Note what was not as expected."""
    status, notes = job.status(), list(outcome.notes.values())
    restarts = status["counters"]["restarts"] - before["counters"]["restarts"]
    replaced = status["counters"]["replacements"] - before["counters"]["replacements"]
    outcome.actions = ["ReplaceNode"] * replaced + ["SwapNodes"] * (restarts - replaced if not replaced else 0)
    wrong: Callable[[str], Any] = outcome.problems.append
    for each in struck.expected:
        if named_by(each, notes) is None and not kind.relieved_after:
            wrong(f"not named: {', '.join(each.nodes)}; said: {[(note['where'], note['cause']) for note in notes]}")
    expected = {node for each in struck.expected for node in each.nodes}
    for note in notes:
        if not any(node in note["where"] for node in expected) and note["cause"] not in ("SlowLink", "Hang"):
            wrong(f"an innocent is named: {note['where']} ({note['cause']})")
    if not kind.action and restarts:
        wrong(f"acted where nothing was to be done: {status['counters']}")
    if kind.action and kind.action not in outcome.actions:
        wrong(f"{kind.action} was expected, and {outcome.actions or 'nothing'} was done")
    left = _left(job) - left_before - expected
    if left:
        wrong(f"innocent nodes were left: {', '.join(sorted(left))}")
    removed = outcome.removed
    if kind.checks_speed and removed is not None and removed < FAST_AGAIN:
        wrong(f"of the slowdown {100 * removed:.0f} % was removed")


def _left(job: Job) -> set[str]:
    """Return the nodes that the job does not use any more."""
    return {each["node"] for each in job.run().get("exclusions", [])}


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
