"""Follow a slowdown to its end: when it was named, what was done, and how fast the job was meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from dev.install import wait_for_spare
from dev.kubectl import Json, KubectlError, WaitTimeoutError, wait_for
from tests.e2e.campaigns.slow_faults import SETTLED_SECONDS, Kind, Struck, named_by
from tests.e2e.campaigns.stage import heal
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
    job.wait_training()
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
    restarts = job.status()["counters"]["restarts"]
    relieved_at = float("inf")
    while (now := time.monotonic() - began) <= kind.limit_seconds:
        _look(job.status(), struck, outcome, restarts, now)
        if relieved_at > now and _ends(kind, outcome, now):
            struck.relieve()
            relieved_at = now
        if now > relieved_at + SETTLED_SECONDS or _has_acted(kind, outcome):
            return
        time.sleep(LOOK_SECONDS)
    outcome.problems.append(f"not over after {kind.limit_seconds:.0f} s: {job.status().get('summary')}")


def _look(status: Json, struck: Struck, outcome: Outcome, restarts: int, now: float) -> None:
    """Note what is named, and that something was done. ``restarts``: before the fault."""
    for note in status.get("diagnoses") or []:
        if note.get("state", "Open") != "Resolved" or note["id"] in outcome.notes:
            outcome.notes[note["id"]] = note
    if outcome.named is None and all(named_by(each, list(outcome.notes.values())) for each in struck.expected):
        outcome.named = now
    if outcome.acted is None and status["counters"]["restarts"] > restarts:
        outcome.acted = now


def _ends(kind: Kind, outcome: Outcome, now: float) -> bool:
    """Check whether the fault is to end by itself now."""
    if kind.relieved_when_named:
        return outcome.named is not None and now > outcome.named + SLOW_STEPS * outcome.healthy
    return 0 < kind.relieved_after < now


def _has_acted(kind: Kind, outcome: Outcome) -> bool:
    """Check whether all is named, something was done, and it is known whether that has helped."""
    if not kind.action or outcome.acted is None or outcome.named is None:
        return False
    return all(_is_over(note, kind) for note in outcome.notes.values())


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
    status = job.status()
    restarts = status["counters"]["restarts"] - before["counters"]["restarts"]
    replaced = status["counters"]["replacements"] - before["counters"]["replacements"]
    outcome.actions = ["ReplaceNode"] * replaced + ["SwapNodes"] * (restarts - replaced if not replaced else 0)
    outcome.problems += _misnamed(kind, struck, list(outcome.notes.values()))
    wrong: Callable[[str], Any] = outcome.problems.append
    if not kind.action and restarts:
        wrong(f"acted where nothing was to be done: {status['counters']}")
    if kind.action and kind.action not in outcome.actions:
        wrong(f"{kind.action} was expected, and {outcome.actions or 'nothing'} was done")
    left = _left(job) - left_before - {node for each in struck.expected for node in each.nodes}
    if left:
        wrong(f"innocent nodes were left: {', '.join(sorted(left))}")
    removed = outcome.removed
    if kind.checks_speed and removed is not None and removed < FAST_AGAIN:
        wrong(f"of the slowdown {100 * removed:.0f} % was removed")


def _misnamed(kind: Kind, struck: Struck, notes: Sequence[Json]) -> list[str]:
    """Return what should have been named and was not, and which innocents were."""
    said = [(note["where"], note["cause"]) for note in notes]
    missing = [each for each in struck.expected if named_by(each, notes) is None and not kind.relieved_after]
    expected = {node for each in struck.expected for node in each.nodes}
    innocents = [
        (where, cause)
        for where, cause in said
        if not any(node in where for node in expected) and cause not in ("SlowLink", "Hang")
    ]
    return [
        *(f"not named: {', '.join(each.nodes)}; said: {said}" for each in missing),
        *(f"an innocent is named: {where} ({cause})" for where, cause in innocents),
    ]


def _left(job: Job) -> set[str]:
    """Return the nodes that the job does not use any more."""
    return {each["node"] for each in job.run().get("exclusions", [])}


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
