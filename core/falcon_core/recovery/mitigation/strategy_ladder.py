"""Climb the ladder of strategies: take the cheapest one that applies, wait until it is due, apply and record it.

The loop is the same for each kind of subject. What differs is in ``RULES``: against a link the ladder acts only where
the spec names an exchange of roles. Against a link while ranks are slow, and before anything is named, one action a
look is enough: the next look shows what it changed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery.cost import prices
from falcon_core.recovery.history import node_fault
from falcon_core.recovery.mitigation.replacement import Replacement
from falcon_core.recovery.mitigation.strategy import Attempt, Strategy, SubjectKind
from falcon_core.recovery.mitigation.strategy_table import STRATEGIES
from falcon_core.recovery.model.actions import Command
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import SlowIncident, in_force
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies import swap_for_link
from falcon_core.recovery.strategies.strategy_type import StrategyType

replace = msgspec.structs.replace


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How the ladder is climbed against one kind of subject."""

    needs: StrategyType | None = None  # the spec has to name it, or nothing is done, not even written down
    waits_for_probe: bool = False  # first see what a measurement under way shows
    one_a_look: bool = False


RULES: Final[dict[SubjectKind, Rules]] = {
    "Rank": Rules(),
    "Link": Rules(needs=swap_for_link.FACTS, waits_for_probe=True),
    "ConcurrentLink": Rules(needs=swap_for_link.FACTS, waits_for_probe=True, one_a_look=True),
    "Unknown": Rules(one_a_look=True),
}


def climb(state: RecoveryState, slow: SlowIncident, look: Look, kind: SubjectKind) -> Attempt:
    """Apply each strategy against an incident that is due. The caller stores the incident that this returns."""
    rules = RULES[kind]
    if (rules.needs and not look.policy.names(rules.needs.name)) or (rules.waits_for_probe and state.probe is not None):
        return Attempt(state, slow, [])
    # All plans are renewed first: the cheapest is chosen among figures of the same look.
    for strategy in _against(kind):
        slow = strategy.refreshed(state, slow, look)
    given: list[Command] = []
    # Several strategies may be due at one look. Stop at the first that is not due, or that has to wait.
    while (candidate := next_candidate(state, slow, look, kind)) is not None:
        strategy = STRATEGIES[candidate.name, kind]
        if not _is_due(candidate, strategy, slow, look.policy, kind):
            break
        if reason := strategy.blocked_reason(state, slow, look):
            slow = replace(slow, blocked=reason)
            break
        tried = strategy.apply(state, slow, look)
        state, slow = tried.state, tried.slow
        if tried.commands is None:
            break
        given += tried.commands
        slow = replace(slow, applied=[*slow.applied, prices.applied(candidate, slow, look)])
        if rules.one_a_look or slow.phase == "Checking":  # all ranks restart for it: look again
            break
    return Attempt(state, slow, given)


def next_candidate(
    state: RecoveryState, slow: SlowIncident, look: Look, kind: SubjectKind
) -> ski_rental.Candidate | None:
    """Choose the cheapest strategy that is left, among those that apply to the job now."""
    known = (STRATEGIES.get((name, kind)) for name, _ in look.policy.strategies)
    named = [strategy for strategy in known if strategy is not None]
    found = [strategy.candidate(state, slow, look) for strategy in named]
    again = {strategy.facts.name for strategy in named if strategy.may_repeat(slow, look)}
    # What was done once is not repeated: a repair that did not help would be bought again and again.
    done = {applied.strategy for applied in in_force(slow, look.policy)} - again
    return ski_rental.next_strategy([candidate for candidate in found if candidate is not None], done)


def next_of(state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
    """Choose the next strategy against the leading slowdown: one without a name may become a slow rank's."""
    return next_candidate(state, slow, look, "Rank" if slow.link is None else "Link")


def next_step(state: RecoveryState, look: Look) -> ski_rental.Candidate | None:
    """Return the strategy that the ladder would apply next to the leading slowdown, for display; None without any."""
    return next_of(state, state.leader, look) if state.leader is not None else None


def checked_strategy(slow: SlowIncident) -> Strategy | None:
    """Return the strategy whose effect is being judged; None while none is."""
    if slow.phase != "Checking":
        return None
    kind: SubjectKind = "Link" if slow.culprit is None else "Rank"
    known = (STRATEGIES.get((applied.strategy, kind)) for applied in reversed(slow.applied))
    return next((strategy for strategy in known if strategy is not None and strategy.facts.restarts), Replacement())


def check(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Judge the strategy that the generation began with."""
    strategy = checked_strategy(slow)
    return Step(state) if strategy is None else strategy.check(state, slow, look)


def _against(kind: SubjectKind) -> list[Strategy]:
    return [strategy for (_, against), strategy in STRATEGIES.items() if against == kind]


def _is_due(
    candidate: ski_rental.Candidate, strategy: Strategy, slow: SlowIncident, policy: Policy, kind: SubjectKind
) -> bool:
    """Check whether the loss has reached the strategy's price, and the evidence allows what it does."""
    needs_evidence = kind == "Rank" and strategy.facts.needs_node_evidence
    if needs_evidence and not node_fault.suffices(slow.node_fault.evidence, policy):
        return False
    return ski_rental.due(candidate, slow.loss)
