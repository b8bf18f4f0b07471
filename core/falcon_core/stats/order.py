"""Compute order statistics and sets of small arrays, faster than NumPy's functions, which are made for large ones."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt


def median_of(values: npt.NDArray[np.generic]) -> float:
    """Return the median as ``np.median`` does: [n], n > 0."""
    ordered, half = np.sort(values), values.shape[0] // 2
    middle = float(ordered[half])
    return middle if values.shape[0] % 2 else (float(ordered[half - 1]) + middle) / 2


def medians_of(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    """Return the medians along an axis as ``np.median`` does: [n, …], n > 0 along that axis → [the other axes]."""
    ordered, count = np.sort(values, axis=axis), values.shape[axis]
    middle = ordered.take(count // 2, axis=axis)
    if not count % 2:
        middle = (ordered.take(count // 2 - 1, axis=axis) + middle) / 2
    return np.asarray(middle)


def counts_of(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the values that occur, ascending, and how often, as ``np.unique`` does: [n], n > 0 → [k], [k]."""
    ordered = np.sort(values)
    begins = np.empty(values.shape[0] + 1, dtype=np.bool_)
    begins[0] = begins[-1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:-1])
    places = begins.nonzero()[0]
    return ordered[places[:-1]], places[1:] - places[:-1]


def are_among(numbers: npt.NDArray[np.int64], those: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Check which numbers are among ``those``, as ``np.isin`` does: [n], [k] of a small range, k > 0 → [n]."""
    low = int(those.min()) - 1
    table = np.zeros(int(those.max()) - low + 2, dtype=np.bool_)
    table[those - low] = True
    return table.take(numbers - low, mode="clip")


def are_in(numbers: npt.NDArray[np.int64], those: Collection[int]) -> npt.NDArray[np.bool_]:
    """Check which numbers are in a collection: [n] → [n]."""
    if not those:
        return np.zeros(len(numbers), dtype=np.bool_)
    return np.isin(numbers, np.fromiter(those, dtype=np.int64, count=len(those)))


def tenths_of(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the first and the ninth tenth as ``np.quantile`` does, but for rounding: [n], n > 0."""
    ascending = np.sort(values)
    return quantile_of(ascending, 0.1), quantile_of(ascending, 0.9)


def quantile_of(ascending: npt.NDArray[np.float64], share: float) -> float:
    """Interpolate between the two nearest of sorted values: [n], n > 0."""
    place = (ascending.shape[0] - 1) * share
    low = int(place)
    value = float(ascending[low])
    return value if place == low else value + (place - low) * (float(ascending[low + 1]) - value)
