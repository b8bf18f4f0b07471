"""Find the ranks that compute slower than their peers, for long enough to be more than noise (the median rule).

A rank is a straggler when its compute time exceeds ``factor`` × the group's median in C iterations in a row
(FALCON §4; "consistently": a single slow step is a checkpoint or a garbage collection). Two choices of ours:

- The median is taken over the *other* members (leave one out). In a large group it makes no difference; in a group of
  two the plain median lies half-way to the straggler and would need it to be three times slower than its peer.
- Several stragglers at once (a compound fault) are peeled off, so that a straggler does not hide behind another. Where
  half of a group or more is slow there is no majority to compare with, and the rule stays silent about ranks that are
  within ``factor`` of the median of what is left.

Removing a straggler can only lower the medians of the others, because it lies above its own. So a straggler stays one,
the order of peeling does not matter, and all of them are peeled together. Each is then compared with the ranks that are
left: a ratio never depends on which other straggler was peeled first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.stats.medians import Table
from falcon_core.stats.order import median_of, medians_of

Matrix = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
ANY_ITERATION: Final = -(1 << 62)  # the values of a rank repeat a level that holds for any of the newest iterations


class Series(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The newest values of a rank, oldest first; the last belongs to iteration ``iterations`` (counted from 1).

    ``iterations`` None: the values repeat a level that holds for any of the newest iterations.
    """

    rank: int
    iterations: int | None
    values_ns: Sequence[int]


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """A straggler and how far it is out, as medians over the iterations that were compared."""

    rank: int
    ratio: float
    value_ns: int
    peers_ns: int


def leave_one_out_medians(values: Matrix) -> Matrix:
    """Return for each row the column-wise median of all other rows: [n, c] → [n, c], n ≥ 2. O(c · n log n)."""
    count = values.shape[0]
    if count < 2:
        raise ValueError("a median of the others needs at least two rows")
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.argsort(order, axis=0, kind="stable")  # row → its position in the sorted column

    # Without its own row, the order of the others shifts by one place from that row on.
    def nth_of_others(index: int) -> Matrix:
        shifted = np.where(place <= index, index + 1, index)
        return np.take_along_axis(ordered, shifted, axis=0)

    low, high = (count - 2) // 2, (count - 1) // 2
    return (nth_of_others(low) + nth_of_others(high)) / 2


def same_iterations(iterations: Rows, times: Table, width: int) -> Matrix:
    """Return ``width`` values of each rank, of the same iterations where that is possible: [n] → [n, width].

    ``iterations``: that of each rank's newest value, counted from 1, or ``ANY_ITERATION``. Each row of ``times`` has
    ``width`` values at least.

    Iterations are matched by their number where the reports overlap enough (work may vary from step to step, for all
    ranks alike); where they do not (very short iterations), each rank's newest values are compared.
    """
    ends, numbered = times.lengths.copy(), iterations != ANY_ITERATION
    known = iterations[numbered]
    if len(known):
        last = int(known.min())
        first = int((known - ends[numbered]).max()) + 1
        # The reports overlap: compare the same iterations of all ranks.
        if last - first + 1 >= width:
            ends[numbered] -= known - last
    return times.until(ends, width)


def compared(series: Sequence[Series], width: int) -> tuple[list[int], Matrix]:
    """Return the ranks that have ``width`` values, and those values as [n, width] (``same_iterations``)."""
    usable = [rank for rank in series if len(rank.values_ns) >= width]
    if not usable:
        return [], np.empty((0, width))
    iterations = [ANY_ITERATION if rank.iterations is None else rank.iterations for rank in usable]
    times = Table([rank.values_ns for rank in usable])
    return [rank.rank for rank in usable], same_iterations(np.array(iterations, dtype=np.int64), times, width)


def outliers(series: Sequence[Series], *, factor: float, consecutive: int) -> list[Outlier]:
    """Name the stragglers of a group of ranks that do the same work, worst first. ``factor`` ≥ 1."""
    ranks, values = compared(series, consecutive)
    return outliers_among(np.array(ranks, dtype=np.int64), values, factor=factor)


def outliers_among(ranks: Rows, values: Matrix, *, factor: float) -> list[Outlier]:
    """Name the stragglers of a group of ranks that do the same work, worst first: [n], [n, c]. ``factor`` ≥ 1.

    O(n log n) for n ranks and a given c, however many of them are slow.
    """
    left = np.arange(len(ranks))
    # Slow rows raise the median, and with it hide others. Take them out and look again.
    while len(left) >= 2 and _any_suspect(values[left], factor):
        slow = _peeled_together(values[left], factor)
        if not len(slow):
            slow = _beyond(values[left], factor)
        if not len(slow):
            break
        left = np.delete(left, slow)
    if len(left) == len(ranks):
        return []
    slow = np.delete(np.arange(len(ranks)), left)
    peers = medians_of(values[left], axis=0)
    peers_ns = int(median_of(peers))
    numbers = ranks[slow].tolist()
    ratios = medians_of(values[slow] / np.maximum(peers, 1.0), axis=1)
    levels = medians_of(values[slow], axis=1)
    return [
        Outlier(rank=numbers[index], ratio=float(ratios[index]), value_ns=int(levels[index]), peers_ns=peers_ns)
        for index in np.argsort(-ratios, kind="stable").tolist()
    ]


def _any_suspect(values: Matrix, factor: float) -> bool:
    """Check against a lower bound of all medians of others, in O(n): in a healthy group the rule ends here."""
    place = (values.shape[0] - 2) // 2
    floor = np.partition(values, place, axis=0)[place]
    return bool(np.any(np.all(values > factor * floor, axis=1)))


def _beyond(values: Matrix, factor: float) -> Rows:
    """Find the rows that exceed ``factor`` × the median of all others in every column."""
    others = leave_one_out_medians(values)
    return np.flatnonzero(np.all((values > factor * others) & (others > 0), axis=1))


def _peeled_together(values: Matrix, factor: float) -> Rows:
    """Find rows of [n, c] that peeling row by row would take, sorting once.

    All that is peeled lies above the median, so the t-th median is known before anything is peeled: it moves down the
    sorted column by half a place a row. A row is exposed from the first t on at which it exceeds ``factor`` × the
    median in every column; peeling goes on while more rows are exposed than were peeled.

    A row that is itself the upper of two middle values is left to ``_beyond``: its median of the others is another.
    """
    count = values.shape[0]
    ordered = np.sort(values, axis=0)
    peeled = np.arange(count - 1)
    low, high = (count - peeled - 2) // 2, (count - peeled - 1) // 2
    medians = (ordered[low] + ordered[high]) / 2
    rows = np.flatnonzero(np.all(values > factor * medians[-1], axis=1))  # the others are never exposed
    exposed = np.zeros(len(rows), dtype=np.int64)
    for column in range(values.shape[1]):
        own = values[rows, column]
        lower = np.searchsorted(factor * medians[::-1, column], own, side="left")  # medians below the row
        place = np.searchsorted(ordered[:, column], own, side="left")
        exposed = np.maximum(exposed, np.maximum(count - 1 - lower, count - 2 * place))
    positive = np.flatnonzero(np.all(medians > 0, axis=1))
    order = np.lexsort((-values[rows].sum(axis=1), exposed))
    known = np.append(exposed[order] <= np.arange(len(rows)), False)
    return rows[order[: min(int(np.argmin(known)), len(positive))]]
