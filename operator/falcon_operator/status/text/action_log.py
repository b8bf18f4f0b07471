"""List what was done about an incident, one line per step."""

from __future__ import annotations

from falcon_operator.api.trainingjob import DoneStep
from falcon_operator.base.time_format import timestamp


def done_step(at: float, what: str) -> DoneStep:
    """Return a line of what was done. ``at``: unix seconds."""
    return DoneStep(at=timestamp(at), what=what)
