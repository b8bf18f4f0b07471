"""The median rule: which ranks compute slower than their peers, for long enough to be more than noise.

A rank is an outlier when its compute time exceeds ``factor`` × the group's median in C iterations in a row
(FALCON §4; "consistently": one slow step is a checkpoint or a garbage collection). Two choices of ours:

- The median is taken over the *other* members (leave one out). In a large group it makes no difference; in a group of
  two the plain median lies half-way to the straggler and would need it to be three times slower than its peer.
- Several stragglers at once (a compound fault) are peeled off one by one, the worst first, so that one does not hide
  behind another. Where half of a group or more is slow there is no majority to compare with, and the rule stays silent
  about ranks that are within ``factor`` of the median of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's newest values, oldest first; the last belongs to iteration ``iterations`` (counted from 1)."""

    rank: int
    iterations: int
    values_ns: Sequence[int]


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """A straggler and how far it is out, as medians over the iterations that were compared."""

    rank: int
    ratio: float
    value_ns: int
    peers_ns: int


def leave_one_out_medians(values: Matrix) -> Matrix:
    """For each row, the column-wise median of all other rows: [n, c] → [n, c], n ≥ 2. O(c · n log n)."""
    count = values.shape[0]
    if count < 2:
        raise ValueError("a median of the others needs at least two rows")
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.argsort(order, axis=0, kind="stable")  # row → its position in the sorted column

    def nth_of_others(index: int) -> Matrix:
        shifted = np.where(place <= index, index + 1, index)
        return np.take_along_axis(ordered, shifted, axis=0)

    low, high = (count - 2) // 2, (count - 1) // 2
    return (nth_of_others(low) + nth_of_others(high)) / 2


def compared(series: Sequence[Series], width: int) -> tuple[list[int], Matrix]:
    """The ranks that have ``width`` values, and those values as [n, width].

    Iterations are matched by their number where the reports overlap enough (work may vary from step to step, for all
    ranks alike); where they do not (very short iterations), each rank's newest values stand for it.
    """
    usable = [one for one in series if len(one.values_ns) >= width]
    if not usable:
        return [], np.empty((0, width))
    last = min(one.iterations for one in usable)
    first = max(one.iterations - len(one.values_ns) + 1 for one in usable)
    rows = []
    for one in usable:
        end = len(one.values_ns) - (one.iterations - last) if last - first + 1 >= width else len(one.values_ns)
        rows.append(list(one.values_ns[end - width : end]))
    return [one.rank for one in usable], np.asarray(rows, dtype=np.float64)


def outliers(series: Sequence[Series], *, factor: float, consecutive: int) -> list[Outlier]:
    """The stragglers of a group of ranks that do the same work, worst first."""
    ranks, values = compared(series, consecutive)
    found: list[Outlier] = []
    while len(ranks) >= 2:
        others = leave_one_out_medians(values)
        out = np.all((values > factor * others) & (others > 0), axis=1)
        if not out.any():
            break
        ratios = np.where(out, np.median(values / np.maximum(others, 1.0), axis=1), 0.0)
        worst = int(np.argmax(ratios))
        found.append(
            Outlier(
                rank=ranks[worst],
                ratio=float(ratios[worst]),
                value_ns=int(np.median(values[worst])),
                peers_ns=int(np.median(others[worst])),
            )
        )
        ranks = ranks[:worst] + ranks[worst + 1 :]
        values = np.delete(values, worst, axis=0)
    return found
