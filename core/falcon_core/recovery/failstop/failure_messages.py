"""Write the message with which a job is given up: what failed, how often, and what helps."""

from __future__ import annotations

from falcon_core.model import Cause
from falcon_core.recovery.model.failure import Fault, Outage, Repeat, StopIncident
from falcon_core.recovery.model.policy import Policy


def farewell(incident: StopIncident, policy: Policy) -> str:
    """Return why the job is given up, as a sentence for its condition ``Failed``."""
    fault = incident.fault
    pod = _pod(fault)
    where = pod if fault.is_of_all_ranks else f"{_who(fault)} (pod {fault.pod_name}, node {fault.node or 'none'})"
    spent = f"after {policy.restarts} restarts within {policy.window_seconds / 60:.0f} minutes"
    if fault.cause is Cause.HANG and fault.rank is None:
        return f"the job {fault.text}, {spent}"
    # The program fails before its first iteration, in the same way each time: point to its own output.
    if fault.error and not incident.iterations and len(incident.done) < policy.restarts:
        return f"{pod} {fault.text}; no restart mends that: {_logs(fault)}.{_remedy(fault, policy)}"
    remedy = _remedy(fault, policy)
    if fault.of_job and not fault.container:  # a limit of its own spec: its output does not know of it
        return f"{where} {fault.text}, {spent} (spec.recovery).{remedy}"
    return f"{where} {fault.text}, {spent} (spec.recovery); its output says why: {_logs(fault)}" + (
        f".{remedy}" if fault.of_job and remedy else ""
    )


def farewell_to_repeated(incident: StopIncident, repeat: Repeat, policy: Policy) -> str:
    """Return why a job is given up whose failure has come again and again."""
    fault = incident.fault
    who = _pod(fault)
    at = f", {repeat.same_iteration} times at iteration {repeat.iterations}" if repeat.same_iteration > 1 else ""
    nodes = f", on nodes {' and '.join(repeat.nodes)}" if len(repeat.nodes) > 1 else ""
    # A job that waits has no pods, and their logs are gone with them.
    logs = "" if policy.repeated.suspends else f": {_logs(fault)}"
    return (
        f"{who} {fault.text}; the same failure has come {repeat.times} times{at}{nodes}, so that no restart mends"
        f" it{logs}.{_remedy(fault, policy)}"
    )


def farewell_to_outage(incident: StopIncident, outage: Outage, policy: Policy) -> str:
    """Return why a job is given up that has waited in vain for what lies outside it."""
    fault = incident.fault
    who = _pod(fault)
    minutes = outage.lasted_seconds / 60
    logs = "" if policy.repeated.suspends else f": {_logs(fault)}"
    return (
        f"{who} {fault.text}; {outage.total} nodes say so at once, and after {outage.tries} restarts within"
        f" {minutes:.0f} min it has not come back (spec.recovery.outageWait){logs}.{_remedy(fault, policy)}"
    )


def _pod(fault: Fault) -> str:
    """Return the rank, or else the replica, with its pod; the job where all ranks failed alike."""
    return "the job:" if fault.is_of_all_ranks else f"{_who(fault)} (pod {fault.pod_name})"


def _who(fault: Fault) -> str:
    return f"rank {fault.rank}" if fault.rank is not None else f"replica {fault.replica}"


def _logs(fault: Fault) -> str:
    container = f" -c {fault.container}" if fault.container else ""
    return f"kubectl logs {fault.pod_name}{container}"


def _remedy(fault: Fault, policy: Policy) -> str:
    kind = policy.judge.get(fault.error_class)
    return f" {kind.remedy}" if kind is not None and kind.remedy and not kind.vague else ""
