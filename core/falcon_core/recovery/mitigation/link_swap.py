"""Apply the ladder against a slow link: endure, exchange the roles of running pods when that pays, check the result.

The exchange is stored with the membership that it makes, in one write. So an operator that dies at any moment exchanges
the roles once. ``Detected`` → (the exchange) → ``Checking``. Then the incident is over if iterations are shorter by
``strategies.swap_for_link.MIN_GAIN``, and as short as in the model. Otherwise it continues as ``Detected``: the links
are measured once more, because another link may be slow as well (``probe.probe_controller``). Roles are not exchanged
again against the same link.

The loss pays for the exchange only as far as the exchange removes it: one that removes half of a slowdown is due when
the loss is twice its price.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.cost import prices
from falcon_core.recovery.diagnosis import slow_links
from falcon_core.recovery.failslow import replacement_check
from falcon_core.recovery.history import durations
from falcon_core.recovery.mitigation import rebalance
from falcon_core.recovery.mitigation.strategy import Attempt, Strategy, SubjectKind
from falcon_core.recovery.model.actions import Swap
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import SlowIncident, checking, detected, was_applied
from falcon_core.recovery.model.state import RecoveryState, with_leader, without_leader
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.treatments import Outlook
from falcon_core.recovery.strategies import adjust_microbatches, known_slow_links, swap_for_link

CHECK_ITERATIONS = 3  # × consecutive: before it is judged
MOST_MOVES = 64  # pods of a plan, to which their states go while the plan waits for its price
PLAN_SECONDS = 20.0  # between two plans: one for a thousand pods takes 0.4 s of a core, or seconds on a busy machine
STILL_LONG = "iterations are shorter, and still longer than by the model"
SAVING = "all ranks save a checkpoint first"
replace = msgspec.structs.replace


class LinkSwap(Strategy):
    """S3 against a slow link, while no rank is named."""

    facts = swap_for_link.FACTS
    against: ClassVar[tuple[SubjectKind, ...]] = ("Link",)

    def refreshed(self, state: RecoveryState, slow: SlowIncident, look: Look) -> SlowIncident:
        slow = replace(slow, blocked="")
        if slow.link is None or not is_old(slow.outlook, look.obs):
            return slow
        return self.planned(state, replace(slow, subject=slow_links.refreshed(slow.link, look, slow)), look)[0]

    def candidate(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Candidate | None:
        return prices.exchange(state, slow, look)

    def blocked_reason(self, state: RecoveryState, slow: SlowIncident, look: Look) -> str:
        return SAVING if look.policy.enforce and look.obs.saving else ""

    def planned(
        self, state: RecoveryState, slow: SlowIncident, look: Look
    ) -> tuple[SlowIncident, swap_for_link.Plan | None]:
        """Return the incident with the outlook on an exchange, and its plan; None once one was made, or without one."""
        if slow.link is None or was_applied(slow, swap_for_link.TYPE):
            return replace(slow, outlook=Outlook(at=look.obs.now)), None
        why = swap_for_link.hindrance(state, slow.link, look)
        known = known_slow_links.standing(state, look.obs)
        plan = None if why else swap_for_link.plan(slow.link, slow.times.healthy_ns, look, known)
        return replace(slow, outlook=outlook_on(plan, why or swap_for_link.NO_GAIN, look.obs.now)), plan

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        slow, plan = self.planned(state, slow, look)
        link = slow.link
        if plan is None or link is None:
            return Attempt(state, slow)
        slow = replace(slow, swapped=swap_for_link.described(plan, look.obs))
        # Observe only notes the plan. The roles stay, so the link must not be remembered as one that they avoid.
        if not look.policy.enforce:
            return Attempt(state, slow, [])
        state = known_slow_links.remembered(state, link, look)
        slow = checking(slow, look.obs.now)
        return Attempt(state, slow, [Swap(plan.pods_of)])

    def check(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
        state, slow = rebalance.beside_exchange(state, slow, look)
        return check(with_leader(state, slow), slow, look)


def is_old(outlook: Outlook | None, obs: Observation) -> bool:
    """Check whether an exchange is to be planned again."""
    return outlook is None or not 0 <= obs.now - outlook.at < PLAN_SECONDS


def outlook_on(plan: swap_for_link.Plan | None, why: str, now: float) -> Outlook:
    """Return the record of a plan. ``why``: the reason why there is none."""
    if plan is None:
        return Outlook(at=now, why=why)
    moves = {of: role for role, of in enumerate(plan.pods_of) if of != role}
    known = moves if len(moves) <= MOST_MOVES else {}
    return Outlook(at=now, removed_share=round(plan.removed_share, 3), moves=known)


def check(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Judge by the iteration time whether the exchange helped, and measure what it cost."""
    state, level = level_after(state, slow, look)
    slow = state.leader or slow
    swapped = slow.swapped
    if level is None or swapped is None:
        return Step(state)
    still_long = _is_still_long(slow, level, look)
    if still_long and _is_early(slow, look.obs):
        return Step(state)
    state, cost = replacement_check.learned_cost(state, slow, swap_for_link.FACTS, look.obs.now)
    state = durations.cut_short(state, slow, slow.restart.switched_at or look.obs.now)
    measured = replace(swapped, after_ns=int(level))
    if swap_for_link.did_not_help(swapped, level):
        measured = replace(measured, failed="it did not make iterations shorter", failed_at=look.obs.now)
        state = state if slow.link is None else known_slow_links.forgotten(state, slow.link)
    elif still_long:
        measured = replace(measured, failed=STILL_LONG, failed_at=look.obs.now)
    else:
        slow = replace(slow, swapped=measured)
        closed = SlowClosed(incident=slow, outcome="Helped", iteration_ns=int(level), cost_seconds=cost)
        return Step(rebalance.kept(without_leader(state), slow, look), events=[closed])
    return Step(with_leader(state, replace(detected(slow, slow.link), swapped=measured)))


def _is_still_long(slow: SlowIncident, level_ns: float, look: Look) -> bool:
    """Check whether iterations take longer than they did, than by the model, and than slow ranks explain."""
    explained_ns = 0.0 if adjust_microbatches.hindrance(look) else adjust_microbatches.left_ns(look)
    expected_ns = slow.swapped.expected_ns if slow.swapped is not None else 0
    longest_ns = max(slow.times.well_ns, expected_ns) * (1 + look.policy.verify)
    return level_ns - explained_ns > longest_ns


def level_after(state: RecoveryState, slow: SlowIncident, look: Look) -> tuple[RecoveryState, float | None]:
    """Return the iteration time after the exchange [ns], None until it is known; ``trained_at`` is set in the state.

    The first iterations of a generation may be long for other reasons: an exchange that seems not to have helped is
    given ``CHECK_SECONDS`` of training.
    """
    if not look.obs.running or state.stop is not None:
        return state, None
    slow = replacement_check.trains_again(slow, look.obs)
    if slow.restart.trained_at is None:
        return state, None
    level = replacement_check.level_after(look, CHECK_ITERATIONS)
    helped = level is None or slow.swapped is None or not swap_for_link.did_not_help(slow.swapped, level)
    return with_leader(state, slow), level if helped or not _is_early(slow, look.obs) else None


def _is_early(slow: SlowIncident, obs: Observation) -> bool:
    """Check whether a generation has not trained for long, so that its iterations may be long for other reasons."""
    return slow.restart.trained_at is None or obs.now - slow.restart.trained_at <= replacement_check.CHECK_SECONDS
