"""Find the ranks that set a job's pace where ranks do not meet in every iteration (DiLoCo, local SGD).

In a synchronous job all ranks' iterations last equally long, whichever rank is slow. Where groups of ranks meet only
once in many iterations, a slow rank makes the iterations of its own group longer. The other groups wait for that group
when they meet. Then the job is as fast as its slowest group, though most ranks report no onset and short iterations.

Iteration times alone could deceive: an agent that counts layers or several iterations as one also differs from the
rest. So only ranks count that report an onset from about the time that most ranks' iterations take: they count the same
as the others, and used to be as fast.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.stats.medians import Floats, Ints
from falcon_core.stats.order import median_of

LEAST_RANKS: Final = 2  # a rank that meets no other rank in an iteration has no iterations that its calls show
BEHIND_FACTOR: Final = 1.05  # of iteration times: medians of ranks that meet in each iteration differ by less
ALIKE_FACTOR: Final = 1.1  # between ranks of a group that meets in each iteration


def behind(times_ns: Floats, before_ns: Floats) -> Ints:
    """Return the places of the ranks that have fallen behind all others; none in a job that is synchronous.

    ``times_ns``, ``before_ns``: of each rank the median of its newest iterations, and of those before the onset that it
    reports, infinite where it reports none: [n], n > 0.
    """
    level = median_of(times_ns)
    has_onset = (before_ns < JUDGEMENT.same_unit_factor * level) & (level < JUDGEMENT.same_unit_factor * before_ns)
    slow, others = times_ns[has_onset], times_ns[~has_onset]
    none = np.empty(0, dtype=np.int64)
    # An onset that most ranks report is the whole job's.
    if len(slow) < LEAST_RANKS or len(slow) > len(others):
        return none
    # Several groups may be slow, each for a reason of its own: the slowest sets the pace.
    last = has_onset & (times_ns * ALIKE_FACTOR >= slow.max())
    if int(last.sum()) < LEAST_RANKS:
        return none
    # Another group that is as slow without an onset sets the pace as much as this one.
    is_last = median_of(times_ns[last]) >= BEHIND_FACTOR * pace_ns(others)
    return np.flatnonzero(last) if is_last else none


def pace_ns(times_ns: Floats) -> float:
    """Return the iteration time of the slowest of these ranks, ns: [n], n > 0.

    A rank whose agent takes several iterations for one is no slower.
    """
    comparable = times_ns[times_ns < JUDGEMENT.same_unit_factor * median_of(times_ns)]
    return float(comparable.max())
