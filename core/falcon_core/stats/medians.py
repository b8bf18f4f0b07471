"""Compute the medians of many ranks at once, so that a look at a job of 10 000 ranks takes milliseconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from falcon_core.stats.order import median_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Table:
    """Rows of numbers of 64 bits at most, oldest first, of which medians are taken again and again.

    Only the newest values that are asked for are read, and only once: to read all takes most of the time.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        """Take the rows. They may differ in length."""
        self.lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        self._longest = int(self.lengths.max(initial=0))
        self._rows = rows
        self._whole: tuple[Table, Ints | Flags] | None = None  # the table of which these are some rows, and which
        self._values: Floats = np.empty((len(rows), 0))  # newest values read so far, aligned to the right: [n, width]
        self._medians: dict[int, Floats] = {}  # of all rows, by the number of newest values: a few numbers of them

    def __getitem__(self, rows: Ints | Flags) -> Table:
        """Return the table of these rows."""
        part = Table(())
        part._whole, part._longest = (self, rows), self._longest
        part.lengths, part._values = self.lengths[rows], self._values[rows]
        return part

    def newest(self, count: int) -> Floats:
        """Return the newest ``count`` values of each row: [n, count]; infinite in front of a shorter row."""
        if self._values.shape[1] < count and self._whole is not None:
            whole, rows = self._whole
            self._values = whole.newest(count)[rows]
        elif self._values.shape[1] < count:
            self._values = self._read(count)
        return self._values[:, self._values.shape[1] - count :]

    def _read(self, width: int) -> Floats:
        # Where most values are asked for, others will ask for all of them.
        width = max(width, self._longest) if 2 * width > self._longest else width
        lengths = np.minimum(self.lengths, width)
        # Each slice lives for a moment only: a list of ten thousand would set off the garbage collector.
        newest = map(itemgetter(slice(-width, None)), self._rows) if width < self._longest else self._rows
        flat = np.fromiter(chain.from_iterable(newest), dtype=np.int64, count=int(lengths.sum()))
        if len(flat) == width * len(lengths):  # no row is shorter, as in most looks
            return flat.reshape(len(lengths), width).astype(np.float64)
        values = np.full((len(lengths), width), np.inf)
        values[np.arange(width) >= width - lengths[:, np.newaxis]] = flat
        return values

    def until(self, ends: Ints, count: int) -> Floats:
        """Return of each row the ``count`` values before its place ``ends``: [n] → [n, count]. They have to exist."""
        if np.array_equal(ends, self.lengths):
            return self.newest(count)
        places = (self._longest - self.lengths + ends - count)[:, np.newaxis] + np.arange(count)
        return np.take_along_axis(self.newest(self._longest), places, axis=1)

    def medians(self, newest: int | None = None, rows: Ints | None = None) -> Floats:
        """Return the median of each row, or of its ``newest`` values: [n]. Not to be changed: others may share it.

        ``rows``: only of these, ascending. None of them may be empty.
        """
        width = self._longest if newest is None else min(newest, self._longest)
        if rows is not None and len(rows) < len(self.lengths):
            return self._medians[width][rows] if width in self._medians else self[rows].medians(width)
        if width not in self._medians:
            ordered, lengths = np.sort(self.newest(width), axis=1), np.minimum(self.lengths, width)
            row = np.arange(len(ordered))
            self._medians[width] = (ordered[row, (lengths - 1) // 2] + ordered[row, lengths // 2]) / 2
        return self._medians[width]


def medians(rows: Sequence[Sequence[int]], newest: int | None = None) -> Floats:
    """Return the median of each row, or of its ``newest`` values: [n]. Rows may differ in length; none is empty."""
    return Table(rows).medians(newest)


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
