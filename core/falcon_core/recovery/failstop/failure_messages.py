"""Write the message with which a job is given up: what failed, how often, and what helps."""

from __future__ import annotations

from falcon_core.model import Cause
from falcon_core.recovery.model.failure import Fault, StopIncident
from falcon_core.recovery.model.policy import Policy


def farewell(incident: StopIncident, policy: Policy) -> str:
    """Return why the job is given up, as a sentence for its condition ``Failed``."""
    fault = incident.fault
    who = f"rank {fault.rank}" if fault.rank is not None else f"replica {fault.replica}"
    spent = f"after {policy.restarts} restarts within {policy.window_seconds / 60:.0f} minutes"
    if fault.cause is Cause.HANG and fault.rank is None:
        return f"the job {fault.text}, {spent}"
    if fault.error and not incident.iterations and len(incident.done) < policy.restarts:
        return (
            f"{who} (pod {fault.pod_name}) {fault.text}; no restart mends that: {_logs(fault)}.{_remedy(fault, policy)}"
        )
    where = f"{who} (pod {fault.pod_name}, node {fault.node or 'none'})"
    remedy = _remedy(fault, policy)
    if fault.of_job and not fault.container:  # a limit of its own spec: its output does not know of it
        return f"{where} {fault.text}, {spent} (spec.recovery).{remedy}"
    return f"{where} {fault.text}, {spent} (spec.recovery); its output says why: {_logs(fault)}" + (
        f".{remedy}" if fault.of_job and remedy else ""
    )


def _logs(fault: Fault) -> str:
    container = f" -c {fault.container}" if fault.container else ""
    return f"kubectl logs {fault.pod_name}{container}"


def _remedy(fault: Fault, policy: Policy) -> str:
    kind = policy.judge.get(fault.error_class)
    return f" {kind.remedy}" if kind is not None and kind.remedy and not kind.vague else ""
