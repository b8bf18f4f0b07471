"""Describe measurements of machines and links during a pause, in the words of ``kubectl describe`` and Events."""

from __future__ import annotations

from falcon_core.model import Evidence
from falcon_core.planning import ski_rental
from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery import Check, Measured, Policy, Probed, RecoveryState, SlowIncident
from falcon_core.recovery.preflight.link_test import LEAST_MACHINES
from falcon_core.recovery.views import probe_targets, strategy_type
from falcon_operator.api.trainingjob import CheckStatus, PausesStatus
from falcon_operator.base.effects import Event
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.status.text.format import link_where

_WHAT: dict[Measured, str] = {
    "Links": "the links between the pods are",
    "Machines": "the pods' machines are",
    "Both": "the pods' machines, and the links between them, are",
}


def _doing(phase: str, measures: Measured) -> str:
    match phase:
        case "Prepare":
            return f"{_WHAT[measures]} about to be measured; training goes on until then"
        case "Hold":
            return f"all ranks are paused at the start of an iteration while {_WHAT[measures]} measured"
        case _:
            return "training goes on"


def is_probed(state: RecoveryState, slow: SlowIncident) -> bool:
    """Check whether something is being measured for an incident."""
    return (
        state.probe is not None and state.probe.incident == probe_targets.key(slow) and state.probe.phase != "Release"
    )


def probe_next(
    state: RecoveryState, slow: SlowIncident, policy: Policy, pods: int, next_strategy: Candidate | None
) -> str:
    """Return what is next where something is to be measured under a pause; "" where nothing is.

    ``pods``: of the job. ``next_strategy``: against the incident.
    """
    of_links = probe_targets.is_unknown_link(slow)
    if not slow.id or not policy.enforce or not (of_links or probe_targets.is_doubted_machine(slow, policy)):
        return ""
    probe = state.probe
    if probe is not None and is_probed(state, slow):
        return f"validating: {_doing(probe.phase, probe.measures)}"
    # A measurement needs peers to compare with.
    if pods < (LEAST_MACHINES if of_links else 2):
        return ""
    if of_links:
        return _links_next(state, slow, policy)
    # A machine is measured only when its node would be replaced by now: a pause costs all ranks time.
    is_due = (
        slow.node_fault.evidence is not Evidence.TESTED_AS_FAST
        and next_strategy is not None
        and strategy_type(next_strategy.name).needs_node_evidence
        and ski_rental.due(next_strategy, slow.loss)
        and may_be_tested(policy)
        and (slow.probed or Probed()).tries < probe_targets.MOST_TRIES
    )
    if next_strategy is None or not is_due or not state.pauses.since:
        return ""
    at = clock_time(probe_targets.allowed_at(state, slow, policy))
    before = strategy_type(next_strategy.name).machine_leaves
    return (
        f"before {before}, its machine is measured against its peers' while training is paused, from {at} on"
        " (spec.detection.pauseBudget)"
    )


def may_be_tested(policy: Policy) -> bool:
    """Check whether a slow rank's machine may be measured while training stands still."""
    return policy.enforce and policy.pause_budget > 0 and policy.world_size <= probe_targets.MOST_RANKS


def _links_next(state: RecoveryState, slow: SlowIncident, policy: Policy) -> str:
    if policy.world_size > probe_targets.MOST_RANKS:
        return (
            f"no action: Falcon does not pause jobs of more than {probe_targets.MOST_RANKS} ranks to find the slow link"
        )
    if not policy.pause_budget:
        return "no action: Falcon could find the slow link if spec.detection.pauseBudget allowed a pause"
    if (slow.probed or Probed()).tries >= probe_targets.MOST_TRIES:
        return (
            f"no action: Falcon tried {probe_targets.MOST_TRIES} times to measure the links in a pause, and did not"
            " find the slow one"
        )
    if not state.pauses.since:
        return ""
    at = clock_time(probe_targets.allowed_at(state, slow, policy))
    return f"the links are measured while training is paused, from {at} on (spec.detection.pauseBudget)"


def probe_evidence(slow: SlowIncident) -> str:
    """Return what measuring has shown, as a further part of the evidence; "" where nothing was measured."""
    probed = slow.probed
    if probed is None or not probed.at:
        return ""
    at = clock_time(probed.at)
    pause = (
        f"during a pause of {probed.standstill_seconds:.1f} s"
        if probed.standstill_seconds
        else "with all ranks at rest"
    )
    match probed.found:
        case "Link":
            return f"; the link between these two, measured {pause} at {at}: {probed.text}"
        case "Machine":
            return f"; this node's links, measured {pause} at {at}: {probed.text}"
        case "Alike":
            return f"; the links were measured {pause} at {at}: {probed.text}"
        case "Slow" | "AsFast":
            return f"; its machine, measured {pause} at {at} against its peers': {probed.text}"
        case _:
            what = "its machine" if slow.link is None else "the links"
            return f"; at {at} {what} could not be measured: {probed.text}"


def pauses(state: RecoveryState) -> PausesStatus | None:
    """Return how often, and for how long, all ranks stood still to be measured; None where they never did."""
    known = state.pauses
    return PausesStatus(count=known.count, milliseconds=round(1e3 * known.seconds)) if known.count else None


def check_status(state: RecoveryState) -> CheckStatus | None:
    """Return how far the check is that a user requested; None without a request."""
    check = state.check
    if check is None:
        return None
    return CheckStatus(
        asked=check.asked,
        state=check.state,
        at=timestamp(check.at) if check.at else "",
        standstill_milliseconds=round(1e3 * check.standstill_seconds),
        slow=check.slow,
        result=check.text,
    )


def probe_events(before: RecoveryState, after: RecoveryState) -> list[Event]:
    """Return the Events of a probe: training is about to stand still, and what has come of it."""
    found = []
    old, new = before.probe, after.probe
    if new is not None and new.phase == "Hold" and (old is None or (old.number, old.phase) != (new.number, "Hold")):
        found.append(Event("Normal", "Validating", _doing("Hold", new.measures)))
    if after.check is not None and after.check.at and (before.check is None or before.check.at != after.check.at):
        found.append(_checked(after.check))
    # A probe's result stays in the state, and only a new one is an Event.
    known = {
        slow.probed.at
        for slow in (before.leader, before.concurrent_link)
        if slow is not None and slow.probed is not None
    }
    for slow in (after.leader, after.concurrent_link):
        probed = slow.probed if slow is not None else None
        if slow is not None and probed is not None and probed.at and probed.at not in known:
            found.append(_probed(slow, probed))
    return found


def _probed(slow: SlowIncident, probed: Probed) -> Event:
    match probed.found:
        case "Link" | "Machine" if slow.link is not None:
            return Event("Warning", "LinkLocated", f"{link_where(slow.link)}; {probed.text}")
        case "Alike":
            return Event("Normal", "LinksAlike", probed.text)
        case "Slow":
            return Event("Warning", "MachineSlow", f"node {probed.node}: {probed.text}")
        case "AsFast":
            return Event("Normal", "MachineAsFast", f"node {probed.node}: {probed.text}")
        case _:
            what = "the links" if slow.culprit is None else "the slow rank's machine"
            return Event("Warning", "NotValidated", f"{what} could not be measured: {probed.text}")


def _checked(check: Check) -> Event:
    """Return the Event of a check that a user requested."""
    if check.state == "Failed":
        return Event("Warning", "CheckFailed", f"nothing could be measured: {check.text}")
    if check.slow:
        return Event("Warning", "Checked", f"{check.text}: {'; '.join(check.slow)}")
    return Event("Normal", "Checked", check.text)
