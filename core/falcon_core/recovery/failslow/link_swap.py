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

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery.cost import prices
from falcon_core.recovery.diagnosis import slow_links
from falcon_core.recovery.failslow import rebalance, replacement_check
from falcon_core.recovery.history import durations
from falcon_core.recovery.model.actions import Command, Swap
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import SlowIncident, SlowLink, was_applied
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.treatments import Outlook
from falcon_core.recovery.strategies import adjust_microbatches, known_slow_links, swap_for_link

CHECK_ITERATIONS = 3  # × consecutive: before it is judged
MOST_MOVES = 64  # pods of a plan, to which their states go while the plan waits for its price
PLAN_SECONDS = 20.0  # between two plans: a plan for a thousand pods takes two seconds
STILL_LONG = "iterations are shorter, and still longer than by the model"
SAVING = "all ranks save a checkpoint first"
replace = msgspec.structs.replace


def climb(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Apply each strategy against the incident's link that is due. Unchanged where the spec does not name S3."""
    link = slow.link
    if link is None or not _may_act(state, look.policy):
        return Step(replace(state, slow=slow))
    slow = replace(slow, blocked="")
    if is_old(slow.outlook, look.obs):
        link = slow_links.refreshed(link, look, slow)
        slow, _ = _planned(state, replace(slow, link=link), link, look)
    given: list[Command] = []
    while (strategy := prices.next_candidate(state, slow, look)) is not None:
        if not ski_rental.due(strategy, slow.loss):
            break
        if strategy.name == swap_for_link.TYPE:
            if look.policy.enforce and look.obs.saving:
                slow = replace(slow, blocked=SAVING)
                break
            slow, plan = _planned(state, slow, link, look)
            if plan is None:
                break
            state, slow, swap = _exchanged(state, slow, link, plan, look)
            given += swap
        slow = replace(slow, applied=[*slow.applied, prices.applied(strategy, slow, look)])
    return Step(replace(state, slow=slow), given)


def _may_act(state: RecoveryState, policy: Policy) -> bool:
    """Check that the spec names S3, and that no links are being measured: first see what that shows."""
    return state.probe is None and policy.names(swap_for_link.TYPE)


def is_old(outlook: Outlook | None, obs: Observation) -> bool:
    """Check whether an exchange is to be planned again."""
    return outlook is None or not 0 <= obs.now - outlook.at < PLAN_SECONDS


def _planned(
    state: RecoveryState, slow: SlowIncident, link: SlowLink, look: Look
) -> tuple[SlowIncident, swap_for_link.Plan | None]:
    """Plan an exchange; the incident has the outlook on it. None once one was made, or where there is none."""
    if was_applied(slow, swap_for_link.TYPE):
        return replace(slow, outlook=Outlook(at=look.obs.now)), None
    why = swap_for_link.hindrance(state, link, look)
    plan = None if why else swap_for_link.plan(link, slow.healthy_ns, look, known_slow_links.standing(state, look.obs))
    return replace(slow, outlook=outlook_on(plan, why or swap_for_link.NO_GAIN, look.obs.now)), plan


def outlook_on(plan: swap_for_link.Plan | None, why: str, now: float) -> Outlook:
    """Return the record of a plan. ``why``: the reason why there is none."""
    if plan is None:
        return Outlook(at=now, why=why)
    moves = {of: role for role, of in enumerate(plan.pods_of) if of != role}
    known = moves if len(moves) <= MOST_MOVES else {}
    return Outlook(at=now, removed_share=round(plan.removed_share, 3), moves=known)


def _exchanged(
    state: RecoveryState, slow: SlowIncident, link: SlowLink, plan: swap_for_link.Plan, look: Look
) -> tuple[RecoveryState, SlowIncident, list[Command]]:
    """Return the state and the incident with the exchange that is made, or in mode Observe would be made."""
    slow = replace(slow, swapped=swap_for_link.described(plan, look.obs))
    if not look.policy.enforce:
        return state, slow, []
    slow = replace(slow, phase="Checking", switched_at=look.obs.now, trained_at=None)
    return known_slow_links.remembered(state, link, look), slow, [Swap(plan.pods_of)]


def is_checked(slow: SlowIncident) -> bool:
    """Check whether an exchange of roles is being judged."""
    return slow.phase == "Checking" and bool(slow.applied) and slow.applied[-1].strategy == swap_for_link.TYPE


def check(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Judge by the iteration time whether the exchange helped, and measure what it cost."""
    state, level = level_after(state, slow, look)
    slow = state.slow or slow
    swapped = slow.swapped
    if level is None or swapped is None:
        return Step(state)
    still_long = _is_still_long(slow, level, look)
    if still_long and _is_early(slow, look.obs):
        return Step(state)
    state, cost = replacement_check.learned_cost(state, slow, swap_for_link.TYPE)
    state = durations.cut_short(state, slow, slow.switched_at or look.obs.now)
    measured = replace(swapped, after_ns=int(level))
    if swap_for_link.did_not_help(swapped, level):
        measured = replace(measured, failed="it did not make iterations shorter", failed_at=look.obs.now)
        state = state if slow.link is None else known_slow_links.forgotten(state, slow.link)
    elif still_long:
        measured = replace(measured, failed=STILL_LONG, failed_at=look.obs.now)
    else:
        slow = replace(slow, swapped=measured)
        closed = SlowClosed(incident=slow, outcome="Helped", iteration_ns=int(level), cost_seconds=cost)
        return Step(rebalance.kept(replace(state, slow=None), slow, look), events=[closed])
    return Step(replace(state, slow=replace(slow, phase="Detected", swapped=measured)))


def _is_still_long(slow: SlowIncident, level_ns: float, look: Look) -> bool:
    """Check whether iterations take longer than they did, than by the model, and than slow ranks explain."""
    explained_ns = 0.0 if adjust_microbatches.hindrance(look) else adjust_microbatches.left_ns(look)
    expected_ns = slow.swapped.expected_ns if slow.swapped is not None else 0
    longest_ns = max(slow.healthy_ns + slow.common_ns, expected_ns) * (1 + look.policy.verify)
    return level_ns - explained_ns > longest_ns


def level_after(state: RecoveryState, slow: SlowIncident, look: Look) -> tuple[RecoveryState, float | None]:
    """Return the iteration time after the exchange [ns], None until it is known; ``trained_at`` is set in the state.

    The first iterations of a generation may be long for other reasons: an exchange that seems not to have helped is
    given ``CHECK_SECONDS`` of training.
    """
    if not look.obs.running or state.stop is not None:
        return state, None
    slow = replacement_check.trains_again(slow, look.obs)
    if slow.trained_at is None:
        return state, None
    level = replacement_check.level_after(look, CHECK_ITERATIONS)
    helped = level is None or slow.swapped is None or not swap_for_link.did_not_help(slow.swapped, level)
    return replace(state, slow=slow), level if helped or not _is_early(slow, look.obs) else None


def _is_early(slow: SlowIncident, obs: Observation) -> bool:
    """Check whether a generation has not trained for long, so that its iterations may be long for other reasons."""
    return slow.trained_at is None or obs.now - slow.trained_at <= replacement_check.CHECK_SECONDS
