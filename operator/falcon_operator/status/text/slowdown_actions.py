"""Describe what was done about a slow node, and what is next, in the words of ``kubectl describe``."""

from __future__ import annotations

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery import Applied, Policy, SlowIncident
from falcon_core.recovery.strategies import adjust_microbatches, ignore, replace_node, swap_for_link
from falcon_core.recovery.views import newest_application, strategy_type
from falcon_operator.api.trainingjob import DoneStep
from falcon_operator.status.text.action_log import done_step, only_observed, when_due
from falcon_operator.status.text.early_action import due_words, why_early
from falcon_operator.status.text.exchanges import exchange_next, exchange_steps
from falcon_operator.status.text.format import milliseconds, seconds
from falcon_operator.status.text.node_kept import doubt_words, is_kept


def slow_done(slow: SlowIncident) -> list[DoneStep]:
    """Return what was done about a slowdown, oldest first."""
    ignored = newest_application(slow, ignore.TYPE)
    acted = newest_application(slow, replace_node.TYPE)
    steps = [*_moved_steps(slow), *exchange_steps(slow), *_other_steps(slow)]
    if acted is None:
        if ignored is None or steps:
            return steps
        return [done_step(ignored.at, "no action: so far every repair would cost more than the slowdown")]
    steps = [*steps, done_step(acted.at, _endured(slow, acted))]
    if acted.observed_only:
        return [*steps, only_observed(acted)]
    node = slow.culprit.node if slow.culprit else ""
    steps.append(
        done_step(acted.at, f"{node} evicted from the job; a pod prepared on another node while training went on")
    )
    if slow.restart.switched_at is not None:
        replaced = f"replaced by {slow.restart.replaced_by}" if slow.restart.replaced_by else "replaced"
        steps.append(done_step(slow.restart.switched_at, f"{replaced}; all ranks restarted"))
    return steps


def _moved_steps(slow: SlowIncident) -> list[DoneStep]:
    acted, moved = newest_application(slow, adjust_microbatches.TYPE), slow.moved
    if acted is None:
        return []
    if moved is None:
        return [only_observed(acted)]
    rank = slow.culprit.rank if slow.culprit is not None else 0
    now = f"{milliseconds(moved.after_ns)} since, " if moved.after_ns else ""
    steps = [
        done_step(
            acted.at,
            f"micro-batches moved: rank {rank} computes {moved.share} of its {moved.per_rank}, another rank up to"
            f" {moved.most}; iteration {milliseconds(moved.before_ns)} before, {now}"
            f"{milliseconds(moved.expected_ns)} expected by the best plan",
        )
    ]
    if moved.failed:
        steps.append(done_step(moved.failed_at, f"moved back: {moved.failed}"))
    return steps


def _other_steps(slow: SlowIncident) -> list[DoneStep]:
    """Return what was done by strategies of which the incident keeps no figures."""
    steps = []
    for applied in slow.applied:
        if acted := strategy_type(applied.strategy).acted:
            paid = f"until the loss ({applied.loss_seconds:.1f} s) reached {_cost(applied)}"
            steps.append(done_step(applied.at, f"no action for {seconds(applied.at - slow.onset.at)}, {paid}"))
            steps.append(only_observed(applied) if applied.observed_only else done_step(applied.at, acted))
    return steps


def _endured(slow: SlowIncident, acted: Applied) -> str:
    ignored = f"no action for {seconds(acted.at - slow.onset.at)}"
    if acted.shares:
        spare = (
            f", which reached the price of a spare ({acted.spare_seconds:.1f} s)" if acted.spare_seconds >= 0.1 else ""
        )
        return f"{ignored}, a loss of {acted.loss_seconds:.1f} s by itself{spare}; shares the restart of {acted.shares}"
    return f"{ignored}, until the loss ({acted.loss_seconds:.1f} s) reached {due_words(acted)} ({_cost(acted)})"


def _cost(price: Applied | Candidate) -> str:
    """Return ``13 s`` or ``13 s + 900 s of work since the last checkpoint + 40 s for a spare that a failure may need``.

    The last two figures are estimates that change with time, so only two of their digits are shown.
    """
    parts = [f"{float(f'{price.overhead_seconds - price.spare_seconds - price.redo_seconds:.3g}'):.9g} s"]
    if price.redo_seconds >= 1:
        parts.append(f"{float(f'{price.redo_seconds:.2g}'):.0f} s of work since the last checkpoint")
    if price.spare_seconds >= 1:
        parts.append(f"{float(f'{price.spare_seconds:.2g}'):.0f} s for a spare that a failure may need")
    return " + ".join(parts)


def slow_next(slow: SlowIncident, policy: Policy, next_strategy: Candidate | None) -> str:
    """Return what is next for the first slow node."""
    if slow.phase == "Mitigating":
        return "a pod is being prepared on another node while training goes on; then all ranks restart"
    if slow.phase == "Checking":
        return "all ranks restart from the last checkpoint; the iteration time shows whether it helped"
    if next_strategy is not None and _needs_no_evidence(next_strategy):
        return f"{when_due(next_strategy, policy)} {_cost(next_strategy)}"
    if slow.culprit is not None and is_kept(slow, policy):
        return doubt_words(slow, slow.culprit, policy) + _passed_over(slow)
    if slow.blocked:
        return f"waits: {slow.blocked}; tried again as soon as that changes"
    if next_strategy is not None and next_strategy.name == swap_for_link.TYPE:
        return exchange_next(next_strategy, policy)
    return _replaced_next(slow, policy, next_strategy) + _passed_over(slow)


def _replaced_next(slow: SlowIncident, policy: Policy, next_strategy: Candidate | None) -> str:
    replaced = newest_application(slow, replace_node.TYPE)
    if replaced is not None and replaced.observed_only:
        return f"mode Observe: {replace_node.FACTS.would_have_acted}; nothing is done"
    if next_strategy is None:
        return "no action: spec.mitigation.strategies offers no further strategy"
    if next_strategy.name == ignore.TYPE:
        return "no action: so far every repair would cost more than the slowdown"
    due = f"{due_words(next_strategy)} ({_cost(next_strategy)}){why_early(next_strategy)}"
    return f"{when_due(next_strategy, policy)} {due}"


def _needs_no_evidence(strategy: Candidate) -> bool:
    """Check whether a strategy acts, and whatever is not known of the culprit's node does not matter to it."""
    facts = strategy_type(strategy.name)
    return bool(facts.act) and not facts.needs_node_evidence


def beside_next(slow: SlowIncident, policy: Policy, first: SlowIncident) -> str:
    """Return what is next for a further slow node."""
    acted = newest_application(slow, replace_node.TYPE)
    observed = acted is not None and acted.observed_only
    if slow.phase != "Located" or slow.blocked or observed or is_kept(slow, policy) or first.culprit is None:
        return slow_next(slow, policy, None)
    node = first.culprit.node
    # While a repair is being judged, iteration times say nothing about a second node.
    if first.phase == "Checking":
        return f"Falcon judges this node when it is known whether replacing {node} helped"
    if not any(name == replace_node.TYPE for name, _ in policy.strategies):
        return slow_next(slow, policy, None)
    return (
        f"when {node} is replaced, this node is evicted from the job in the same restart, if its own loss has reached"
        " the price of a spare"
    )


def _passed_over(slow: SlowIncident) -> str:
    moved = f"; micro-batches are not moved: {slow.passed_over}" if slow.passed_over else ""
    why = slow.outlook.why if slow.outlook is not None else ""
    return f"{moved}; roles are not exchanged: {why}" if why else moved
