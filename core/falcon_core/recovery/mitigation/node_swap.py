"""Plan, carry out once and judge the exchange of roles against slow nodes, as a step of their ladder.

The slow nodes stay slow, and the job's ranks have other numbers afterwards. So each open incident follows its node to
the role that the node's pod has taken (``strategies.swap_for_nodes.seated``). An exchange ends an incident only if
iterations are at their healthy level again. Otherwise the loss keeps growing by what an iteration still costs, and the
node may be replaced later.

If the rank that was slow is healthy in its new role, and the job is no faster, the slowness belongs to the role and not
to the node. That is remembered, and no node is replaced for it (``history.node_fault``).
"""

from __future__ import annotations

import msgspec

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.cost import prices
from falcon_core.recovery.diagnosis.culprit_timing import computes_as_before
from falcon_core.recovery.failslow import incidents, replacement_check
from falcon_core.recovery.history import durations, node_fault
from falcon_core.recovery.mitigation import link_swap
from falcon_core.recovery.mitigation.strategy import Attempt, Strategy
from falcon_core.recovery.model.actions import Swap
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident, checking, in_force, located
from falcon_core.recovery.model.state import RecoveryState, with_leader
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.treatments import Outlook, Swapped
from falcon_core.recovery.strategies import known_slow_links, swap_for_link, swap_for_nodes

NOT_FASTER = "iterations are no shorter"
FOLLOWED = "the slowness stayed with the role, and not with the node"
replace = msgspec.structs.replace


class NodeSwap(Strategy):
    """S3 against slow nodes: the incidents of further nodes follow theirs, too."""

    facts = swap_for_link.FACTS
    against = ("Rank",)

    def refreshed(self, state: RecoveryState, slow: SlowIncident, look: Look) -> SlowIncident:
        named = look.policy.names(swap_for_link.TYPE)
        if not named or state.probe is not None or not link_swap.is_old(slow.outlook, look.obs):
            return slow
        return _planned(state, slow, look)[0]

    def candidate(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Candidate | None:
        return prices.exchange(state, slow, look)

    def blocked_reason(self, state: RecoveryState, slow: SlowIncident, look: Look) -> str:
        return link_swap.SAVING if look.policy.enforce and look.obs.saving else ""

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        slow, plan = _planned(state, slow, look)
        if plan is None:
            return Attempt(state, slow)
        swapped = swap_for_link.described(plan, look.obs)
        if not look.policy.enforce:
            return Attempt(state, replace(slow, swapped=swapped), [])
        slow = replace(checking(slow, look.obs.now), blocked="", swapped=swapped)
        state = swap_for_nodes.all_seated(with_leader(state, slow), plan.pods_of, look)
        return Attempt(state, incidents.first_of(state), [Swap(plan.pods_of)])

    def check(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
        return check(state, slow, look)


def _planned(state: RecoveryState, slow: SlowIncident, look: Look) -> tuple[SlowIncident, swap_for_link.Plan | None]:
    """Return the incident with the outlook on an exchange, and its plan; None where there is none, or one was made."""
    if any(applied.strategy == swap_for_link.TYPE for applied in in_force(slow, look.policy)):
        return replace(slow, outlook=Outlook(at=look.obs.now)), None
    known = known_slow_links.standing(state, look.obs)
    why = swap_for_nodes.hindrance(state, look, known)
    plan = None if why else swap_for_nodes.plan(state, slow, look, known)
    return replace(slow, outlook=link_swap.outlook_on(plan, why or swap_for_nodes.NO_GAIN, look.obs.now)), plan


def needs_traffic(state: RecoveryState, look: Look) -> bool:
    """Check whether an exchange has to know the traffic between ranks, because known slow links are to be avoided."""
    several_stages = look.policy.layout is not None and look.policy.layout.pipeline > 1
    return several_stages and look.policy.names(swap_for_link.TYPE) and bool(known_slow_links.standing(state, look.obs))


def check(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Judge by the iteration time whether the exchange helped, and measure what it cost."""
    state, level = link_swap.level_after(state, slow, look)
    slow = incidents.first_of(state)
    swapped = slow.swapped
    if level is None or swapped is None:
        return Step(state)
    state, cost = replacement_check.learned_cost(state, slow, swap_for_link.FACTS, look.obs.now)
    measured = replace(swapped, after_ns=int(level))
    if level <= (slow.times.well_ns) * (1 + look.policy.verify):
        state = durations.cut_short(state, slow, slow.restart.switched_at or look.obs.now)
        helped = replace(slow, swapped=measured)
        closed = SlowClosed(incident=helped, outcome="Helped", iteration_ns=int(level), cost_seconds=cost)
        return Step(state, events=[closed]).then(incidents.close(state, [slow]))
    # A slowness that stays with the role, though another pod has it now, is none of the node's.
    if swap_for_link.did_not_help(swapped, level):
        followed = [found for each in (slow, *state.further) if (found := _left_behind(each, swapped, look))]
        for incident in followed:
            state = node_fault.stayed_with_role(state, incident, look.obs)
        measured = replace(measured, failed=FOLLOWED if followed else NOT_FASTER, failed_at=look.obs.now)
    # The ladder goes on: a dearer repair may still pay.
    slow = located(slow, incidents.culprit(slow))
    restart = replace(slow.restart, switched_at=None)
    return Step(with_leader(state, replace(slow, swapped=measured, restart=restart)))


def _left_behind(slow: SlowIncident, swapped: Swapped, look: Look) -> SlowIncident | None:
    """Return the incident as it was before the exchange, if its node has another role since and is well in it."""
    culprit = incidents.culprit(slow)
    role = next((pod.role for pod in swapped.pods if pod.next_role == culprit.replica), None)
    if role is None or not computes_as_before(culprit, look):
        return None
    return replace(slow, subject=replace(culprit, replica=role))
