"""Compare the ranks' series by dynamic time warping with a band, and find ranks apart from all others.

TRANSOM §IV-B 1. All pairs are computed at once: the recursion runs over the cells of the band, each of which holds an
array of pairs. Beyond ``MOST_REFERENCES`` ranks each is compared with so many of them alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BAND: Final = 3  # windows by which one series may be ahead of the other: 30 s
MOST_REFERENCES: Final = 16


def distances(left: Floats, right: Floats, band: int = BAND) -> Floats:
    """Return the warped distance of each pair of series [pair] ← two of [pair, window], of one length.

    It is the root of the least sum of squared differences over all alignments within the band.
    """
    windows = left.shape[-1]
    pairs = left.shape[:-1]
    above = np.full((windows + 1, *pairs), np.inf)
    above[0] = 0.0
    for row in range(windows):
        current = np.full((windows + 1, *pairs), np.inf)
        for column in range(max(0, row - band), min(windows, row + band + 1)):
            cheapest = np.minimum(np.minimum(above[column], above[column + 1]), current[column])
            current[column + 1] = (left[..., row] - right[..., column]) ** 2 + cheapest
        above = current
    return np.sqrt(above[windows])


def isolation(series: Floats, band: int = BAND) -> Floats:
    """Return each rank's distance to the others, in multiples of what is usual among them [metric, rank].

    ``series`` [metric, rank, window] are finite. A rank's distance is the median over the reference ranks; usual is
    the median over all ranks. 0 where no rank differs from any other.
    """
    metrics, ranks, _ = series.shape
    references = np.unique(np.linspace(0, ranks - 1, min(ranks, MOST_REFERENCES)).astype(int))
    from_each = np.empty((metrics, ranks, len(references)))
    for at, reference in enumerate(references):
        other = np.broadcast_to(series[:, reference : reference + 1], series.shape)
        from_each[:, :, at] = distances(series, other, band)
        from_each[:, reference, at] = np.nan  # of itself
    with np.errstate(invalid="ignore"):
        own = np.nanmedian(from_each, axis=-1)
    usual = np.median(own, axis=-1, keepdims=True)
    return np.asarray(np.where(usual > 0, own / np.where(usual > 0, usual, 1.0), np.where(own > 0, np.inf, 0.0)))
