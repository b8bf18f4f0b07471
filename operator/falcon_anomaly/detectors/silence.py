"""Find metrics that stop arriving from one rank, while its others and its peers' go on."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]

SILENT: Final = 18  # windows without a value: 3 min
USUAL: Final = 0.9  # of the windows before in which the metric came
LEAST_HISTORY: Final = 60
OTHERS: Final = 0.5  # of the ranks that usually have the metric, and still do


def silent(arrived: Bools) -> npt.NDArray[Any]:
    """Return for how many windows each metric has been silent [metric, rank], 0 where it is not.

    ``arrived`` [metric, rank, window] says where values came. Windows in which nothing of a rank came are the rank's
    silence, not the metric's, and are left out.
    """
    metrics, ranks, windows = arrived.shape
    lasts = np.zeros((metrics, ranks), int)
    if windows < LEAST_HISTORY + SILENT:
        return lasts
    heard = np.asarray(arrived.any(axis=0))
    for rank in range(ranks):
        own = arrived[:, rank, heard[rank]]
        if own.shape[1] >= LEAST_HISTORY + SILENT:
            gone = _trailing_gap(own)
            before = own.shape[1] - gone
            usual = (own.sum(axis=1) >= USUAL * before) & (before >= LEAST_HISTORY)
            lasts[:, rank] = np.where((gone >= SILENT) & usual, gone, 0)
    # Where half of the peers fell silent too, the metric ended for the job.
    had = arrived.sum(axis=2) >= USUAL / 2 * np.maximum(heard.sum(axis=1), LEAST_HISTORY)
    gone_on = arrived[:, :, -SILENT:].any(axis=2)
    enough = (had & gone_on).sum(axis=1) >= np.maximum(2, OTHERS * had.sum(axis=1))
    return np.asarray(np.where(enough[:, None] & had, lasts, 0))


def _trailing_gap(own: Bools) -> npt.NDArray[Any]:
    """Return how many of the newest windows have no value [metric]."""
    newest_first = own[:, ::-1]
    return np.asarray(np.where(newest_first.any(axis=1), newest_first.argmax(axis=1), own.shape[1]))
