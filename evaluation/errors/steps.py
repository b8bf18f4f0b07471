"""Say which step follows from a class of errors, as docs/errors.md and the ladder for failures have it."""

from __future__ import annotations

import enum

from falcon_core.errors.table import ErrorClass
from falcon_core.model import Severity
from falcon_core.recovery.views import repair_of


class Step(enum.StrEnum):
    """What is done about an error that one rank or node shows."""

    EVICT = "evict the node"
    RESTART = "restart the processes"
    RETRY = "retry in place"
    FAIL = "fail the job"
    NOTHING = "nothing"


def step_of(known: ErrorClass | None) -> Step:
    """Return the step of a class, as the table of repairs has it; None is a line of no class.

    A SEV3 is a single call's, which is tried again in place; that needs no repair.
    """
    if known is None:
        return Step.NOTHING
    repair = repair_of(known)
    if repair.leaves_node:
        return Step.EVICT
    if repair.ends_job:
        return Step.FAIL
    return Step.RETRY if known.severity is Severity.SEV3 else Step.RESTART


def is_right(wanted: Step, known: ErrorClass | None) -> bool:
    """Check whether a class leads to the step that is wanted.

    Where nothing can be tried again in place, a restart is the same step. Training goes on after an error that the
    hardware has corrected, or that passes by itself: there a retry in place and nothing are the same step, too.
    """
    step = step_of(known)
    if wanted is Step.RETRY:
        return step in (Step.RETRY, Step.RESTART)
    passes = known is not None and known.of_hardware and known.transient and not known.consequence
    return step is wanted or (wanted is Step.NOTHING and step is Step.RETRY and passes)


def step_named(words: str, at: str) -> Step:
    """Return the step that a label's words name. Raises ValueError, which names the place ``at``."""
    text = words.lower()
    for step, parts in (
        (Step.EVICT, ("evict", "leave", "replace")),
        (Step.FAIL, ("fail",)),
        (Step.RETRY, ("retry", "again")),
        (Step.RESTART, ("restart",)),
        (Step.NOTHING, ("nothing", "none", "ignore")),
    ):
        if any(part in text for part in parts):
            return step
    raise ValueError(f"{at}: step {words!r} is unknown; use {', '.join(Step)}")
