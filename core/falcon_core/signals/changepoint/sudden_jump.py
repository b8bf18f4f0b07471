"""Detect a rank that is suddenly slow: its newest iterations exceed its own noise, too few of them for an onset.

An onset is certain after C iterations (``detector``), as it has to be before a node is replaced. Moving micro-batches
needs less certainty (``recovery.mitigation.early_rebalance``).
"""

from __future__ import annotations

import math
from typing import Final

from falcon_core.judgement import JUDGEMENT
from falcon_core.wire.reporting.messages import RankSignals

NEWEST: Final = 2  # iterations that stand out: a spike is one
DEVIATIONS: Final = 5.0  # of the healthy noise: independent normal noise is so far out twice in a row once in 10¹³


def long_ns(rank: RankSignals, verify: float) -> float | None:
    """Return from which time on an iteration of a rank stands out of its noise [ns]; None where that is not known.

    ``verify``: by which share of the healthy time it is longer, at least.
    """
    if rank.healthy_iteration_ns is None or rank.healthy_noise is None:
        return None
    return rank.healthy_iteration_ns * _factor(rank.healthy_noise, verify)


def is_suddenly_slow(rank: RankSignals, verify: float) -> bool:
    """Check whether a rank's newest iterations are long, each because the rank itself computes longer.

    What it computes longer is at least ``action_share`` of what the iterations are longer. ``rank``: in detail.
    """
    least_ns, well_ns = long_ns(rank, verify), rank.healthy_compute_ns
    taken, computed = rank.iteration_ns[-NEWEST:], rank.compute_ns[-NEWEST:]
    if least_ns is None or well_ns is None or not rank.detailed or not len(taken) == len(computed) == NEWEST:
        return False
    factor = _factor(rank.healthy_noise or 0.0, verify)
    if min(taken) <= least_ns or min(computed) <= well_ns * factor:
        return False
    gained = sum(taken) - NEWEST * (rank.healthy_iteration_ns or 0)
    return sum(computed) - NEWEST * well_ns >= JUDGEMENT.action_share * gained


def _factor(noise: float, verify: float) -> float:
    return max(1 + verify, math.exp(DEVIATIONS * noise))
