"""Prepare series for the detectors that look at several metrics: fill, smooth, scale and choose (TRANSOM §V-B)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.ndimage import median_filter

from falcon_anomaly.detectors.medians import median

Array = npt.NDArray[Any]

FILTER: Final = 5  # windows of the median filter
FLIPS: Final = (
    0.25  # of the windows in which a series crosses half of its range: it is sampled more slowly than it flips
)
MOST_LIKE: Final = 0.95  # correlation from which a metric adds nothing to one that was chosen before
LEAST_VARIATION: Final = 1e-6  # standard deviation, relative to the level, below which a metric is constant


def filled(values: Array) -> Array:
    """Return [rank, window] without gaps: a gap takes the median rank's value, else the window's before, else 0."""
    found = np.where(np.isnan(values), median(values, 0)[None], values).astype(np.float64)
    known = ~np.isnan(found)
    newest = np.maximum.accumulate(np.where(known, np.arange(found.shape[1]), 0), axis=1)
    return np.nan_to_num(np.take_along_axis(found, newest, axis=1))


def smoothed(values: Array) -> Array:
    """Return [rank, window] through a median filter where the series flips faster than it is sampled."""
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    above = values > (low + high) / 2
    flips = (above[:, 1:] != above[:, :-1]).mean(axis=1) >= FLIPS
    return np.asarray(np.where(flips[:, None], median_filter(values, size=(1, FILTER), mode="nearest"), values))


def scaled(values: Array) -> Array:
    """Return [rank, window] as distances from the median of all, in their usual distance; ends at ± 20."""
    middle = np.median(values)
    usual = 1.48 * np.median(np.abs(values - middle))
    if usual <= LEAST_VARIATION * abs(middle):
        usual = max(float(values.std()), LEAST_VARIATION * abs(middle), 1e-12)
    return np.asarray(np.clip((values - middle) / usual, -20.0, 20.0))


def chosen(series: Array) -> list[int]:
    """Return the rows of [metric, rank, window] that vary, and are not linear in one chosen before."""
    kept: list[int] = []
    flat = series.reshape(len(series), -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    deviations = flat.std(axis=1)
    for row in range(len(flat)):
        if deviations[row] <= LEAST_VARIATION * max(1e-12, abs(float(flat[row].mean()))):
            continue
        like = (
            abs(float(centred[row] @ centred[other])) / (flat.shape[1] * deviations[row] * deviations[other])
            for other in kept
        )
        if all(each < MOST_LIKE for each in like):
            kept.append(row)
    return kept
