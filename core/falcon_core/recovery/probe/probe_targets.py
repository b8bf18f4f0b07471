"""Choose what is measured while training stands still, and check whether a pause is allowed (FALCON §4.3).

**Links** are measured in these cases:

- A link is slow, and it is not known which one. If that is a mere suspicion, it has to have lost what the pause costs.
- The job has been slow for so long that it is an incident (``history.reporting_threshold``), no rank is named, and no
  rank computes for longer than a healthy iteration lasts. A generation that began with a slow link looks like this: its
  agents have taken slow transfers for healthy.
- Micro-batches were moved away from slow ranks, named or not, and iterations are longer than that explains
  (``failslow.concurrent_link``).
- All ranks are slow, none computes longer than before, and that has lasted for longer than the job is used to. Then
  only the network is left.
- A group's transfers have taken longer than those of its kind since a generation began (``group_comparison``).
- An exchange of roles was not enough. Then they are measured once more, since another link may be slow as well.

**Machines** are measured if a rank is slow, its node would be replaced by now, and nothing shows yet that the node is
at fault (``history.node_fault``). Most slowness is the job's own, so the machine is tested before it is replaced.

**Both** are measured if a user requests it (``user_check``).

**The budget.** Training stands still for ``spec.detection.pauseBudget`` of the job's time at most, and never within
``APART_SECONDS`` of the last pause. An incident has ``MOST_TRIES``. A user's request is not refused by the budget, but
counts in it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from falcon_core.model import Evidence
from falcon_core.planning import ski_rental
from falcon_core.recovery.cost import unexplained
from falcon_core.recovery.diagnosis import slow_links
from falcon_core.recovery.history import reporting_threshold
from falcon_core.recovery.mitigation import strategy_ladder
from falcon_core.recovery.mitigation.strategy_table import strategy_type
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Measured, Probe, Probed
from falcon_core.recovery.model.slowdown import SlowIncident, SuspectedGroup
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.preflight.link_test import LEAST_MACHINES
from falcon_core.recovery.strategies import swap_for_link
from falcon_core.wire.reporting.messages import MAX_DETAILED

EXPECTED_SECONDS: Final = 3.0  # that a pause takes, before any was measured
APART_SECONDS: Final = 60.0
MOST_TRIES: Final = 3  # of an incident
GROWN: Final = 2.0  # × what an iteration took longer when links were alike: another link may have become slow
MOST_RANKS: Final = MAX_DETAILED
_UNNAMED: Final = "unnamed"  # no id is like it
_DOUBTED: Final = (Evidence.SINCE_START, Evidence.WORK_MAY_MOVE, Evidence.TESTED_AS_FAST)
replace = msgspec.structs.replace


class Target(msgspec.Struct, frozen=True):
    """What a probe measures. ``incident``: the id of the incident that needs it; "" for a request of a user."""

    measures: Measured
    incident: str = ""


def wanted(state: RecoveryState, look: Look) -> Target | None:
    """Return the target of the next measurement under a pause; None: nothing."""
    # What a user requests comes first.
    if state.check is not None and state.check.state == "Waiting":
        return Target("Both" if len(look.obs.members) >= LEAST_MACHINES else "Machines")
    slow = state.leader
    if slow is None:
        return None
    if _needs_links(state, slow, look):
        return Target("Links", key(slow))
    link = state.concurrent_link
    if link is not None and _concurrent_link_is_unknown(state, link):
        return Target("Links", key(link))
    # Each measurement is a pause of the whole job: a machine is measured only where its node would else be evicted.
    return Target("Machines", slow.id) if slow.id and _would_be_replaced(state, slow, look) else None


def key(slow: SlowIncident) -> str:
    """Return the name of the open incident in a probe: its id, if it has any."""
    return slow.id or _UNNAMED


def incident_of(state: RecoveryState, name: str) -> SlowIncident | None:
    """Return the incident with that ``key``; None where it is over."""
    return next(
        (slow for slow in (state.leader, state.concurrent_link) if slow is not None and key(slow) == name), None
    )


def _concurrent_link_is_unknown(state: RecoveryState, link: SlowIncident) -> bool:
    if _may_be_another(link):
        return True
    return is_unknown_link(link) and (link.is_incident or _has_paid(state, link))


def _may_be_another(slow: SlowIncident) -> bool:
    """Check whether an exchange of roles against a link was not enough, and links were not measured since."""
    swapped, measured_at = slow.swapped, slow.probed.at if slow.probed is not None else 0.0
    if slow.link is None or not slow.unexplained or swapped is None or not swapped.failed:
        return False
    return measured_at < (slow.restart.switched_at or swapped.failed_at)


def _needs_links(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    if is_unknown_link(slow) or is_suspected_group(slow) or _may_be_another(slow):
        return True
    if is_unnamed(slow, look) or _is_left_to_the_network(state, slow, look):
        return True
    if not _is_nameless(slow) or not look.obs.shared_unevenly or not _has_paid(state, slow):
        return False
    return unexplained.is_beyond_shares(state, slow, look)


def _is_left_to_the_network(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    """Check whether a slowdown without a named rank has paid for a pause, and its ranks compute as before."""
    if not _is_nameless(slow) or slow.usual is not None or slow.onset.generation != look.obs.generation:
        return False
    if not _has_paid(state, slow) or reporting_threshold.is_usual(state, slow, look):
        return False
    return not look.obs.shared_unevenly and slow_links.is_of_the_network(look)


def _has_paid(state: RecoveryState, slow: SlowIncident) -> bool:
    """Check whether a slowdown has lost what a pause costs."""
    return slow.loss.seconds >= _expected_seconds(state)


def _expected_seconds(state: RecoveryState) -> float:
    """Return the expected standstill of the next pause [s]."""
    return max(EXPECTED_SECONDS, state.pauses.longest_seconds)


def _is_nameless(slow: SlowIncident) -> bool:
    return slow.unexplained and not slow.id and slow.link is None


def is_unnamed(slow: SlowIncident, look: Look) -> bool:
    """Check whether the job is slow, no rank is named, and every rank's computation fits into a healthy iteration."""
    if (
        slow.id
        or slow.phase != "Detected"
        or slow.usual is not None
        or len(look.obs.compute_levels[0]) < look.policy.world_size
    ):
        return False
    longest_ns = float(look.obs.compute_levels[1].max(initial=0.0))
    return longest_ns <= (slow.times.well_ns) * (1 + look.policy.verify) < slow.times.slow_ns


