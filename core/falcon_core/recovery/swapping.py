"""The ladder against a slow link: endure, exchange the roles of running pods when that has paid for itself, check.

What is asked for is stored with the membership that it makes, in one write, so an operator that dies at any instant
exchanges the roles once. ``Detected`` → (the exchange) → ``Checking`` → the incident is over if iterations are shorter
by ``swap_nodes.MIN_GAIN``; otherwise it goes on as ``Detected``, and roles are not exchanged again against it.

The loss pays for the exchange only as far as the exchange removes it: one that removes half of a slowdown is due when
the loss is twice its price.
"""

from __future__ import annotations

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery import prices
from falcon_core.recovery.failstop import resumed_at
from falcon_core.recovery.observation import Action, Observation, Policy, SlowClosed, Swap
from falcon_core.recovery.remembered import Outlook
from falcon_core.recovery.state import Applied, RecoveryState, SlowIncident, SlowLink
from falcon_core.recovery.strategies import ignore, swap_nodes

CHECK_ITERATIONS = 3  # × consecutive: before it is judged
CHECK_SECONDS = 60.0  # of training, for which a rank that is not seen to train is waited for
PLAN_SECONDS = 20.0  # between two plans: a plan for a thousand pods takes two seconds
SAVING = "all ranks save a checkpoint first"
replace = msgspec.structs.replace


def climb(
    state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy
) -> tuple[RecoveryState, list[Action]]:
    """Apply each strategy against the incident's link that is due. Unchanged where the spec does not name S3."""
    link = slow.link
    if link is None or not any(name == swap_nodes.TYPE for name, _ in policy.strategies):
        return replace(state, slow=slow), []
    slow = replace(slow, blocked="")
    if _is_old(slow.outlook, obs):
        slow, _ = _planned(state, slow, link, obs, policy)
    actions: list[Action] = []
    while (strategy := prices.next_candidate(state, slow, obs, policy)) is not None:
        if not ski_rental.due(strategy, slow.loss):
            break
        if strategy.name == swap_nodes.TYPE:
            if policy.enforce and obs.saving:
                slow = replace(slow, blocked=SAVING)
                break
            slow, plan = _planned(state, slow, link, obs, policy)
            if plan is None:
                break
            slow, swap = _exchanged(slow, plan, obs, policy)
            actions += swap
        slow = replace(slow, applied=[*slow.applied, _applied(strategy, slow, obs, policy)])
    return replace(state, slow=slow), actions


def _is_old(outlook: Outlook | None, obs: Observation) -> bool:
    return outlook is None or not 0 <= obs.now - outlook.at < PLAN_SECONDS


def _planned(
    state: RecoveryState, slow: SlowIncident, link: SlowLink, obs: Observation, policy: Policy
) -> tuple[SlowIncident, swap_nodes.Plan | None]:
    """Plan an exchange; the incident has the outlook on it. None once one was made, or where there is none."""
    if any(applied.strategy == swap_nodes.TYPE for applied in slow.applied):
        return replace(slow, outlook=Outlook(at=obs.now)), None
    why = swap_nodes.hindrance(state, link, obs, policy)
    plan = None if why else swap_nodes.plan(link, slow.healthy_ns, obs, policy)
    if plan is None:
        return replace(slow, outlook=Outlook(at=obs.now, why=why or swap_nodes.NO_GAIN)), None
    return replace(slow, outlook=Outlook(at=obs.now, removed_share=round(plan.removed_share, 3))), plan


def _exchanged(
    slow: SlowIncident, plan: swap_nodes.Plan, obs: Observation, policy: Policy
) -> tuple[SlowIncident, list[Action]]:
    """Return the incident with the exchange that is made, or in mode Observe would be made."""
    slow = replace(slow, swapped=swap_nodes.described(plan, obs))
    if not policy.enforce:
        return slow, []
    return replace(slow, phase="Checking", switched_at=obs.now, trained_at=None), [Swap(plan.pods_of)]


def _applied(strategy: ski_rental.Candidate, slow: SlowIncident, obs: Observation, policy: Policy) -> Applied:
    return Applied(
        strategy=strategy.name,
        at=obs.now,
        loss_seconds=slow.loss.seconds,
        overhead_seconds=strategy.overhead_seconds,
        redo_seconds=strategy.redo_seconds,
        due_share=strategy.due_share,
        observed_only=not policy.enforce and strategy.name != ignore.TYPE,
    )


def is_checked(slow: SlowIncident) -> bool:
    """Check whether an exchange of roles is being judged."""
    return slow.phase == "Checking" and slow.swapped is not None and not slow.swapped.after_ns


def check(
    state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy
) -> tuple[RecoveryState, list[Action]]:
    """Judge by the iteration time whether the exchange helped, and measure what it cost."""
    swapped = slow.swapped
    if not obs.running or state.stop is not None or swapped is None:
        return state, []
    tracked = [rank for rank in obs.ranks if rank.sent.iterations]
    if slow.trained_at is None:
        resumed = resumed_at(obs)
        if not tracked or (len(tracked) < len(obs.ranks) and obs.now - resumed < CHECK_SECONDS):
            return state, []
        slow = replace(slow, trained_at=resumed)
        state = replace(state, slow=slow)
    done = min((rank.sent.iterations for rank in tracked), default=0)
    level = obs.iteration_ns(policy.consecutive)
    if level is None or done < CHECK_ITERATIONS * policy.consecutive:
        return state, []
    cost = max(0.0, (slow.trained_at or obs.now) - (slow.switched_at or obs.now))
    learned = ski_rental.learn(state.overheads.get(swap_nodes.TYPE), cost)
    state = replace(state, overheads={**state.overheads, swap_nodes.TYPE: round(learned, 2)})
    measured = replace(swapped, after_ns=int(level))
    if not swap_nodes.did_not_help(swapped, level):
        slow = replace(slow, swapped=measured)
        closed = SlowClosed(incident=slow, outcome="Helped", iteration_ns=int(level), cost_seconds=cost)
        return replace(state, slow=None), [closed]
    measured = replace(measured, failed="it did not make iterations shorter", failed_at=obs.now)
    return replace(state, slow=replace(slow, phase="Detected", swapped=measured)), []
