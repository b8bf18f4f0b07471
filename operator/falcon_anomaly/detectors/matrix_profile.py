"""Compare a series with its own past: the distance of a stretch to its k nearest neighbours (TRANSOM §IV-B 2).

The distance is that of the matrix profile (Yeh et al. 2016), between stretches of mean 0 and standard deviation 1,
by one convolution for each stretch (MASS). One neighbour alone finds an odd stretch normal when it comes again: the
k-th does not.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.signal import fftconvolve

Floats = npt.NDArray[np.float64]

NEIGHBOURS: Final = 3
_FLAT: Final = 1e-7  # of the series' largest value: a smaller deviation is rounding
_EXACT: Final = 1e-13  # of a squared distance, relative: less than a convolution can tell from zero


def distances(series: Floats, begin: int, length: int) -> Floats:
    """Return the distance of the stretch at ``begin`` from all stretches of ``length`` [..., stretch].

    ``series`` [..., window] are finite. A flat stretch is at 0 from a flat one, and at √length from any other.
    """
    # Sums of squares lose their digits far from zero.
    series = series - series.mean(axis=-1, keepdims=True)
    query = series[..., begin : begin + length]
    products = fftconvolve(series, query[..., ::-1], mode="valid", axes=-1)
    stretches = np.lib.stride_tricks.sliding_window_view(series, length, axis=-1)
    means, deviations = stretches.mean(axis=-1), stretches.std(axis=-1)
    own_mean, own_deviation = means[..., begin, None], deviations[..., begin, None]
    flat = deviations <= _FLAT * np.abs(series).max(axis=-1, keepdims=True)
    own_flat = flat[..., begin, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        likeness = (products - length * means * own_mean) / (length * deviations * own_deviation)
    squared = 2 * length * (1 - np.clip(likeness, -1.0, 1.0))
    squared = np.where(flat & own_flat, 0.0, np.where(flat | own_flat, float(length), squared))
    return np.sqrt(np.where(squared < _EXACT * length, 0.0, squared))


def nearest(of_stretch: Floats, begin: int, length: int, neighbours: int = NEIGHBOURS) -> Floats:
    """Return the distances of the nearest other stretches, ascending [..., neighbour]; inf where there are fewer.

    Stretches that begin within a quarter of ``length`` of ``begin`` are the stretch itself. ``of_stretch``: what
    ``distances`` returned.
    """
    zone = math.ceil(length / 4)
    others = of_stretch.copy()
    others[..., max(0, begin - zone) : begin + zone + 1] = np.inf
    missing = neighbours - others.shape[-1]
    if missing > 0:
        others = np.concatenate([others, np.full((*others.shape[:-1], missing), np.inf)], axis=-1)
    return np.sort(np.partition(others, neighbours - 1, axis=-1)[..., :neighbours], axis=-1)


def newest_distance(series: Floats, length: int, neighbours: int = NEIGHBOURS) -> Floats:
    """Return the distance of the newest stretch to its k-th neighbour in the past [...]; inf where it has none."""
    begin = series.shape[-1] - length
    return nearest(distances(series, begin, length), begin, length, neighbours)[..., -1]