def is_unknown_link(slow: SlowIncident) -> bool:
    """Check whether a link is slow, or suspected, and it is not known which."""
    return slow.link is not None and slow.unexplained and not swap_for_link.has_ends(slow.link)


def is_suspected_group(slow: SlowIncident) -> bool:
    """Check whether a slowdown is the mere suspicion that a group's transfers are slow (``group_comparison``)."""
    return isinstance(slow.subject, SuspectedGroup)


def is_doubted_machine(slow: SlowIncident, policy: Policy) -> bool:
    """Check whether a rank is slow, and nothing shows whether its node is at fault or its share of the work."""
    if slow.phase != "Located" or policy.confidence != "High":
        return False
    evidence, probed = slow.node_fault.evidence, slow.probed
    # Two slow nodes look like a share of the work that came along, until one of the machines is measured.
    if evidence is Evidence.FOLLOWS_THE_ROLE and slow.culprit is not None:
        return probed is None or probed.node != slow.culprit.node
    return evidence in _DOUBTED


def _would_be_replaced(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    """Check whether the slow rank's node would leave its role now, were it known to be at fault."""
    if not is_doubted_machine(slow, look.policy):
        return False
    strategy = strategy_ladder.next_of(state, slow, look)
    if strategy is None or not strategy_type(strategy.name).needs_node_evidence:
        return False
    return ski_rental.due(strategy, slow.loss)


def hindrance(target: Target, state: RecoveryState, look: Look) -> str:
    """Return why that is not measured now, apart from the budget; "" if it can be."""
    if target.incident:
        slow = incident_of(state, target.incident)
        tries = slow.probed.tries if slow is not None and slow.probed is not None else 0
        why = forbidden(look.policy) or (f"{MOST_TRIES} times it has shown nothing" if tries >= MOST_TRIES else "")
        if why:
            return why
    return never(target, look) or not_now(state, look)


def forbidden(policy: Policy) -> str:
    """Return the reason why the policy allows no pause without a request of a user; "" if it allows some."""
    if not policy.enforce:
        return "mode Observe stops no rank"
    return "" if policy.pause_budget else "spec.detection.pauseBudget allows no pause"


def never(target: Target, look: Look) -> str:
    """Return why that can never be measured in this job; "" if it can be."""
    if target.measures == "Links" and len(look.obs.members) < LEAST_MACHINES:
        return "with two pods there is one link"
    if len(look.obs.members) < 2:
        return "one pod has no peer to be compared with"
    return f"more than {MOST_RANKS} ranks are not paused" if look.policy.world_size > MOST_RANKS else ""


def not_now(state: RecoveryState, look: Look) -> str:
    """Return the reason why no pause is possible at this moment; "" if there is none."""
    if state.stop is not None or state.hang is not None or state.move is not None or look.obs.saving:
        return "something else is going on"
    return "" if look.obs.running and len(look.obs.ranks) == look.policy.world_size else "not all ranks run"


def unwanted(probe: Probe, state: RecoveryState, look: Look) -> str:
    """Return why the probe that is on is wanted no more; "" if it is."""
    if probe.incident:
        slow = incident_of(state, probe.incident)
        if slow is None:
            return "it is over"
        # Of a suspicion without a name nothing is sure before the links are measured: it is enough that it lasts.
        if probe.measures == "Links" and not (_needs_links(state, slow, look) or _is_nameless(slow)):
            return "no link is slow whose ends are not known"
        if probe.measures == "Machines" and not is_doubted_machine(slow, look.policy):
            return "no rank is slow whose node is in doubt"
        if why := forbidden(look.policy):
            return why
    return never(Target(probe.measures, probe.incident), look) or not_now(state, look)


def allowed_at(state: RecoveryState, slow: SlowIncident | None, policy: Policy) -> float:
    """Return from when on the next probe for an incident is allowed (unix seconds).

    ``slow``: None where a user requested the probe. Then the budget does not matter; else it is more than
    nothing.
    """
    pauses = state.pauses
    apart = pauses.last_at + APART_SECONDS if pauses.last_at else 0.0
    if slow is None:
        return apart
    earned = pauses.since + (pauses.seconds + _expected_seconds(state)) / policy.pause_budget
    return max(apart, earned, _again_at(slow))


def _again_at(slow: SlowIncident) -> float:
    """Return from when on an incident is measured again: at once if it has grown since links were found alike."""
    probed = slow.probed or Probed()
    grown = slow.times.slow_ns - slow.times.healthy_ns >= GROWN * (probed.slow_ns - slow.times.healthy_ns)
    return 0.0 if probed.found == "Alike" and grown else probed.again_at
