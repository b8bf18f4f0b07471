"""Find ranks that log errors which their peers do not log (TRANSOM §IV-B: errors in a sliding window)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

WINDOW: Final = 30  # windows: 5 min
MOST_LINES: Final = 10  # in that time, from one rank
LEAST_WINDOWS: Final = 5  # of them with a line: a single burst is one event
PEERS_SHARE: Final = 0.2  # of the rank's lines that its peers may have logged
OWN_FACTOR: Final = 3.0  # times what the rank logged in its busiest earlier minutes


def scores(lines: npt.NDArray[Any], standing: Collection[int] = ()) -> npt.NDArray[Any]:
    """Return each rank's lines in the newest minutes as a multiple of what is too many [rank], 0 where it is not.

    Args:
        lines: [rank, window] counts lines; NaN where nothing came.
        standing: ranks with a verdict. Their own past is no measure any more: it soon holds the errors that were found.
    """
    counts = np.nan_to_num(lines)
    # What the peers log in the same windows is the job's, and hides no rank that logs more.
    counts = np.maximum(counts - np.median(counts, axis=0), 0.0) if len(counts) > 2 else counts
    newest = counts[:, -WINDOW:]
    many = newest.sum(axis=1)
    earlier = counts[:, : counts.shape[1] // 2]  # the newer half may have the fault already
    whole = earlier.shape[1] // WINDOW * WINDOW
    busiest = np.zeros(len(counts))
    if whole:
        busiest = earlier[:, -whole:].reshape(len(counts), -1, WINDOW).sum(axis=2).max(axis=1)
    busiest[[rank for rank in standing if rank < len(busiest)]] = 0.0
    peers = many[::-1] if len(many) == 2 else np.median(many)
    limit = np.maximum(MOST_LINES, OWN_FACTOR * busiest)
    lasts = ((newest > 0).sum(axis=1) >= LEAST_WINDOWS) & (newest[:, -WINDOW // 3 :] > 0).any(axis=1)
    alone = (peers <= PEERS_SHARE * many) & (len(counts) >= 2)
    return np.where(lasts & alone, many / limit, 0.0)
