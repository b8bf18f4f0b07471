"""Measure how near healthy windows come to a verdict: the largest difference that a metric's floor alone holds back.

A verdict needs a difference beyond the floor and beyond what the run's own windows show. The reach of a window is the
largest difference beyond the latter alone. A lower floor would have raised a verdict exactly where it does not exceed
the reach, so that a limit can be tried on runs whose series are long gone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from falcon_anomaly.detectors import peers
from falcon_anomaly.detectors.peers import LONG_HISTORY, Comparison, Limit
from falcon_anomaly.judge import compared_windows, free_windows
from falcon_anomaly.learning.limits import LEAST, MARGIN, learnable
from falcon_anomaly.series.board import Board
from falcon_anomaly.series.metrics import Metric, Role, metric

EACH_WINDOWS: Final = peers.LASTING // 2  # between two measurements: differences last twice as long
_SMALL: Final = LEAST / 100 / MARGIN  # share of a floor below which a reach changes no limit, and counts as 0


def reaches(board: Board) -> tuple[bool, dict[str, float]]:
    """Measure the board's newest windows.

    Returns:
        Whether the training windows are fewer than an hour, and the reach of each metric that can be compared, as a
        share of its floor, by the metric's name before a colon: of several volumes, the largest.
    """
    training = np.flatnonzero(board.training())
    free = free_windows(board)
    found: dict[str, float] = {}
    for name in board.metrics:
        known = name.partition(":")[0]
        if not learnable(known):
            continue
        of, values = metric(name), board.medians(name)
        columns = compared_windows(values, training)
        values = values[:, columns]
        if _is_known(values, of):
            result = peers.compare(values, of, {}, limit=Limit(_SMALL, _SMALL), free=free[columns])
            share = 0.0 if result is None else reach(result, board.ranks_per_pod) / of.floor
            found[known] = max(found.get(known, 0.0), share)
    return len(training) < LONG_HISTORY, found


def _is_known(values: peers.Array, of: Metric) -> bool:
    """Check whether the ranks can be compared: two of them have a history, and newest windows."""
    least = peers.LEAST_OF_FAULTS if of.role == Role.FAULT else peers.LEAST_HISTORY
    if values.shape[1] < least:
        return False
    there = np.isfinite(values)
    early = there[:, : values.shape[1] // 2].sum(axis=1) >= least // 4
    newest = there[:, -peers.LASTING :].sum(axis=1) >= int(peers.PRESENT * peers.LASTING)
    return bool(np.count_nonzero(early & newest) >= 2)


def reach(result: Comparison, ranks_per_pod: int) -> float:
    """Return the largest difference of a rank that only a floor keeps from being a verdict, in the metric's unit.

    Of two pods, a rank must have left its own past as well (as ``judge`` asks).
    """
    from_peers = _beyond(np.abs(result.lasting), result.bases)
    pods = {rank // ranks_per_pod for rank in np.flatnonzero(~np.isnan(result.scores)).tolist()}
    if len(pods) == 2:
        from_peers = np.minimum(from_peers, _beyond(np.abs(result.own_lasting), result.own_bases))
    return float(np.max(from_peers, initial=0.0))


def _beyond(sizes: peers.Array, bases: peers.Array) -> peers.Array:
    """Return the sizes that reach what the run by itself asks for, and 0 in place of the others [rank]."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(sizes >= bases, sizes, 0.0))
