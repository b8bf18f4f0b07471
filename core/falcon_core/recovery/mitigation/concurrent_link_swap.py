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

from falcon_core.recovery.mitigation import link_swap
from falcon_core.recovery.mitigation.link_swap import LinkSwap
from falcon_core.recovery.mitigation.strategy import Attempt
from falcon_core.recovery.model.actions import Swap
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident, was_applied
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import known_slow_links, swap_for_link, swap_for_nodes

replace = msgspec.structs.replace


class ConcurrentLinkSwap(LinkSwap):
    """S3 against a link that is slow at the same time as ranks."""

    against = ("ConcurrentLink",)

    def refreshed(self, state: RecoveryState, slow: SlowIncident, look: Look) -> SlowIncident:
        return self.planned(state, slow, look)[0] if link_swap.is_old(slow.outlook, look.obs) else slow

    def planned(
        self, state: RecoveryState, slow: SlowIncident, look: Look
    ) -> tuple[SlowIncident, swap_for_link.Plan | None]:
        """Return the incident with the outlook on an exchange, and its plan; None once one was made, or without one."""
        link = slow.link
        if link is None or was_applied(slow, swap_for_link.TYPE):
            return replace(slow, outlook=link_swap.outlook_on(None, "", look.obs.now)), None
        why = swap_for_nodes.unseated(state, look) or swap_for_link.hindrance(state, link, look)
        own_ns = slow.times.slow_ns - slow.times.healthy_ns
        level = look.obs.iteration_ns(look.policy.consecutive)
        plan = None
        if not why and level is not None and own_ns > 0:
            # Without the link iterations are as long as the slow ranks make them.
            link = replace(link, excess_ns=min(link.excess_ns, own_ns))
            known = known_slow_links.standing(state, look.obs)
            plan = swap_for_link.plan(link, max(1, round(level) - own_ns), look, known)
        outlook = link_swap.outlook_on(plan, why or swap_for_link.NO_GAIN, look.obs.now)
        return replace(slow, outlook=outlook), plan

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        slow, plan = self.planned(state, slow, look)
        link = slow.link
        if plan is None or link is None:
            return Attempt(state, slow)
        slow = replace(slow, blocked="", swapped=swap_for_link.described(plan, look.obs))
        if not look.policy.enforce:
            return Attempt(state, slow, [])
        state = known_slow_links.remembered(state, link, look)
        state = swap_for_nodes.all_seated(state, plan.pods_of, look)
        slow = replace(slow, restart=replace(slow.restart, switched_at=look.obs.now))
        return Attempt(state, slow, [Swap(plan.pods_of)])
