"""Compute how long the operator requests full reports before it accepts that no rank explains a slowdown."""

from __future__ import annotations

from typing import Final

from falcon_core.wire.reporting.messages import MAX_DETAILED

OWN_JUDGEMENT_SECONDS: Final = 3.0  # for the ranks to come forward by themselves
TURN_SECONDS: Final = 5.0


def turns(ranks: int) -> int:
    """Return in how many turns so many ranks are asked."""
    return max(1, -(-ranks // MAX_DETAILED))
