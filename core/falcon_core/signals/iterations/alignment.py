"""Find where a cycle of tokens continues in a stream of calls that was interrupted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from falcon_core.signals.calls.stream import Ints

_LEAST_SAME = 0.8
_LONGEST_USUAL = 512  # calls of a cycle whose rotations are all compared


class Alignment(NamedTuple):
    """Call ``place`` of the stream is call ``position`` of the cycle."""

    place: int
    position: int


def exact_alignment(tokens: Ints, cycle: Ints, width: int) -> Alignment | None:
    """Find the first ``width`` calls in a row, at least a whole cycle, that fit at any position.

    Every such stretch has the cycle's rarest token in it, so only its occurrences are looked at.
    """
    lag, count = cycle.shape[0], tokens.shape[0]
    if count < width:
        return None
    values, counts = np.unique(cycle, return_counts=True)
    rarest = values[int(counts.argmin())]
    positions = np.flatnonzero(cycle == rarest).tolist()
    found: Alignment | None = None
    for rare in np.flatnonzero(tokens == rarest).tolist():
        begin, end = max(0, rare - lag + 1), min(count, rare + width)
        # All later occurrences can only begin later than what was found.
        if found is not None and begin > found.place:
            break
        for position in positions:
            expected = cycle[(position + np.arange(begin - rare, end - rare)) % lag]
            differs = np.flatnonzero(tokens[begin:end] != expected)
            after = int(np.searchsorted(differs, rare - begin))
            first = begin + (int(differs[after - 1]) + 1 if after > 0 else 0)
            last = begin + int(differs[after]) if after < differs.shape[0] else end
            if last - first >= width and (found is None or first < found.place):
                found = Alignment(first, (position + first - rare) % lag)
    return found


def usual_alignment(tokens: Ints, cycle: Ints) -> Alignment | None:
    """Find the only rotation of a cycle that fits these calls best, if most of them fit."""
    lag = cycle.shape[0]
    if lag > _LONGEST_USUAL:
        return None
    repeated = np.resize(cycle, lag + tokens.shape[0])
    fits = [int((tokens == repeated[position : position + tokens.shape[0]]).sum()) for position in range(lag)]
    best = int(np.argmax(fits))
    if fits[best] < _LEAST_SAME * tokens.shape[0] or fits.count(fits[best]) > 1:
        return None
    return Alignment(0, best)
