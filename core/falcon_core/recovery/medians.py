"""Medians of many ranks at once, so that a look at a job of 10 000 ranks takes milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from falcon_core.recovery.observation import RankSeen

Floats = npt.NDArray[np.float64]


def medians(rows: Sequence[Sequence[int]], newest: int | None = None) -> Floats:
    """Return the median of each row, or of its ``newest`` last values: [n]. Rows may differ in length; none is empty.

    O(n · w log w) for rows of w values, which have 64 bits at most (``wire.messages``).
    """
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    values: Iterable[Sequence[int]] = rows
    if newest is not None:
        lengths = np.minimum(lengths, newest)
        # Each slice lives for a moment only: a list of ten thousand would set off the garbage collector.
        values = map(itemgetter(slice(-newest, None)), rows)
    flat = np.fromiter(chain.from_iterable(values), dtype=np.int64, count=int(lengths.sum()))
    width = int(lengths.max(initial=0))
    table = np.full((len(rows), width), np.inf)
    table[np.arange(width) < lengths[:, np.newaxis]] = flat
    table.sort(axis=1)
    row = np.arange(len(rows))
    return np.asarray((table[row, (lengths - 1) // 2] + table[row, lengths // 2]) / 2)


def iteration_ns(ranks: Sequence[RankSeen], width: int) -> float | None:
    """Return the job's iteration time: the median over the ranks of the median of their newest ``width`` iterations."""
    newest = medians([rank.sent.iteration_ns for rank in ranks if rank.sent.iteration_ns], width)
    return float(np.median(newest)) if len(newest) else None


def median(values: Sequence[float]) -> float:
    """Return the median of many numbers."""
    return float(np.median(np.fromiter(values, dtype=np.float64, count=len(values))))
