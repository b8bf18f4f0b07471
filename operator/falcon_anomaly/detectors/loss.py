"""Find a loss that rises and stays high, and one that is the same number for minutes while iterations go on."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from falcon_anomaly.detectors.medians import block_medians, median

Array = npt.NDArray[Any]

LASTING: Final = 18  # windows: a spike that ends within 90 s is left alone
LEAST_HISTORY: Final = 60
LEAST_RISE: Final = 0.15  # of the loss
FACTOR: Final = 3.0  # times the largest rise, or the largest spread, of earlier windows
STALL: Final = 60  # windows with one and the same number: 10 min
LEAST_CHANGES: Final = 0.9  # of neighbouring windows before that must differ
HOUR_OF_BLOCKS: Final = 40  # blocks of LASTING windows, half-overlapping
_SAME: Final = 1e-6  # relative: 24-bit numbers


def spike_score(loss: Array) -> float:
    """Return the rise of the job's loss [window], NaN where none came, as a multiple of a healthy rise.

    The rise is that of the newest ``LASTING`` windows above the lowest level of the hour before.
    """
    loss = loss[~np.isnan(loss)]
    if len(loss) < LEAST_HISTORY + LASTING:
        return 0.0
    newest, before = float(np.median(loss[-LASTING:])), loss[:-LASTING]
    # A loss falls while it is learned: what counts is how far it rose above its lowest level, and how it scatters.
    levels = block_medians(before[None], LASTING)[0]
    older = levels[: max(2, len(levels) // 2)]
    rises = float(np.max(older - np.minimum.accumulate(older)))
    lowest = float(np.min(levels[-HOUR_OF_BLOCKS:]))
    spread = float(np.median(np.abs(np.diff(before))))
    return (newest - lowest) / max(LEAST_RISE * abs(lowest), FACTOR * rises, FACTOR * spread, 1e-12)


def stalled_windows(loss: Array) -> int:
    """Return for how many windows the job's loss has been one number; 0 where that is less than ``STALL``."""
    loss = loss[~np.isnan(loss)]
    if len(loss) < LEAST_HISTORY + STALL:
        return 0
    differs = np.abs(np.diff(loss)) > _SAME * np.abs(loss[1:])
    same = int(np.argmax(differs[::-1])) if differs.any() else len(differs)
    before = differs[: len(differs) - same]
    if same < STALL or len(before) < LEAST_HISTORY // 2 or before.mean() < LEAST_CHANGES:
        return 0
    return same


def job_loss(values: Array) -> Array:
    """Return the median rank's loss [window] ← [rank, window]."""
    return median(values, 0)
