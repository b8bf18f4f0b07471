"""List the strategies. Whatever depends on their number or names derives from this table.

A job's spec and a simulated scenario may name ``STRATEGY_TYPES``; the ladder finds the behaviour in ``STRATEGIES``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.cost import prices
from falcon_core.recovery.mitigation.concurrent_link_swap import ConcurrentLinkSwap
from falcon_core.recovery.mitigation.link_swap import LinkSwap
from falcon_core.recovery.mitigation.node_swap import NodeSwap
from falcon_core.recovery.mitigation.rebalance import Rebalance, UnnamedRebalance
from falcon_core.recovery.mitigation.replacement import Replacement
from falcon_core.recovery.mitigation.strategy import Attempt, Strategy, SubjectKind
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import ignore
from falcon_core.recovery.strategies.strategy_type import StrategyType


class Endurance(Strategy):
    """S1: nothing is done, and that is written down."""

    facts = ignore.FACTS
    against = ("Rank", "Link", "ConcurrentLink")

    def candidate(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Candidate | None:
        return prices.standstill(self.facts, state, look.policy)

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        return Attempt(state, slow, [])


_ALL: Final[tuple[Strategy, ...]] = (
    Endurance(),
    Rebalance(),
    UnnamedRebalance(),
    NodeSwap(),
    LinkSwap(),
    ConcurrentLinkSwap(),
    Replacement(),
)
STRATEGIES: Final[dict[tuple[str, SubjectKind], Strategy]] = {
    (strategy.facts.name, kind): strategy for strategy in _ALL for kind in strategy.against
}
STRATEGY_TYPES: Final = tuple(dict.fromkeys(strategy.facts for strategy in _ALL))
_TYPE_OF: Final = {facts.name: facts for facts in STRATEGY_TYPES}
if TYPE_CHECKING:
    StrategyName = str
else:  # a reader of specs and scenarios refuses any other name
    StrategyName = Literal[tuple(_TYPE_OF)]


def strategy_type(name: str) -> StrategyType:
    """Return the type of this name. A stored name that only a newer version knows has no words, and no price."""
    return _TYPE_OF.get(name) or StrategyType(name=name, explanation="", default_seconds=0.0)
