"""Compute the medians of many ranks at once, so that a look at a job of 10 000 ranks takes milliseconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from falcon_core.stats.order import median_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Table:
    """Rows of numbers of 64 bits at most, oldest first, of which medians are taken again and again."""

    def __init__(self, rows: Sequence[Sequence[int]], newest: int | None = None) -> None:
        """Take the rows, or the ``newest`` values of each. They may differ in length."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        values: Iterable[Sequence[int]] = rows
        if newest is not None:
            lengths = np.minimum(lengths, newest)
            # Each slice lives for a moment only: a list of ten thousand would set off the garbage collector.
            values = map(itemgetter(slice(-newest, None)), rows)
        flat = np.fromiter(chain.from_iterable(values), dtype=np.int64, count=int(lengths.sum()))
        width = int(lengths.max(initial=0))
        self.lengths = lengths
        self._values = np.full((len(rows), width), np.inf)  # aligned to the right
        self._values[np.arange(width) >= width - lengths[:, np.newaxis]] = flat

    def medians(self, newest: int | None = None, rows: Ints | None = None) -> Floats:
        """Return the median of each row, or of its ``newest`` values: [n]. None of the ``rows`` may be empty."""
        values, lengths = self._values, self.lengths
        if newest is not None:
            values, lengths = values[:, -newest:], np.minimum(lengths, newest)
        if rows is not None:
            values, lengths = values[rows], lengths[rows]
        ordered = np.sort(values, axis=1)
        row = np.arange(len(ordered))
        return np.asarray((ordered[row, (lengths - 1) // 2] + ordered[row, lengths // 2]) / 2)


def medians(rows: Sequence[Sequence[int]], newest: int | None = None) -> Floats:
    """Return the median of each row, or of its ``newest`` values: [n]. Rows may differ in length; none is empty."""
    return Table(rows, newest).medians()


def median(values: Sequence[float]) -> float:
    """Return the median of many numbers."""
    return median_of(np.fromiter(values, dtype=np.float64, count=len(values)))


def median_without(ordered: Sequence[float], gone: Sequence[float]) -> float:
    """Return the median of numbers in order without a few of them. A sort for each of them would be slow.

    At least one number has to remain, and each of ``gone`` has to be among them.
    """
    places: list[int] = []
    for value in gone:
        at = bisect_left(ordered, value)
        while at in places:
            at += 1
        places.append(at)
    places.sort()

    def other(place: int) -> float:
        for gone_place in places:
            place += gone_place <= place
        return ordered[place]

    left = len(ordered) - len(places)
    return (other((left - 1) // 2) + other(left // 2)) / 2
