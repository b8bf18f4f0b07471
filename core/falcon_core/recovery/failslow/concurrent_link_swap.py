"""Plan and carry out, once, the exchange of roles against a link that is slow at the same time as ranks.

The ladder is that of ``link_swap`` with three differences:

- The loss is what the link costs by itself.
- The slow ranks' incidents follow their nodes to the roles that their pods take (``strategies.swap_for_nodes.seated``),
  and so do the moved micro-batches (``rebalance.carried``).
- Success shows in the part of the slowdown that ranks do not explain (``concurrent_link``). The iteration time proves
  nothing, because the new generation still has its slow ranks.
"""

from __future__ import annotations

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery.cost import prices
from falcon_core.recovery.failslow import link_swap
from falcon_core.recovery.model.actions import Swap
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident, SlowLink, was_applied
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies import known_slow_links, swap_for_link, swap_for_nodes

replace = msgspec.structs.replace


def climb(state: RecoveryState, look: Look) -> Step:
    """Let pods exchange their roles against the link beside slow ranks, once that has paid for itself."""
    link = state.link_beside
    where = None if link is None else link.link
    if link is None or where is None or not link.is_incident or state.probe is not None:
        return Step(state)
    if not look.policy.names(swap_for_link.TYPE) or any(slow.phase != "Located" for slow in _ranks(state)):
        return Step(state)
    if link_swap.is_old(link.outlook, look.obs):
        link = _planned(state, link, where, look)[0]
        state = replace(state, link_beside=link)
    strategy = prices.next_candidate(state, link, look)
    if strategy is None or not ski_rental.due(strategy, link.loss):
        return Step(state)
    applied = [*link.applied, prices.applied(strategy, link, look)]
    if strategy.name != swap_for_link.TYPE:
        return Step(replace(state, link_beside=replace(link, applied=applied)))
    if look.policy.enforce and look.obs.saving:
        return Step(replace(state, link_beside=replace(link, blocked=link_swap.SAVING)))
    link, plan = _planned(state, link, where, look)
    if plan is None:
        return Step(replace(state, link_beside=link))
    link = replace(link, applied=applied, blocked="", swapped=swap_for_link.described(plan, look.obs))
    if not look.policy.enforce:
        return Step(replace(state, link_beside=link))
    state = known_slow_links.remembered(
        replace(state, link_beside=replace(link, switched_at=look.obs.now)), where, look
    )
    return Step(swap_for_nodes.all_seated(state, plan.pods_of, look), [Swap(plan.pods_of)])


def _ranks(state: RecoveryState) -> list[SlowIncident]:
    return [slow for slow in (state.slow, *state.beside) if slow is not None]


def _planned(
    state: RecoveryState, link: SlowIncident, where: SlowLink, look: Look
) -> tuple[SlowIncident, swap_for_link.Plan | None]:
    """Return the link's incident with the outlook on an exchange, and its plan; None where there is none."""
    if was_applied(link, swap_for_link.TYPE):
        return replace(link, outlook=link_swap.outlook_on(None, "", look.obs.now)), None
    why = swap_for_nodes.unseated(state, look) or swap_for_link.hindrance(state, where, look)
    own_ns = link.slow_ns - link.healthy_ns
    level = look.obs.iteration_ns(look.policy.consecutive)
    plan = None
    if not why and level is not None and own_ns > 0:
        # Without the link iterations are as long as the slow ranks make them.
        where = replace(where, excess_ns=min(where.excess_ns, own_ns))
        known = known_slow_links.standing(state, look.obs)
        plan = swap_for_link.plan(where, max(1, round(level) - own_ns), look, known)
    return replace(link, outlook=link_swap.outlook_on(plan, why or swap_for_link.NO_GAIN, look.obs.now)), plan
