"""Measure noise of which each sample inherits a share from the sample before.

The share is called the correlation. A sample ``k`` places later inherits its ``k``-th power (an autoregression of order
one). The logarithms of times have such noise where a machine is shared: what disturbs a rank lasts for some iterations.
"""

from __future__ import annotations


def mean_variance(samples: int, correlation: float) -> float:
    """Return the variance of a mean of ``samples`` ÷ that of a single one, at a correlation of 0 ≤ it < 1.

    Few samples of lasting noise err together, as one sample does.
    """
    brief = 1 - correlation
    together = 2 * correlation * (1 - correlation**samples)
    return (samples * brief * (1 + correlation) - together) / (samples * brief) ** 2
