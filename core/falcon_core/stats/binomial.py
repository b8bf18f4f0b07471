"""Compute chances of a binomial distribution, for any number of trials."""

from __future__ import annotations

import math


def chance_of_at_least(least: int, trials: int, share: float) -> float:
    """Return P(binomial(trials, share) ≥ least)."""
    if share >= 1.0:
        return 1.0
    if share <= 0.0:
        return float(least <= 0)
    # By logarithms: from about a thousand trials on, the binomial coefficients are beyond the range of a float.
    ways = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            ways
            - math.lgamma(k + 1)
            - math.lgamma(trials - k + 1)
            + k * math.log(share)
            + (trials - k) * math.log1p(-share)
        )
        for k in range(least, trials + 1)
    )
