"""Keep the figures of a month, add those of several jobs, and find trends over the months."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

PERMUTATIONS: Final = 2000
Floats = npt.NDArray[np.float64]


class Month(msgspec.Struct):
    """What happened to a job, or to a fleet, in a month."""

    healthy_evicted: int = 0  # nodes that had not been slow since the onset
    link_evicted: int = 0  # nodes left for being slow while a link of theirs was
    bad_evicted: int = 0
    exchanges: int = 0
    moves: int = 0  # changes of the split of micro-batches
    moves_back: int = 0  # of them, to a split that had been left within the hour
    given_up: int = 0
    lost_seconds: float = 0.0  # slow seconds: training time beyond what healthy machines would have taken
    stood_still_seconds: float = 0.0  # restarts, pauses, and failures
    redone_iterations: int = 0
    seconds_before_action: list[float] = []  # of each slow stretch, until its first action
    seconds_endured: list[float] = []  # of each slow stretch without an action
    spare_prices: list[float] = []  # at each look with a slowdown [s]
    prices: dict[str, float] = {}  # at the month's end, by action [s]

    def trained(self, seconds: float, ratio: float) -> None:
        """Count training at so many times the healthy iteration time."""
        self.lost_seconds += seconds * max(0.0, 1 - 1 / ratio)


def joined(months: Iterable[Month]) -> Month:
    """Return the figures of several jobs in the same month; prices are medians over the jobs."""
    months = list(months)
    whole = Month()
    for name in whole.__struct_fields__:
        if name != "prices":
            setattr(whole, name, sum((getattr(month, name) for month in months[1:]), getattr(months[0], name)))
    names = {name for month in months for name in month.prices}
    whole.prices = {
        name: statistics.median(month.prices[name] for month in months if name in month.prices) for name in names
    }
    return whole


def slope(values: Sequence[float]) -> float:
    """Return the robust slope of a series by Theil and Sen: the median of all pairs' slopes, a month."""
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((second - first) / (later - earlier) for (earlier, first), (later, second) in pairs)


def chance(values: Sequence[float], seed: int = 1) -> float:
    """Return how often the same values in random order rise at least as steadily (Mann and Kendall's test, one-sided).

    What counts is the number of pairs of months of which the later is higher, less those of which it is lower. A figure
    that stays as it was scatters from month to month: its order is random, and any answer is equally likely. A figure
    that grows comes close to 0, a falling one close to 1.
    """
    rng = np.random.default_rng(seed)
    drawn = [_risen(rng.permutation(values)) for _ in range(PERMUTATIONS)]
    found = _risen(np.array(values, dtype=np.float64))
    return (1 + sum(other >= found for other in drawn)) / (1 + PERMUTATIONS)


def _risen(values: Floats) -> int:
    return int(np.triu(np.sign(values[None, :] - values[:, None]), 1).sum())
