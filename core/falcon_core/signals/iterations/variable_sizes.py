"""Find what recurs in a stream of calls when their sizes vary.

Tables that are split over the ranks, experts that take as many tokens as are sent to them, packed or padded sequences
and pipelines of them make calls whose bytes depend on the data, so that no iteration equals another. Such calls become
a *wildcard*: one token for their operation, communicator and data type, whatever the size. It loses what fixed sizes
tell apart (of a hundred gradient buckets each has its own), so that it is the last resort, and is believed of a kind of
calls only where all of this holds:

- Neither all sizes recur in their order, nor do they with single calls that differ (``period`` searches for both
  first).
- The calls of the kind do not repeat their own order over half of the calls seen.
- With the wildcard the stream has a period, over LEAST_CYCLES cycles: a job of fixed sizes has shown its own by then.
- At its places in that cycle the sizes really vary: less than _LEAST_SAME of them are the usual size of their place.

Sizes that stand out within a kind, by how often or how regularly they come, are kept apart where they recur in a fixed
order between the others: sparse gradients may be summed up by the same operation as a few dense buckets.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import Calls, Flags, Ints
from falcon_core.stats.order import are_among, counts_of

LEAST_CYCLES = 8
NEWEST = (4_096, 16_384)  # calls that are looked at; of more only where these show nothing
_LEAST_CALLS = 16  # of a kind whose sizes are judged
_MOST_KINDS = 64  # judged, those with the most calls
_LEAST_SAME = 0.8
_REPETITIONS = 3
_FIRST_COMPARED = 32
_LEAST_REGULAR = 0.9
_COMMON = 8  # times that a size has come at least, if it is to be kept apart


class Varying(msgspec.Struct, frozen=True, dict=True):
    """The kinds of calls whose sizes are ignored, and the tokens among them that are kept apart nevertheless."""

    kinds: frozenset[int]
    kept: frozenset[int] = frozenset()

    def tokens(self, calls: Calls) -> Ints:
        """Return the calls' tokens with wildcards in place of sizes that vary: [n]. A wildcard is −1 − kind."""
        ignored = _are_among(calls.kinds, self._kind_table)
        if self.kept:
            ignored &= ~_are_among(calls.tokens, self._kept_table)
        tokens: Ints = np.where(ignored, -1 - calls.kinds, calls.tokens)
        return tokens

    @cached_property
    def _kind_table(self) -> Flags:
        return _table(self.kinds)

    @cached_property
    def _kept_table(self) -> Flags:
        return _table(self.kept)

    def view(self, calls: Calls) -> Calls:
        """Return the calls with these tokens."""
        return msgspec.structs.replace(calls, tokens=self.tokens(calls))

    def without(self, kinds: frozenset[int]) -> Varying | None:
        """Return the same for fewer kinds; None where none is left."""
        left = self.kinds - kinds
        return Varying(left, self.kept) if left else None


def _table(numbers: frozenset[int]) -> Flags:
    """Return whether each number from 0 on is among these; the last two say so of greater ones and of negative ones."""
    table: Flags = np.zeros(max(numbers, default=0) + 3, dtype=np.bool_)
    table[list(numbers)] = True
    return table


def _are_among(numbers: Ints, table: Flags) -> Flags:
    """Look numbers up: [n], a table → [n]. Much faster than ``np.isin`` for few numbers."""
    found: Flags = table[np.clip(numbers, -1, table.shape[0] - 2)]
    return found


def irregular(calls: Calls) -> Varying | None:
    """Find the kinds of calls whose sizes do not recur in a fixed order; None where there is none."""
    numbers, counts = counts_of(calls.kinds)
    # The kinds with the most calls decide whether a period is found; rare ones are not worth their cost.
    often = numbers[np.argsort(-counts, kind="stable")][:_MOST_KINDS]
    kinds: set[int] = set()
    kept: set[int] = set()
    for kind in often.tolist():
        tokens = calls.tokens[calls.kinds == kind]
        if tokens.shape[0] < _LEAST_CALLS or _recurs(tokens):
            continue
        kinds.add(kind)
        kept.update(_kept(tokens).tolist())
    return Varying(frozenset(kinds), frozenset(kept)) if kinds else None


