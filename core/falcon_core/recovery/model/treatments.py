"""Which strategies were applied against a slowdown: the questions that the ladder asks of ``SlowIncident.applied``."""

from __future__ import annotations

from falcon_core.recovery.model.observation import Policy
from falcon_core.recovery.model.state import Applied, SlowIncident


def was_applied(slow: SlowIncident, strategy: str) -> bool:
    """Check whether a strategy of this type was applied, or in mode Observe written down."""
    return any(applied.strategy == strategy for applied in slow.applied)


def newest(slow: SlowIncident, strategy: str) -> Applied | None:
    """Return the newest application of a strategy; None if there was none."""
    return next((applied for applied in reversed(slow.applied) if applied.strategy == strategy), None)


def only(slow: SlowIncident, strategy: str) -> list[Applied]:
    """Return the applications of this strategy."""
    return [applied for applied in slow.applied if applied.strategy == strategy]


def without(slow: SlowIncident, strategy: str) -> list[Applied]:
    """Return the applications of all other strategies."""
    return [applied for applied in slow.applied if applied.strategy != strategy]


def in_force(slow: SlowIncident, policy: Policy) -> list[Applied]:
    """Return what was carried out; in mode Observe also what was written down."""
    return [applied for applied in slow.applied if not (applied.observed_only and policy.enforce)]
