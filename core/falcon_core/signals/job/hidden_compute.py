"""Correct a comparison of computations where calls run while ranks compute, as with DDP and FSDP.

A rank's computation is the time outside its calls. A call that runs in the background hides what is computed meanwhile.
A rank that waits for a slow one is in its calls for longer, so more is hidden, and its computation seems to shrink. The
slow rank waits for none. So the plain ratios make a slow rank look far slower than it is, and a rank that is slower by
some per cent look like a straggler. Two things are hidden least, and bound the true ratio from above:

- **The iteration.** Peers that compute less than before an onset show that calls hide computation. All ranks wait for
  the slow one, so an iteration becomes longer by its factor, but for calls during which it does not compute.
- **The longest stretch** between two calls (optimizer and forward pass in DDP), where there is no level from before.
  A rank that is slow throughout is slow in this stretch, by the same factor.

Where calls hide nothing, the peers compute as before, and the longest stretches have the ratio of the whole
computations.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from falcon_core.signals.job.culprits import median_of_others
from falcon_core.stats.medians import Floats

_ALIKE: Final = 1.1  # between the ratio of computations and that of longest stretches: less is noise


def growth(own: float, peers: float, iteration: float, tolerance: float) -> float:
    """Return the growth of a rank's computation, from 1 on; never more than ``own``.

    ``own``, ``peers``: newest computation ÷ healthy computation of the rank, and of typical peers. ``iteration``:
    newest iteration time ÷ healthy one. ``tolerance``: by this share the peers' computation may shrink as noise.
    """
    return min(own, max(1.0, iteration)) if is_hidden(peers, iteration, tolerance) else own


def is_hidden(peers: float, iteration: float, tolerance: float) -> bool:
    """Check whether calls hide computation: the peers' has shrunk, and not because the whole job is faster now."""
    return peers < (1 - tolerance) * min(1.0, iteration)


def shown_share(compute_ns: Floats, longest_share: Floats) -> Floats:
    """Return by what the ratio of each rank's computation to its peers' is to be multiplied, at most 1: [n].

    No rank becomes faster than its peers by it: a rank may be slow elsewhere than in its longest stretch.

    ``compute_ns``: of ranks that do the same work: [n]. ``longest_share``: the share of it in the longest stretch
    between two calls, NaN where it is not known: [n]. 1 where calls seem to hide nothing.
    """
    none = np.ones(len(compute_ns))
    if len(compute_ns) < 2 or np.isnan(longest_share).any() or not (longest_share > 0).all():
        return none
    whole = compute_ns / np.maximum(median_of_others(compute_ns), 1.0)
    longest_ns = compute_ns * longest_share
    longest = longest_ns / np.maximum(median_of_others(longest_ns), 1.0)
    shown = np.maximum(longest, np.minimum(whole, 1.0)) / np.maximum(whole, 1e-9)
    return np.where(whole > _ALIKE * longest, shown, none)
