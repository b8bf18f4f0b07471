"""Correct a comparison of computations where calls run while ranks compute, as with DDP and FSDP.

A rank's computation is the time outside its calls. A call that runs in the background hides what is computed meanwhile.
A rank that waits for a slow one is in its calls for longer, so more is hidden, and its computation seems to shrink. The
slow rank waits for none. So the plain ratios make a slow rank look far slower than it is, and a rank that is slower by
some per cent look like a straggler. Three things are hidden least, and bound the true ratio:

- **The iteration.** Peers that compute less than before an onset show that calls hide computation. All ranks wait for
  the slow one, so an iteration becomes longer by its factor, but for calls during which it does not compute.
- **The longest stretch** between two calls (optimizer and forward pass in DDP). A rank that is slow throughout is slow
  in this stretch, by the same factor. Since an onset it counts only where the peers' longest stretch is as long as
  before: then no call hides a part of it.
- **The first stretch**, where there is no level from before and a part of the longest is hidden as well (FSDP of few
  layers). If the call before it lasts as long at the slow rank as at its peers, all of them came to it together. Then
  they began to compute with it, and call and stretch together have the ratio.

Where calls hide nothing, the peers compute as before, and the longest stretches have the ratio of the whole
computations. Peers also compute less where all ranks have less to do. Then all their stretches shrink alike, and the
slow rank has gained no more than the iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from falcon_core.signals.job.culprits import median_of_others
from falcon_core.stats.medians import Floats, Ints

_NOISE_SHARE: Final = 0.25  # of what all computation of the peers has shrunk by
_ALIKE: Final = 1.1  # between two ratios, or durations of a call: less is noise


class Growth(NamedTuple):
    """What became of a rank's computation: newest ÷ healthy."""

    compute: float
    longest: float | None = None  # of the stretch between two calls that was the longest; None: not known


class FirstStretches(NamedTuple):
    """The first stretch of ranks that do the same work (``wire.reporting.stretches.FirstStretch``): [n] each."""

    places: Ints
    shares: Floats
    calls: Floats


def growth(own: Growth, peers: Growth, iteration: float, compute_share: float, tolerance: float) -> float:
    """Return the growth of a rank's computation, from 1 on, compared with that of its peers where all have less to do.

    ``own``, ``peers``: of the rank, and of typical peers. ``iteration``: newest iteration time ÷ healthy one.
    ``compute_share``: healthy computation of the rank ÷ healthy iteration time. ``tolerance``: by this share the peers'
    computation may shrink as noise. Where calls hide nothing, it is ``own.compute``, and otherwise no more.
    """
    if not is_hidden(peers.compute, iteration, tolerance):
        return own.compute
    gained = (own.compute - 1) * compute_share
    if _shrank_alike(peers, tolerance) and gained <= iteration - 1 + tolerance:
        return own.compute / peers.compute
    bound = max(1.0, iteration)
    if own.longest is not None and peers.longest is not None and _is_open(peers, tolerance):
        bound = max(bound, own.longest / min(1.0, peers.longest))
    return min(own.compute, bound)


def _is_open(peers: Growth, tolerance: float) -> bool:
    """Check whether no call hides a part of the peers' longest stretch: it has hardly shrunk, or by noise of all."""
    return 1 - (peers.longest or 0.0) <= max(tolerance, _NOISE_SHARE * (1 - peers.compute))


def _shrank_alike(peers: Growth, tolerance: float) -> bool:
    """Check whether the peers' longest stretch has shrunk by as much as their whole computation."""
    return peers.longest is not None and abs(peers.longest / max(peers.compute, 1e-9) - 1) <= tolerance


def is_hidden(peers: float, iteration: float, tolerance: float) -> bool:
    """Check whether calls may hide computation: the peers' has shrunk, and not because the whole job is faster now."""
    return peers < (1 - tolerance) * min(1.0, iteration)


def shown_share(
    compute_ns: Floats, longest_share: Floats, first_stretches: Callable[[], FirstStretches | None] = lambda: None
) -> Floats:
    """Return by what the ratio of each rank's computation to its peers' is to be multiplied, at most 1: [n].

    No rank becomes faster than its peers by it: a rank may be slow elsewhere than in its longest stretch.

    ``compute_ns``: of ranks that do the same work: [n]. ``longest_share``: the share of it in the longest stretch
    between two calls, NaN where it is not known: [n]. ``first_stretches``: asked only where calls seem to hide
    something; None where not all ranks' are known. 1 where calls seem to hide nothing.
    """
    none = np.ones(len(compute_ns))
    if len(compute_ns) < 2 or np.isnan(longest_share).any() or not (longest_share > 0).all():
        return none
    whole = compute_ns / np.maximum(median_of_others(compute_ns), 1.0)
    least = _against_others(compute_ns * longest_share)
    is_covered = whole > _ALIKE * least
    if not is_covered.any():
        return none
    if (first := first_stretches()) is not None:
        least = np.minimum(least, _from_the_call_on(compute_ns, first))
    shown = np.maximum(least, np.minimum(whole, 1.0)) / np.maximum(whole, 1e-9)
    return np.where(is_covered, shown, none)


def _against_others(times_ns: Floats) -> Floats:
    return np.asarray(times_ns / np.maximum(median_of_others(times_ns), 1.0))


def _from_the_call_on(compute_ns: Floats, first: FirstStretches) -> Floats:
    """Return the ratio of each rank's first stretch and the call before it to its peers'; infinite if it is void: [n].

    That is so where the call lasts longer at some ranks than at others, or the ranks' first stretches differ in place.
    """
    calls_ns = compute_ns * first.calls
    call = _against_others(calls_ns)
    same_place = first.places == np.median(first.places)
    together = (call < _ALIKE) & (_ALIKE * call > 1) & same_place
    return np.where(together, _against_others(calls_ns + compute_ns * first.shares), np.inf)
