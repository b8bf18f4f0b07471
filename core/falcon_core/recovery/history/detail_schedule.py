"""Compute how long the operator requests full reports before it accepts that no rank explains a slowdown."""

from __future__ import annotations

from typing import Final

from falcon_core.wire.reporting.messages import MAX_DETAILED

OWN_JUDGEMENT_SECONDS: Final = 3.0  # time for ranks to send their full report by themselves
TURN_SECONDS: Final = 5.0


def turns(ranks: int) -> int:
    """Return the number of turns in which the operator requests the reports of this many ranks."""
    return max(1, -(-ranks // MAX_DETAILED))
