"""Links that are measured while training stands still, in the words of ``kubectl describe`` and as Events."""

from __future__ import annotations

from falcon_core.recovery import probing
from falcon_core.recovery.observation import Policy
from falcon_core.recovery.preflight_links import LEAST_MACHINES
from falcon_core.recovery.state import RecoveryState, SlowIncident
from falcon_core.recovery.strategies import swap_nodes
from falcon_operator.effects import Event
from falcon_operator.pauses import PausesStatus
from falcon_operator.status.words import link_where
from falcon_operator.times import clock_time

_DOING = {
    "Prepare": "the pods get ready to measure the links between them, while training goes on",
    "Hold": "all ranks stand still at an iteration's start while the links between the pods are measured",
    "Release": "training goes on",
}


def is_probed(state: RecoveryState, slow: SlowIncident) -> bool:
    """Check whether links are being measured for an incident."""
    return state.probe is not None and state.probe.incident == slow.id and state.probe.phase != "Release"


def probe_next(state: RecoveryState, slow: SlowIncident, policy: Policy, pods: int) -> str:
    """Return what is next where a link is slow and it is not known which; "" where no link is to be measured.

    ``pods``: of the job.
    """
    link, probed, probe = slow.link, slow.probed, state.probe
    if link is None or swap_nodes.has_ends(link) or not slow.id or slow.phase != "Detected" or not policy.enforce:
        return ""
    if probe is not None and is_probed(state, slow):
        return f"validating: {_DOING[probe.phase]}"
    if pods < LEAST_MACHINES:
        return ""
    if policy.world_size > probing.MOST_RANKS:
        return f"endured: jobs of more than {probing.MOST_RANKS} ranks are not paused to measure which link it is"
    if not policy.pause_budget:
        return "endured: which link it is would show if spec.detection.pauseBudget allowed a pause"
    tries = 0 if probed is None else probed.tries
    if tries >= probing.MOST_TRIES:
        return f"endured: {tries} times the links were to be measured under a pause, and it is not known which it is"
    if not state.pauses.since:
        return ""
    at = clock_time(probing.allowed_at(state, policy))
    return f"the links are measured while training stands still, from {at} on (spec.detection.pauseBudget)"


def probe_evidence(slow: SlowIncident) -> str:
    """Return what measuring the links has shown, as a further part of the evidence; "" where none were measured."""
    probed = slow.probed
    if probed is None or not probed.at:
        return ""
    pause = (
        f"during a pause of {probed.standstill_seconds:.1f} s"
        if probed.standstill_seconds
        else "with all ranks at rest"
    )
    match probed.found:
        case "Link":
            return f"; the link between these two, measured {pause} at {clock_time(probed.at)}: {probed.text}"
        case "Machine":
            return f"; this node's links, measured {pause} at {clock_time(probed.at)}: {probed.text}"
        case "Alike":
            return f"; the links were measured {pause} at {clock_time(probed.at)}: {probed.text}"
        case _:
            return f"; at {clock_time(probed.at)} the links could not be measured: {probed.text}"


def pauses(state: RecoveryState) -> PausesStatus | None:
    """Return how often, and for how long, all ranks stood still to be measured; None where they never did."""
    known = state.pauses
    return PausesStatus(count=known.count, milliseconds=round(1e3 * known.seconds)) if known.count else None


def probe_events(before: RecoveryState, after: RecoveryState) -> list[Event]:
    """Return the Events of a probe: training is about to stand still, and what has come of it."""
    found = []
    old, new, slow = before.probe, after.probe, after.slow
    if new is not None and new.phase == "Hold" and (old is None or (old.number, old.phase) != (new.number, "Hold")):
        found.append(Event("Normal", "Validating", _DOING["Hold"]))
    probed = slow.probed if slow is not None else None
    known = before.slow.probed if before.slow is not None else None
    if slow is None or slow.link is None or probed is None or not probed.at:
        return found
    if known is not None and known.at == probed.at:
        return found
    match probed.found:
        case "Link" | "Machine":
            found.append(Event("Warning", "LinkLocated", f"{link_where(slow.link)}; {probed.text}"))
        case "Alike":
            found.append(Event("Normal", "LinksAlike", probed.text))
        case _:
            found.append(Event("Warning", "NotValidated", f"the links could not be measured: {probed.text}"))
    return found
