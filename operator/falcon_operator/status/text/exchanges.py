"""Describe exchanges of roles against a slow link or slow nodes, in the words of ``kubectl describe``."""

from __future__ import annotations

from typing import Final

from falcon_core.planning.ski_rental import Candidate, due_seconds
from falcon_core.recovery import Applied, Policy, SlowIncident, Swapped
from falcon_core.recovery.strategies import ignore, swap_for_link
from falcon_core.recovery.views import newest_application
from falcon_operator.api.trainingjob import DoneStep
from falcon_operator.status.text.action_log import done_step, when_due, will_act
from falcon_operator.status.text.early_action import why_early
from falcon_operator.status.text.format import judged_words, listed, milliseconds, percent, seconds

_LINK_WAITS: Final = "Falcon judges the link when no rank is slow any more; each slowdown counts only its own loss"


def link_done(slow: SlowIncident) -> list[DoneStep]:
    """Return what was done about a slow link, oldest first."""
    steps = exchange_steps(slow)
    if steps:
        return steps
    ignored = newest_application(slow, ignore.TYPE)
    return (
        []
        if ignored is None
        else [done_step(ignored.at, "no action: so far every repair would cost more than the slowdown")]
    )


def exchange_steps(slow: SlowIncident) -> list[DoneStep]:
    """Return what was done by exchanging roles, oldest first; empty where no roles were exchanged."""
    acted, swapped = newest_application(slow, swap_for_link.TYPE), slow.swapped
    if acted is None or swapped is None:
        return []
    steps = [done_step(acted.at, _endured(slow, acted))]
    if acted.observed_only:
        words = f"mode Observe: the roles of {_pods(swapped)} would have been exchanged; nothing was done"
        return [*steps, done_step(acted.at, words)]
    now = f"{milliseconds(swapped.after_ns)} since, " if swapped.after_ns else ""
    words = (
        f"roles of {_pods(swapped)} exchanged; all ranks restarted in their pods; iteration"
        f" {milliseconds(swapped.before_ns)} before, {now}{milliseconds(swapped.expected_ns)} by the model"
    )
    steps.append(done_step(acted.at, words))
    if swapped.failed:
        steps.append(done_step(swapped.failed_at, f"the exchange did not help: {swapped.failed}"))
    return steps


def link_next(slow: SlowIncident, policy: Policy, next_strategy: Candidate | None) -> str:
    """Return what is next against a slow link."""
    if slow.phase == "Checking":
        return "all ranks restart from the last checkpoint; the iteration time shows whether it helped"
    if not any(name == swap_for_link.TYPE for name, _ in policy.strategies):
        return (
            f"no action: no strategy in spec.mitigation.strategies helps against a slow link; add {swap_for_link.TYPE}"
        )
    if slow.swapped is not None and slow.swapped.failed:
        return "no action: the exchange of roles did not help, and is not tried again in this incident"
    acted = newest_application(slow, swap_for_link.TYPE)
    if acted is not None and acted.observed_only:
        return f"mode Observe: {swap_for_link.FACTS.would_have_acted}; nothing is done"
    if slow.blocked:
        return f"waits: {slow.blocked}"
    if slow.outlook is not None and slow.outlook.why:
        return f"no action: roles are not exchanged: {slow.outlook.why}"
    if next_strategy is None or next_strategy.name != swap_for_link.TYPE:
        return "no action: so far every repair would cost more than the slowdown"
    return exchange_next(next_strategy, policy)


def concurrent_link_next(link: SlowIncident, policy: Policy) -> str:
    """Return what is next against a link that is slow while ranks are slow."""
    if not policy.names(swap_for_link.TYPE):
        return _LINK_WAITS
    if link.swapped is not None:
        return (
            "roles were exchanged; the part of the iteration time that the slow ranks do not explain shows whether it"
            " helped"
        )
    if link.blocked:
        return f"waits: {link.blocked}"
    if link.outlook is None:
        return _LINK_WAITS
    if link.outlook.why:
        return f"{_LINK_WAITS}; roles are not exchanged now: {link.outlook.why}"
    acts = will_act(swap_for_link.TYPE, policy)
    return f"{acts} when the link's own loss reaches the cost of that; slow ranks stay slow in their new roles"


def exchange_next(exchange: Candidate, policy: Policy) -> str:
    """Return when roles are exchanged."""
    return f"{when_due(exchange, policy)} {_due(exchange)}{why_early(exchange)}"


def swapping_words(slow: SlowIncident) -> str:
    """Return what is being done about a slow link, for a line in a table."""
    if slow.phase == "Checking":
        return judged_words(swap_for_link.FACTS.judged, slow)
    if slow.blocked:
        return f"roles are exchanged when {slow.blocked}"
    return f"{slow.loss.seconds:.1f} s lost, no action yet"


def _pods(swapped: Swapped) -> str:
    """Return ``pod gpt2-1-x7kfd (node node-b, replica 1, then 3) and …``."""
    places = [f"pod {pod.pod_name} (node {pod.node}, replica {pod.role}, now {pod.next_role})" for pod in swapped.pods]
    if swapped.total == len(places) == 2:
        return " and ".join(places)
    return listed(places, swapped.total)


def _endured(slow: SlowIncident, acted: Applied) -> str:
    return (
        f"no action for {seconds(acted.at - slow.onset.at)}, until the loss ({acted.loss_seconds:.1f} s) reached"
        f" {_due(acted)}"
    )


def _due(price: Applied | Candidate) -> str:
    """Return ``26 s: an exchange costs 13 s, and removes 50 % of the loss``."""
    redo = f", {seconds(price.redo_seconds)} of it for the work since the last checkpoint" if price.redo_seconds else ""
    due = seconds(due_seconds(price))
    cost, removes = seconds(price.overhead_seconds), percent(price.removed_share)
    early = "" if price.due_share >= 1 else f", {percent(price.due_share)} of its cost"
    return f"{due}{early}: an exchange costs {cost}{redo}, and removes {removes} of the loss"
