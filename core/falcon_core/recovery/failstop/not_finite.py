"""Decide whether a number that stays NaN is answered by a restart from a checkpoint before it.

A checkpoint is sound where a finite value of the same number was read after it had been saved: that value was computed
from the same parameters. So the ranks may load what was saved before the last finite value, and nothing newer. A NaN
comes back where the program or its data make it, so that the restart is tried once in a window.
"""

from __future__ import annotations

from typing import Literal

from falcon_core.model import Cause, Severity
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Look, NumberSeen
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.repairs import by_cause, restart_budget
from falcon_core.times import CLOCK_SECONDS, PRINTED_SECONDS

Hindrance = Literal["NoNumber", "Observed", "Repeated", "NeverFinite", "NothingHeld", "NothingSound", "Recovering"]


def due(state: RecoveryState, look: Look) -> Fault | None:
    """Return the number that stays NaN as a fault where the job is to be restarted for it; else None."""
    number = _first(look)
    if number is None or hindrance(state, look) is not None:
        return None
    member = look.obs.members[number.replica]
    at = "" if number.iteration is None else f" at iteration {number.iteration}"
    return Fault(
        severity=Severity.SEV2,
        cause=Cause.DIVERGED,
        text=f"printed {number.metric} that is NaN or infinite{at}",
        replica=member.replica,
        pod_name=member.pod_name,
        node=member.node,
        rank=number.rank,
    )


def saved_before(look: Look) -> float | None:
    """Return before when a checkpoint must have been saved to be sound (unix seconds); None where that is not known.

    By then it was saved by any node's clock, and any line that was printed later has been read.
    """
    number = _first(look)
    if number is None or number.finite_at is None:
        return None
    return number.finite_at - PRINTED_SECONDS - CLOCK_SECONDS


def hindrance(state: RecoveryState, look: Look) -> Hindrance | None:
    """Return why nothing is restarted for the numbers that stay NaN; None where the restart is due."""
    obs, policy = look.obs, look.policy
    if not obs.spoilt.numbers:
        return "NoNumber"
    if not policy.enforce:
        return "Observed"
    if restarted_at(state, look) is not None:
        return "Repeated"
    if state.stop is not None:
        return "Recovering"
    before, held_at = saved_before(look), obs.spoilt.held_at
    if before is None:
        return "NeverFinite"
    if held_at is None:
        return "NothingHeld"
    # The ranks look into the folder themselves: the operator knows of what lies there only while they hold it, too.
    return None if obs.spoilt.copies_in_folder or any(at < before for at in held_at) else "NothingSound"


def restarted_at(state: RecoveryState, look: Look) -> float | None:
    """Return when the job was restarted for such a number within the window (unix seconds); None where it was not."""
    recent = restart_budget.recent(state.attempts, look.obs.now, look.policy.window_seconds)
    return next((attempt.at for attempt in reversed(recent) if attempt.kind == by_cause.REWOUND.attempt), None)


def _first(look: Look) -> NumberSeen | None:
    """Return the number that was finite longest ago, of those that ever were: the parameters were spoilt by then."""
    known = [(number.finite_at, number) for number in look.obs.spoilt.numbers if number.finite_at is not None]
    return min(known, key=lambda each: each[0])[1] if known else None
