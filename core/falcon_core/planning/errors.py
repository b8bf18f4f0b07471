"""Define the errors for input from which no plan can be made, so that a caller can report the reason."""

from __future__ import annotations


class PlanningError(ValueError):
    """The base of all: no plan can be made from this input, and the message names the part of it that is wrong."""


class InvalidInputError(PlanningError):
    """Lengths that do not match, negative counts, or a value that is not a number."""


class InvalidSpeedError(PlanningError):
    """A time or a speed that is zero, negative, infinite or not a number: the measurement is broken, not the plan."""


class SingleGroupError(PlanningError):
    """One group has no other to share with: there is nothing to decide."""


class TooFewMicrobatchesError(PlanningError):
    """More groups than micro-batches: some group would stay without work (every m_i ≥ 1)."""


class InfeasibleError(PlanningError):
    """The constraints exclude every plan."""
