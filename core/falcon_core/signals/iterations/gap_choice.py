"""Choose the iteration where calls leave a choice: alike calls or cycles, of which any number may be one.

A longer gap that returns after n of them may be what an iteration computes once for n passes, or the pause that a job
makes after n iterations (a checkpoint, a logged loss). The calls are the same. What each error would cost decides:

- Long gaps that take much of the time are computation: the n are an iteration.
- An iteration of n that lasts SHORT_NS at most delays no report by much, should it be n iterations. So it is followed.
- Where it lasts longer, the single one is followed, and said to be uncertain.
- A pause that is rarer than any iteration's passes, and comes at long intervals, is none of an iteration.
- A cycle that is too fast for an iteration is none. The n are.

Where no gap is longer, one call is certain to be an iteration when so many have come that it would have been seen, and
so is a cycle of few calls that may be a layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from falcon_core.signals.calls.stream import Floats, Ints
from falcon_core.signals.iterations.gap_rhythm import (
    LONG_GAPS_TIME,
    LongerGap,
    are_long,
    calls_needed,
    cycles_needed,
    every_second,
    gap_period,
    longer_gap,
    phases,
    recurrence,
)
from falcon_core.stats.order import median_of, quantile_of

SHORT_NS = 2_000_000_000
_SHORT_OF_EQUAL_NS = 5_000_000_000  # the same where calls are all equal: they are no evidence for an iteration
MOST_PASSES = 64  # of an iteration: twice its micro-batches, each forward and backward
_RARE_NS = 10_000_000_000
_DISTINCT = 1.2  # ratio of gaps below which they may be the same
_MOST_LONGER = 16.0  # ratio to the usual time of a cycle: a longer one is a pause
_USUAL = 0.4  # quantile of the gaps
_HALVES = 2  # of a cycle, which may differ in a place where no gap is longest
_LONG_MICRO_BATCHES_TIME = 0.03  # as LONG_GAPS_TIME, for micro-batches: few make an iteration by themselves


class Choice(NamedTuple):
    """So many alike units are an iteration; ``certain`` unless a longer one is as likely."""

    units: int
    certain: bool


def of_equal_calls(gaps_ns: Ints, *, plausible: bool) -> Choice | None:
    """Choose among equal calls by the gaps between them, ns: [n]; None where there are too few to say.

    ``plausible``: each call could be an iteration.
    """
    lag, plain = recurrence(gaps_ns)
    if lag is None:
        return None
    found = longer_gap(gaps_ns)
    if found is not None and is_rare(found.lag, float(phases(gaps_ns, found.lag).sum())):
        found = None
    parts = 0 if found is None or lag % found.lag else lag // found.lag
    lag = _true_lag(gaps_ns, lag, found, parts)
    medians = phases(gaps_ns, lag)
    if lag > 1 and are_long(medians, LONG_GAPS_TIME):
        return Choice(lag, certain=parts != _HALVES)
    if plain is None:
        return None
    if found is not None:
        by_cost = _by_cost(found.lag, phases(gaps_ns, found.lag), plausible=plausible)
        return by_cost if found.sure or found.lag == lag else Choice(1, certain=False)
    if lag > 1 and (_longer(medians) > 1 or not plausible):
        return _by_cost(lag, medians, plausible=plausible)
    return Choice(1, certain=lag == 1 and len(gaps_ns) + 1 >= calls_needed(gaps_ns))


def _true_lag(gaps_ns: Ints, lag: int, found: LongerGap | None, parts: int) -> int:
    """Return the lag that gaps recur at, given the ``lag`` at which they recur best; 1 where only a rare pause does.

    ``parts``: how often the longer gap that was ``found`` comes within it; 0: not a whole number of times.
    """
    medians = phases(gaps_ns, lag)
    if lag > 1 and is_rare(lag, float(medians.sum())) and _longer(medians) == 1:
        return 1
    # Noise alone, or a stall, makes a multiple recur better.
    if found is not None and parts > _HALVES:
        return found.lag if found.sure else 1
    return lag


def of_micro_batches(gaps_ns: Ints, *, reduces: bool) -> Choice:
    """Choose among micro-batches of a pipeline's stage by the time from one to the next, ns: [n].

    ``reduces``: they sum up, as an iteration must.
    """
    lag = gap_period(gaps_ns, _LONG_MICRO_BATCHES_TIME)
    if lag is not None and lag > 1:
        return Choice(lag, certain=True)
    found = longer_gap(gaps_ns, MOST_PASSES)
    if found is not None:
        return Choice(found.lag if found.sure else 1, found.sure)
    return Choice(1, certain=reduces or len(gaps_ns) + 1 >= calls_needed(gaps_ns))


def of_cycles(gaps_ns: Ints, *, plausible: bool) -> Choice:
    """Choose among cycles of several calls by the time from one to the next, ns: [n].

    Calls that differ are evidence for an iteration by themselves. So several cycles are one iteration only where long
    gaps take much of the time, and yet are not so long as a pause.
    """
    # Looking for iterations that last longer would change nothing.
    longest = _most_cycles(gaps_ns) if plausible else MOST_PASSES
    found = (every_second(gaps_ns) if longest >= _HALVES else None) or longer_gap(gaps_ns, longest)
    if found is None or not found.from_first:
        return Choice(1, certain=True)
    medians = phases(gaps_ns, found.lag)
    if plausible and medians.sum() > SHORT_NS:
        return Choice(1, certain=True)
    computes = are_long(medians, LONG_GAPS_TIME) and medians.max() <= _MOST_LONGER * median_of(medians)
    sure = found.sure and (computes or not plausible)
    return Choice(found.lag if sure else 1, sure)


def layers_needed(gaps_ns: Ints) -> int:
    """Return the number of cycles after which they are known to be no layers, which end at a longer gap: [n], ns."""
    return cycles_needed(gaps_ns, _most_cycles(gaps_ns))


def _most_cycles(gaps_ns: Ints) -> int:
    """Return the number of cycles within SHORT_NS, MOST_PASSES at most: [n], ns."""
    # Of two kinds of gaps that come in turn, the short one is usual.
    usual_ns = quantile_of(np.sort(gaps_ns), _USUAL) if len(gaps_ns) else SHORT_NS
    return min(MOST_PASSES, int(SHORT_NS / max(1.0, usual_ns)))


def is_rare(count: int, cycle_ns: float) -> bool:
    """Check whether what comes once in ``count`` calls, each ``cycle_ns``, is no part of an iteration."""
    return count > MOST_PASSES and cycle_ns > _RARE_NS


def _by_cost(lag: int, medians_ns: Floats, *, plausible: bool) -> Choice:
    """Choose ``lag`` calls where that costs little, should it be wrong; ``medians_ns``: of the gaps, [lag]."""
    if plausible and (lag > MOST_PASSES or medians_ns.sum() > _SHORT_OF_EQUAL_NS):
        return Choice(1, certain=False)
    return Choice(lag, certain=True)


def _longer(medians_ns: Floats) -> int:
    """Count the gaps of a cycle, [lag], that stand out; 0 where all may be the same."""
    low, high = float(medians_ns.min()), float(medians_ns.max())
    return int(np.count_nonzero(medians_ns > (low * high) ** 0.5)) if high > _DISTINCT * low else 0