def steady_kinds(varying: Varying, calls: Calls, lag: int) -> frozenset[int]:
    """Find the kinds whose sizes do not really vary in a cycle of ``lag`` calls: single calls differ, or nothing does.

    Where the newest cycles are whole, the sizes are held against the usual size of their place, otherwise (other calls
    come in between) against the size a cycle before.
    """
    tokens, wild = calls.tokens, varying.tokens(calls)
    # Sizes that vary are masked in ``wild``, so a break is another call at that place, not another size.
    breaks = np.flatnonzero(wild[lag:] != wild[:-lag])
    run = wild.shape[0] - lag - (int(breaks[-1]) + 1 if breaks.shape[0] else 0)
    whole = run // lag + 1
    if whole >= LEAST_CYCLES:
        cycles = tokens[-whole * lag :].reshape(whole, lag)
        same = np.array([np.unique(place, return_counts=True)[1].max() / whole for place in cycles.T])
        kinds, ignored = calls.kinds[-lag:], wild[-lag:] < 0
    else:
        fits = np.flatnonzero(wild[lag:] == wild[:-lag]) + lag
        same = (tokens[fits] == tokens[fits - lag]).astype(np.float64)
        kinds, ignored = calls.kinds[fits], wild[fits] < 0
    steady = set()
    for kind in varying.kinds:
        mine = (kinds == kind) & ignored
        if not mine.any() or same[mine].mean() >= _LEAST_SAME:
            steady.add(kind)
    return frozenset(steady)


def _kept(tokens: Ints) -> Ints:
    """Find the tokens of a kind that recur in a fixed order between the others; none where there is no such order."""
    for some in (_common(tokens), _regular(tokens)):
        if some.shape[0] and _recurs(np.where(are_among(tokens, some), tokens, -1)):
            return some
    return tokens[:0]


def _regular(tokens: Ints) -> Ints:
    """Find the tokens that nearly always come after the same number of others."""
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    same = ordered[1:] == ordered[:-1]
    of, intervals = ordered[1:][same], (order[1:] - order[:-1])[same]
    # A pair as a single number: rows are sorted at many times the cost.
    pairs, counts = np.unique(of * tokens.shape[0] + intervals, return_counts=True)
    of_pair, interval = np.divmod(pairs, tokens.shape[0])
    values, all_intervals = np.unique(of, return_counts=True)
    usual = counts >= np.maximum(_COMMON, _LEAST_REGULAR * all_intervals[np.searchsorted(values, of_pair)])
    regular: Ints = of_pair[usual & (interval > 1)]
    return regular


def _common(tokens: Ints) -> Ints:
    """Find the tokens that come much more often than the others: those above the widest step of the counts."""
    values, counts = counts_of(tokens)
    order = np.argsort(-counts, kind="stable")
    ordered = counts[order]
    steps = ordered[:-1] / ordered[1:]
    steps[ordered[:-1] < _COMMON] = 0.0
    if not steps.shape[0] or steps.max() < 2.0:
        return values[:0]
    return values[order[: int(steps.argmax()) + 1]]


def _recurs(tokens: Ints) -> bool:
    """Check whether these tokens repeat, up to the newest, over half of them and _REPETITIONS cycles."""
    count = tokens.shape[0]
    newest = tokens[count - count // 2 :]
    # Comparing whole halves for each lag would be quadratic: a few calls leave hardly any lag.
    lags = count - 1 - (tokens[:-1] == tokens[-1]).nonzero()[0][::-1]
    lags = lags[lags <= count // _REPETITIONS]
    for back in range(2, min(_FIRST_COMPARED, count // 2)):  # few lags are left by these
        if not lags.shape[0]:
            return False
        lags = lags[tokens[count - back - lags] == tokens[-back]]
    return any(np.array_equal(tokens[count - count // 2 - lag : count - lag], newest) for lag in lags.tolist())
