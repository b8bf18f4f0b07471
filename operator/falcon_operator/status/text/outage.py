"""Say that a job waits for what lies outside it: what several nodes miss, since when, and when the next try comes."""

from __future__ import annotations

from falcon_core.errors.judge import Judge
from falcon_core.recovery import Outage, Policy, RecoveryState, StopIncident
from falcon_operator.base.time_format import clock_time
from falcon_operator.status.text.format import listed


def open_outage(recovery: RecoveryState) -> Outage | None:
    """Return the outage that the open failure is; None where nothing failed, or for another reason."""
    stop, outage = recovery.stop, recovery.habits.outage
    if stop is None or outage is None or outage.incident != stop.id or outage.at < stop.detected_at:
        return None
    return outage


def outage_brief(stop: StopIncident, outage: Outage) -> str:
    """Return what the job waits for and when the next try comes, for a line in a table."""
    return f"{_try(stop, outage)}, waiting for what lies outside the job"


def outage_next(stop: StopIncident, outage: Outage, policy: Policy) -> str:
    """Return what is done next about an outage, and when the job is given up for it."""
    end = clock_time(outage.since + policy.repeated.outage_seconds)
    then = "suspends" if policy.repeated.suspends else "ends"
    return f"{_try(stop, outage)}; a try that fails at {end} or later {then} the job (spec.recovery.outageWait)"


def outage_evidence(outage: Outage) -> str:
    """Return which nodes show the outage."""
    return f"{outage.total} nodes say so at once ({listed(outage.nodes, outage.total)}): the cause lies outside the job"


def outage_words(stop: StopIncident, outage: Outage, policy: Policy, now: float) -> str:
    """Return the words of the condition ``Recovering``. The time is in whole minutes, so that they change rarely."""
    minutes = int((now - outage.since) // 60)
    return (
        f"{outage_evidence(outage)}: {stop.fault.text}. Falcon has waited since {clock_time(outage.since)}"
        f" ({minutes} min); {outage_next(stop, outage, policy)}.{_remedy(stop, policy.judge)}"
    )


def _try(stop: StopIncident, outage: Outage) -> str:
    number = outage.tries + 1
    return f"try {number} is under way" if stop.acts_at is None else f"try {number} at {clock_time(stop.acts_at)}"


def _remedy(stop: StopIncident, judge: Judge) -> str:
    kind = judge.get(stop.fault.error_class)
    return f" {kind.remedy}" if kind is not None else ""
