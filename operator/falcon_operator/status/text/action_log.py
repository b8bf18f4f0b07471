"""Say what a strategy did and will do, one line per step."""

from __future__ import annotations

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery import Applied, Policy
from falcon_core.recovery.views import strategy_type
from falcon_operator.api.trainingjob import DoneStep
from falcon_operator.base.time_format import timestamp


def done_step(at: float, what: str) -> DoneStep:
    """Return a line of what was done. ``at``: unix seconds."""
    return DoneStep(at=timestamp(at), what=what)


def only_observed(applied: Applied) -> DoneStep:
    """Return the line of a strategy that mode Observe only wrote down."""
    would = strategy_type(applied.strategy).would_have_acted
    return done_step(applied.at, f"mode Observe: {would}; nothing was done")


def will_act(strategy: str, policy: Policy) -> str:
    """Return what a strategy of this type does, or what it would do in mode Observe."""
    facts = strategy_type(strategy)
    return facts.act if policy.enforce else f"mode Observe: {facts.would_act}"


def when_due(candidate: Candidate, policy: Policy) -> str:
    """Return what a strategy does when it is due; its price follows."""
    return f"{will_act(candidate.name, policy)} when the loss reaches"
