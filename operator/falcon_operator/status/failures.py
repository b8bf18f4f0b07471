"""Put into words what a look at an object could not carry out, and decide when these words are shown.

The condition ReconcileFailed quotes the failure while it lasts; all else of the status stays as the last good look has
left it. A failure that often passes by itself is shown only after a while, and one that repeats with other figures is
no news: an outage of a second must not write into the status of every job.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_operator.api.common import Condition
from falcon_operator.base.ports import Conflict, Foreign, NewerLayout, NotFound, Oversize, Rejected, Unavailable
from falcon_operator.status.conditions import Finding
from falcon_operator.status.limits import CONDITION, fit_text, undigited

FAILED = "ReconcileFailed"
PATIENCE_SECONDS = 3.0  # that an outage, or a write that came too late, may last unseen
BUG_SECONDS = 1.0  # that an error of the operator's may last unseen: it is seen at its second time
REPEAT_SECONDS = 5.0  # at least, between two showings
REWORD_SECONDS = 60.0  # at least, between two wordings of one reason
EVENT_SECONDS = 300.0  # at least, between two Events of one reason
Reason = Literal[
    "NameTaken",
    "Refused",
    "TooLarge",
    "NewerLayout",
    "Conflict",
    "NotFound",
    "ApiServerError",
    "ApiServerUnreachable",
    "BusUnavailable",
    "InternalError",
]


class Failure(msgspec.Struct, frozen=True):
    """A thing that was not carried out."""

    reason: Reason
    message: str
    patience_seconds: float = 0.0  # that it may last before it is shown


class Spell(msgspec.Struct):
    """Looks in a row that failed, and what was shown of them; monotonic seconds."""

    since: float | None = None
    shown_at: float = float("-inf")
    event_reason: str = ""
    event_at: float = float("-inf")


def failure_of(error: Exception, what: str = "") -> Failure:
    """Return an error as a failure. ``what``: what was to be carried out, as an object of "carry out"."""
    doing = f"{what}: " if what else ""
    match error:
        case Foreign():
            return Failure("NameTaken", str(error))
        case Oversize():
            return Failure("TooLarge", str(error))
        case NewerLayout():
            return Failure("NewerLayout", str(error))
        case Rejected():
            return Failure("Refused", f"{doing}the API server refused it: {error}")
        # From here on: what mostly passes by itself, so that people hear of it only after a while.
        case Conflict():
            words = str(error) or "another client also writes the object"
            return Failure(
                "Conflict",
                f"{doing}every write came too late, because the object had changed: {words}",
                PATIENCE_SECONDS,
            )
        case NotFound():
            words = str(error) or "an object that should be there"
            return Failure("NotFound", f"{doing}the API server did not find it: {words}", PATIENCE_SECONDS)
        case Unavailable(status=None):
            return Failure("ApiServerUnreachable", f"{doing}the API server did not answer: {error}", PATIENCE_SECONDS)
        case Unavailable():
            return Failure("ApiServerError", f"{doing}the API server failed: {error}", PATIENCE_SECONDS)
        case OSError():
            words = str(error) or type(error).__name__
            return Failure(
                "BusUnavailable", f"{doing}neither etcd nor a gateway accepted it: {words}", PATIENCE_SECONDS
            )
        case _:
            words = f"{doing}a bug in the operator (the trace is in its log): {type(error).__name__}: {error}"
            return Failure("InternalError", words, BUG_SECONDS)


def finding(failure: Failure | None) -> Finding:
    """Return the condition's content; None: nothing fails any more."""
    if failure is None:
        return Finding(FAILED, False, "Reconciled", "the last look carried out everything")
    return Finding(FAILED, True, failure.reason, fit_text(failure.message, CONDITION))


def is_due(spell: Spell, failure: Failure, conditions: list[Condition], now: float) -> bool:
    """Check whether the failure is to be written into the status now. Begins the spell with the first failure."""
    if spell.since is None:
        spell.since = now
    if now - spell.since < failure.patience_seconds:
        return False
    shown = next((each for each in conditions if each.type == FAILED and each.status == "True"), None)
    wanted = finding(failure)
    if shown is None or shown.reason != wanted.reason:
        return now - spell.shown_at >= REPEAT_SECONDS
    reworded = undigited(shown.message) != undigited(wanted.message)
    return reworded and now - spell.shown_at >= REWORD_SECONDS


def needs_event(spell: Spell, failure: Failure, now: float) -> bool:
    """Check whether the failure is worth an Event of its own."""
    return spell.event_reason != failure.reason or now - spell.event_at >= EVENT_SECONDS
