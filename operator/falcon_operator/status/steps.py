"""What was done about an incident, line by line."""

from __future__ import annotations

from falcon_core.recovery.state import Applied, SlowIncident
from falcon_operator.api import DoneStep
from falcon_operator.times import timestamp


def applied(slow: SlowIncident, strategy: str) -> Applied | None:
    """Return how a strategy was applied to an incident the last time; None where it was not."""
    return next((each for each in reversed(slow.applied) if each.strategy == strategy), None)


def done_step(at: float, what: str) -> DoneStep:
    """Return a line of what was done. ``at``: unix seconds."""
    return DoneStep(at=timestamp(at), what=what)
