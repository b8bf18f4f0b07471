"""Ask the published detectors about a rank that differs: own past, all metrics at once, and the ranks' clusters.

Each of them scores all ranks, and agrees where the rank's score is beyond the largest of its peers. None of them
raises a verdict by itself (docs/adr/0134).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from falcon_anomaly.detectors import local_outliers, matrix_profile, warping
from falcon_anomaly.detectors.preparation import chosen, filled, scaled, smoothed

Array = npt.NDArray[Any]

STRETCH: Final = 18  # windows of a stretch of the matrix profile
WARPED: Final = 36  # windows whose course is compared between ranks
NEWEST: Final = 6  # windows that are scored as points
MOST_POINTS: Final = 1000  # of the reference
LEAST_HISTORY: Final = 4 * STRETCH
MOST_RANKS: Final = 33  # the rank and so many peers, less one
BEYOND_PEERS: Final = 1.3  # times the largest score of the peers

PROFILE: Final = "matrix-profile"
FACTOR: Final = "local-outlier-factor"
WARPING: Final = "warped-clusters"


def prepared(series: Array) -> Array:
    """Return [metric, rank, window] without gaps, smoothed and scaled."""
    return np.stack([scaled(smoothed(filled(each))) for each in series])


def profile_scores(series: Array) -> Array:
    """Return the distance of each newest stretch from its third neighbour in the past [metric, rank]."""
    return np.nan_to_num(matrix_profile.newest_distance(series, STRETCH), posinf=0.0)


def factor_scores(series: Array) -> Array:
    """Return the local outlier factor of each rank's newest windows among earlier ones of all ranks [rank]."""
    rows = chosen(series[:, :, : -2 * NEWEST])
    if not rows:
        return np.ones(series.shape[1])
    points = series[rows].transpose(1, 2, 0)
    older = points[:, : points.shape[1] // 2].reshape(-1, len(rows))
    known = local_outliers.reference(older[:: -(-len(older) // MOST_POINTS)])
    newest = points[:, -NEWEST:].reshape(-1, len(rows))
    return np.asarray(np.median(local_outliers.outlier_factors(known, newest).reshape(-1, NEWEST), axis=1))


def warping_scores(series: Array) -> Array:
    """Return how far each rank's newest course is from the others' [metric, rank]."""
    return warping.isolation(series[:, :, -WARPED:])


def agreeing(series: Array, row: int, rank: int) -> tuple[str, ...]:
    """Return which detectors find the rank's metric ``row`` of [metric, rank, window] beyond all of its peers."""
    if series.shape[1] < 3 or series.shape[2] < LEAST_HISTORY:
        return ()
    ready = prepared(series)
    scores = {
        PROFILE: profile_scores(ready[row : row + 1])[0],
        FACTOR: factor_scores(ready),
        WARPING: warping_scores(ready[row : row + 1])[0],
    }
    return tuple(name for name, each in scores.items() if each[rank] > BEYOND_PEERS * np.delete(each, rank).max())


def compared(ranks: int, rank: int) -> list[int]:
    """Return the ranks that are compared with this one, and itself, ascending: of a large job a few."""
    peers = np.linspace(0, ranks - 1, min(ranks, MOST_RANKS - 1)).astype(int).tolist()
    return sorted({rank, *peers})
