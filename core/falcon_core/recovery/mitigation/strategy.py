"""Define what each strategy answers: a repair against one kind of subject of a slowdown."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol

import msgspec

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.model.actions import Command
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies.strategy_type import StrategyType

# A rank is named; a link leads the list of slowdowns; a link is slow at the same time as ranks; nothing is named yet.
SubjectKind = Literal["Rank", "Link", "ConcurrentLink", "Unknown"]


class Attempt(msgspec.Struct, frozen=True):
    """What came of a strategy that is due. ``state`` may have the incident as it was: the caller stores ``slow``."""

    state: RecoveryState
    slow: SlowIncident
    commands: list[Command] | None = None  # None: it has to wait


class Strategy(Protocol):
    """A type of strategy against some kinds of subject.

    ``strategy_ladder`` asks the cheapest candidate whether it is blocked, applies it, and records it. A strategy that
    restarts ranks (``facts.restarts``) is asked to check its effect, at each look of the phase ``Checking``.
    """

    facts: ClassVar[StrategyType]
    against: ClassVar[tuple[SubjectKind, ...]]

    def refreshed(self, state: RecoveryState, slow: SlowIncident, look: Look) -> SlowIncident:
        """Return the incident with what the strategy would do now; called before prices are compared."""
        return slow

    def candidate(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Candidate | None:
        """Return the strategy with its price; None where it does not apply now."""
        ...

    def may_repeat(self, slow: SlowIncident, look: Look) -> bool:
        """Check whether the strategy may be applied once more to an incident."""
        return False

    def blocked_reason(self, state: RecoveryState, slow: SlowIncident, look: Look) -> str:
        """Return why the strategy waits though it is due; "" if it does not."""
        return ""

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        """Carry the strategy out, or in mode Observe do what is needed to write it down."""
        ...

    def check(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
        """Judge whether the strategy helped, after the ranks were restarted for it."""
        return Step(state)
