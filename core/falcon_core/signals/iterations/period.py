"""Find the period of a stream of calls: how many make one iteration (FALCON §4.2 uses autocorrelation).

The period is the smallest lag at which *every* token recurs. Equality is exact over a run that reaches to the newest
call: a share of equal tokens, or a centred autocorrelation, is satisfied by a lag at which only the frequent tokens
recur (32 × (send, recv) + 1 all-reduce: 2 instead of 65). These rules decide what exact runs leave open:

- *Evidence.* A run must span three cycles, a number of calls, and a time. A cycle that is unlikely to be an iteration
  must show more of them: one that is faster than PLAUSIBLE_ITERATION_NS, or that has no collective that sums up, as
  gradients must be. It is rather a layer of an iteration whose rare calls have not been seen yet.
- *Micro-batches.* A cycle that both sends and receives, but no more often than the two passes of a micro-batch do in a
  pipeline's stage, is rather one of them, or one pass, until it has come more often than an iteration has passes.
- *Passes.* A run that comes right after calls of its kinds of which none sums up is rather the backward pass of an
  iteration whose forward pass those were. Until it is PASSES_FACTOR times as long, it must show as much.
- *Primitive cycles.* A multiple of a lag is not considered: two layers are no better an iteration than one.
- *Fragments.* If an earlier run of the same cycle, about as long as this one, was broken by other calls, this one will
  probably be broken too, and the true period is longer. Except where the other calls are few between plausible
  iterations: those are an evaluation, a logged loss or a checkpoint's barrier, and are extra. (Micro-batches that
  communicate, each long enough for an iteration, with one call of the optimizer after them, look the same. Their cycle
  is followed, and ``segmenter`` reports the calls of an iteration as undetermined. If gradients are summed up after at
  most MOST_MICRO_BATCHES of them, that call is a part of the iteration.)
- *Alike calls, alike cycles.* Equal tokens show nothing; the gaps between them may: several equal gradient buckets
  come in a burst after one long computation, and layers or passes of a micro-batch come before one longer gap. The same
  holds for cycles of several calls, and for micro-batches of a pipeline's last stage. ``gap_choice`` says which of them
  are an iteration, and where the shorter cycle is followed but not certain.
- *Between other calls.* Runs of equal calls of one length, each before the same other calls, are iterations and logged
  losses, or one iteration each: the latter where a run lasts so short that it delays nothing, or its gaps show layers.
- *Sizes that vary.* Where no run is long enough because of sizes that depend on the data, these are ignored
  (``variable_sizes``).
- *Other sizes.* A run that came at least twice before in other sizes, about as long, was broken each time: layers of an
  iteration whose sequences have another length than the last ones. It is a fragment, too.
- *Flipped tokens.* Where no exact run is long enough, single calls may differ from cycle to cycle (``inexact_period``).
"""

from __future__ import annotations

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import LOG_CALLS, Calls, Flags, Floats, Ints, Trait
from falcon_core.signals.iterations.gap_choice import (
    SHORT_NS,
    Choice,
    is_rare,
    layers_needed,
    of_cycles,
    of_equal_calls,
    of_micro_batches,
)
from falcon_core.signals.iterations.gap_rhythm import HALVES_RATIO, LONG_GAPS_TIME, are_long, longest_gap_phase
from falcon_core.signals.iterations.inexact_period import noisy_lag, repeats_from, usual_cycle
from falcon_core.signals.iterations.variable_sizes import LEAST_CYCLES, NEWEST, Varying, irregular, steady_kinds
from falcon_core.stats.order import are_among, median_of

PLAUSIBLE_ITERATION_NS = 20_000_000
REPETITIONS = 3
EVIDENCE_CALLS = 24
EVIDENCE_CALLS_ONE_TOKEN = 8
EVIDENCE_CALLS_IMPLAUSIBLE = 256
PASSES_FACTOR = 4  # twice what sharded parameters make of it: forward n all-gathers, backward 2n calls
PASS_TRANSFERS = 2  # of a micro-batch's pass, forward or backward: what a stage receives and what it sends
MOST_MICRO_BATCHES = 32  # more cycles than this between two extra calls are iterations
_MOST_EVIDENCE_CALLS = LOG_CALLS // 2  # no more can be asked of a cycle, however long
EVIDENCE_NS = 1_000_000_000
EVIDENCE_NS_IMPLAUSIBLE = 5_000_000_000
_NEWEST_CYCLES = 32  # whose calls show whether a cycle is plausible
_FRAGMENT_SHARE = 2 / 3  # of the newest run's length: an earlier one this long was broken "as late"
_EXTRA_SHARE = 0.1  # of the calls: more than this between two runs is not extra
_MOST_AT_ONCE = 16_384  # calls that are compared: larger results would be new memory each time
_MOST_CALLS_OF_LAYER = 16  # a transformer's block of 12 parameters, or 16, each summed up by itself
_NUMBER_BYTES = 16  # sums of a few numbers at most: a loss, or a gradient's norm
_LOOKS = 8  # at a cycle that may consist of shorter ones


class Period(msgspec.Struct, frozen=True):
    """The newest calls repeat with lag ``calls``, from index ``first`` of the searched stream on."""

    calls: int
    first: int
    by_gaps: bool = False  # one token only: the phase is in the gaps
    cycle: Ints | None = None  # the tokens that are usual from ``first`` on: [calls]; None where all cycles are alike
    varying: Varying | None = None  # the sizes that are ignored
    certain: bool = True  # False: a longer cycle is as likely, and this is followed since it delays nothing


def find_period(calls: Calls, *, noisy: bool = True) -> Period | None:
    """Find the period of the newest calls; None where nothing shows it. Without ``noisy``, of an exact run alone."""
    if len(calls) < EVIDENCE_CALLS_ONE_TOKEN:
        return None
    found = _exact(calls)
    return period_of_varying_sizes(calls) or _noisy(calls) if found is None and noisy else found


def period_of_varying_sizes(calls: Calls) -> Period | None:
    """Find the period of the newest calls without the sizes that depend on the data; None where sizes do not vary."""
    for newest in NEWEST:
        offset = max(0, len(calls) - newest)
        found = _of_varying_sizes(calls.cut(offset, len(calls)))
        if found is not None:
            return msgspec.structs.replace(found, first=offset + found.first)
        if offset == 0:
            break
    return None


def _of_varying_sizes(calls: Calls) -> Period | None:
    varying = irregular(calls)
    while varying is not None:
        found = _exact(varying.view(calls))
        if found is None or found.calls == 1 or len(calls) - found.first < LEAST_CYCLES * found.calls:
            return None  # too few; calls that neither sizes nor gaps tell apart show nothing
        # Some sizes only seemed to vary, for lack of the period. They are evidence again, and may show a longer one.
        steady = steady_kinds(varying, calls.cut(found.first, len(calls)), found.calls)
        if not steady:
            return msgspec.structs.replace(found, varying=varying)
        varying = varying.without(steady)
    return None


def _exact(calls: Calls) -> Period | None:
    """Find the period of an unbroken run that reaches to the newest call."""
    tokens = calls.tokens
    same = _newest_run(tokens, 1) + 1  # newest calls that are all the same: a lag within them proves nothing
    primitive: list[tuple[int, int]] = []  # lags that recur, but not for long enough, and their runs
    for lag in _candidates(tokens):
        if 1 < lag < same or _is_multiple(lag, primitive):
            continue
        run = _newest_run(tokens, lag)
        if run >= (REPETITIONS - 1) * lag:
            found = _of_run(calls, lag, run)
            if found is not None:
                return found
        if run >= lag:
            primitive.append((lag, run))
    return None


def _of_run(calls: Calls, lag: int, run: int) -> Period | None:
    """Find the period of the newest ``run`` calls, which recur at ``lag``; None where they are no evidence."""
    count = len(calls)
    first = count - run - lag
    if lag == 1:
        found = _one_token(calls, first)
        return found if found is None or found.calls > 1 else _between_extras(calls, first, found)
    newest = calls.cut(first, count)
    is_evident = _is_evident(newest, lag, calls.cut(0, first))
    # The usual case, before any costly look: too few calls for a cycle of this length, or for several of them.
    if not is_evident and (len(newest) < EVIDENCE_CALLS or newest.starts_ns[-1] - newest.starts_ns[0] < EVIDENCE_NS):
        return None
    if _is_fragment(calls, lag, run) or _came_in_other_sizes(calls, lag, run):
        return None
    choice = _among_cycles(calls, lag, first)
    if choice.units > 1 and _is_evident(newest, lag * choice.units):
        return _by_gaps(calls, lag * choice.units, first, choice.certain)
    if not is_evident:
        return None
    certain = choice.certain and choice.units == 1 and not _may_be_a_layer(calls, lag, first)
    return _iterations_and_extras(calls, lag, first) or Period(lag, first, certain=certain)


def _among_cycles(calls: Calls, lag: int, first: int) -> Choice:
    """Choose how many cycles of ``lag`` calls, which recur from ``first`` on, are an iteration: by their times."""
    run = calls.cut(first, len(calls))
    gaps = _gaps_of(run, lag)
    if _like_a_micro_batch(run, lag):
        return of_micro_batches(gaps, reduces=bool(run.cut(len(run) - lag, len(run)).has(Trait.REDUCING).any()))
    return of_cycles(gaps, plausible=_plausible(run, lag))


def _may_be_a_layer(calls: Calls, lag: int, first: int) -> bool:
    """Check whether cycles of ``lag`` calls, from ``first`` on, are like layers, and too few to show a longer gap."""
    run = calls.cut(first, len(calls))
    if lag > _MOST_CALLS_OF_LAYER or _sums_a_number(run.cut(len(run) - lag, len(run))):
        return False
    needed = layers_needed(_gaps_of(run, lag))
    cycles = len(run) // lag
    if cycles < needed:  # those before extra calls count as well
        cycles += sum(
            (end - begin) // lag + 1 for begin, end in _runs_of(np.sort(run.tokens[-lag:]), calls.tokens[:first], lag)
        )
    return cycles < needed


def _sums_a_number(cycle: Calls) -> bool:
    """Check whether single values are summed up in a cycle, such as a loss: no layer does that."""
    return bool((cycle.has(Trait.REDUCING) & (cycle.sizes <= _NUMBER_BYTES)).any())


def _gaps_of(run: Calls, lag: int) -> Ints:
    """Return the times from each whole cycle of a run to the next, ns: [n]."""
    starts = run.starts_ns[: (len(run) - 1) // lag * lag + 1 : lag]
    gaps: Ints = np.maximum(starts[1:] - starts[:-1], 1)
    return gaps


def _by_gaps(calls: Calls, lag: int, first: int, certain: bool) -> Period:
    """Return the period of ``lag`` calls, alike from ``first`` on: it begins after the longest gap."""
    starts = calls.starts_ns[first:]
    gaps = np.maximum(starts[1:] - starts[:-1], 1)
    return Period(lag, first + 1 + longest_gap_phase(gaps, lag), by_gaps=True, certain=certain)


def _noisy(calls: Calls) -> Period | None:
    """Find the period of calls of which single ones differ from cycle to cycle."""
    # Gradients between micro-batches would pass for differing calls.
    lag = noisy_lag(calls.tokens, lambda lag: _plausible(calls, lag) and not _like_a_micro_batch(calls, lag))
    if lag is None:
        return None
    first = repeats_from(calls.tokens, lag)
    run = calls.cut(first, len(calls))
    if len(run) < REPETITIONS * lag or not _is_evident(run, lag):
        return None
    cycle = usual_cycle(run.tokens, lag)
    if any(lag % part == 0 and np.array_equal(cycle, np.resize(cycle[:part], lag)) for part in range(1, lag)):
        return None  # several of the true cycle
    return Period(lag, first, cycle=cycle)


def _candidates(tokens: Ints) -> list[int]:
    """Find the lags at which the newest token occurred, ascending, up to what REPETITIONS allow."""
    newest = tokens.shape[0] - 1
    earliest = newest - tokens.shape[0] // REPETITIONS
    # Only a lag at which the newest call itself recurs can be the period: that leaves few lags to try.
    places = (tokens[earliest:newest] == tokens[newest]).nonzero()[0] + earliest
    lags: list[int] = (newest - places[::-1]).tolist()
    return lags


def _newest_run(tokens: Ints, lag: int) -> int:
    """Count the newest calls in a row that equal the call ``lag`` before."""
    end = tokens.shape[0]
    run, chunk = 0, 64
    while end > lag:
        # In growing chunks from the newest end: most lags are refused by the first chunk.
        start = max(lag, end - chunk)
        differs = (tokens[start:end] != tokens[start - lag : end - lag]).nonzero()[0]
        if differs.size:
            return int(run + (end - start - 1 - int(differs[-1])))
        run += end - start
        end, chunk = start, min(4 * chunk, _MOST_AT_ONCE)
    return run


def _plausible(run: Calls, lag: int) -> bool:
    """Check whether the cycle that this run repeats could be a training iteration, or a micro-batch that sums up."""
    if not run.cut(len(run) - lag, len(run)).has(Trait.REDUCING).any():
        return False
    # The newest cycles: the first ones of a job may hold warm-up and compilation.
    newest = run.starts_ns[-_NEWEST_CYCLES * lag :]
    return median_of(newest[lag:] - newest[:-lag]) >= PLAUSIBLE_ITERATION_NS


def _is_evident(run: Calls, lag: int, before: Calls | None = None, *, least_calls: int = EVIDENCE_CALLS) -> bool:
    """Check whether this run is long enough, in calls and in time; ``before``: the calls that led up to it."""
    span_ns = int(run.starts_ns[-1] - run.starts_ns[0])
    if len(run) < least_calls or span_ns < EVIDENCE_NS or _may_be_a_micro_batch(run, lag):
        return False
    if len(run) >= EVIDENCE_CALLS_IMPLAUSIBLE and span_ns >= EVIDENCE_NS_IMPLAUSIBLE:
        return True
    return _plausible(run, lag) and not (before is not None and _may_be_a_pass(run.tokens, lag, before))


def _may_be_a_micro_batch(run: Calls, lag: int) -> bool:
    """Check whether a cycle is like a micro-batch, and came no more often than their forward and backward passes."""
    return _like_a_micro_batch(run, lag) and len(run) <= min(2 * MOST_MICRO_BATCHES * lag, _MOST_EVIDENCE_CALLS)


def _like_a_micro_batch(run: Calls, lag: int) -> bool:
    """Check whether a cycle both sends and receives, but no more often than a micro-batch."""
    cycle = run.cut(len(run) - lag, len(run))
    sends, receives = (np.count_nonzero(cycle.has(trait)) for trait in (Trait.SENDS, Trait.RECEIVES))
    return bool(sends and receives and sends + receives <= 2 * PASS_TRANSFERS)


def _may_be_a_pass(run: Ints, lag: int, before: Calls) -> bool:
    """Check whether a run is short against calls of its kinds that led up to it without a sum among them."""
    lead = before.cut(max(0, len(before) - run.shape[0] // PASSES_FACTOR - 1), len(before))
    enough = len(lead) * PASSES_FACTOR > run.shape[0]
    return enough and not lead.has(Trait.REDUCING).any() and bool(are_among(lead.tokens, run[-lag:]).all())


def _is_fragment(calls: Calls, lag: int, run: int) -> bool:
    """Check whether an earlier run of this cycle broke off at about the present length, not for mere extra calls."""
    tokens = calls.tokens
    first = tokens.shape[0] - run - lag
    earlier = _runs_of(np.sort(tokens[-lag:]), tokens[:first], least=max(1, _FRAGMENT_SHARE * run))
    if not earlier:
        return False
    # Runs of one length, each ended by a sum of gradients, are the micro-batches of iterations.
    most = max(end - begin + lag for begin, end in earlier)
    if most <= MOST_MICRO_BATCHES * lag and _sums_gradients(calls.cut(earlier[0][1], first), tokens[-lag:]):
        return True
    within = sum(end - begin + lag for begin, end in earlier) + run + lag
    extra = tokens.shape[0] - (earlier[0][0] - lag) - within
    return not (_plausible(calls.cut(first, len(calls)), lag) and extra <= _EXTRA_SHARE * within)


def _came_in_other_sizes(calls: Calls, lag: int, run: int) -> bool:
    """Check whether the newest run came more than once before, about as long, but for its sizes."""
    kinds, tokens = calls.kinds[: len(calls) - run - lag], calls.tokens
    newest = np.sort(tokens[-lag:])
    earlier = _runs_of(np.sort(calls.kinds[-lag:]), kinds, least=max(1, _FRAGMENT_SHARE * run))
    others = [
        end
        for begin, end in earlier
        if _FRAGMENT_SHARE * (end - begin) <= run and not np.array_equal(np.sort(tokens[end - lag : end]), newest)
    ]
    return len(others) > 1


def _iterations_and_extras(calls: Calls, lag: int, first: int) -> Period | None:
    """Find the shorter cycle that a cycle of ``lag`` calls, which recurs from ``first`` on, mostly consists of."""
    run = calls.cut(first, len(calls))
    cycle_ns = median_of(run.starts_ns[lag:] - run.starts_ns[:-lag])
    for part in sorted(_parts(run.tokens, lag)):
        if part == 1 and (cycle_ns <= SHORT_NS or _are_layers(run, lag)):
            continue
        begin = _iterations_begin(run, lag, part)
        if begin is not None:
            return Period(part, first + begin, certain=part > 1 or is_rare(lag, cycle_ns))
    return None


def _are_layers(run: Calls, lag: int) -> bool:
    """Check whether the equal calls of a cycle are parts of an iteration: their gaps depend on the place in the cycle.

    Were each of them an iteration, only noise would tell the gaps apart, or a stall that takes little of the time.
    """
    count = min((len(run) - 1) // lag, _NEWEST_CYCLES)
    first = len(run) - 1 - count * lag
    tokens = run.tokens[first : first + lag]
    # A call next to an extra one may come early or late for that reason.
    kinds, counts = np.unique(tokens, return_counts=True)
    equal = tokens == kinds[counts.argmax()]
    equal &= np.roll(equal, 1) & np.roll(equal, -1)
    if count < REPETITIONS or np.count_nonzero(equal) < EVIDENCE_CALLS_ONE_TOKEN:
        return False
    gaps = np.maximum(np.diff(run.starts_ns[first:]), 1).reshape(count, lag)[:, equal]
    logs = np.log(gaps)
    between, within = count * float(logs.mean(axis=0).var()), float(logs.var(axis=0, ddof=1).mean())
    medians: Floats = np.median(gaps, axis=0)
    return between > HALVES_RATIO * within and are_long(medians, LONG_GAPS_TIME)


def _between_extras(calls: Calls, first: int, found: Period) -> Period | None:
    """Return what equal calls from ``first`` on are, if they came before in runs of one length, between other calls.

    None where they are layers, or where the runs are so short that they may as well be one iteration each.
    """
    begins, ends = _runs(calls.tokens[: first + 1], 1)
    if not len(ends):
        return found
    ends = ends[ends - begins >= _FRAGMENT_SHARE * (ends - begins).max()][-REPETITIONS - 1 :]
    apart = np.diff(ends)
    if len(apart) < REPETITIONS or (apart != apart[0]).any():
        return found
    lag, cycle_ns = int(apart[0]), median_of(np.diff(calls.starts_ns[ends - 1]))
    if cycle_ns <= SHORT_NS or _are_layers(calls.cut(0, int(ends[-1])), lag):
        return None
    return msgspec.structs.replace(found, certain=is_rare(lag, cycle_ns))


def _parts(tokens: Ints, lag: int) -> set[int]:
    """Find shorter lags that recur within a cycle, seen from some of its calls: the newest may be an extra call."""
    newest = tokens.shape[0]
    parts: set[int] = set()
    for end in range(newest, newest - lag, -max(1, lag // _LOOKS)):
        # Start from several calls of the cycle: an extra call at its end would hide every shorter lag.
        seen = tokens[end - lag : end]
        primitive: list[tuple[int, int]] = []
        for part in _candidates(seen):
            run = _newest_run(seen, part)
            if run >= (REPETITIONS - 1) * part and not _is_multiple(part, primitive):
                primitive.append((part, run))
        parts.update(part for part, _ in primitive)
    return parts


def _is_multiple(lag: int, primitive: list[tuple[int, int]]) -> bool:
    """Check whether a lag repeats a shorter one, within the run that has it."""
    return any(lag % shorter == 0 and lag <= run for shorter, run in primitive)


def _iterations_begin(run: Calls, lag: int, shorter: int) -> int | None:
    """Find where a cycle's iterations begin, if it is mostly ones of ``shorter`` calls, and a few extra calls."""
    # The newest repetitions: an iteration of extra calls (a checkpoint) may be among them.
    calls = run.cut(len(run) - REPETITIONS * lag, len(run))
    begins, ends = _runs(calls.tokens, shorter)
    longest = int((ends - begins).argmax())
    cycle = np.sort(calls.tokens[ends[longest] - shorter : ends[longest]])
    alike = _runs_of(cycle, calls.tokens, least=shorter)
    if sum(end - begin + shorter for begin, end in alike) < (1 - _EXTRA_SHARE) * len(calls):
        return None
    most = int((ends - begins).max()) + shorter
    # These are micro-batches of one iteration, whose gradients are summed at its end.
    if most <= MOST_MICRO_BATCHES * shorter and _sums_gradients(calls, cycle):
        return None
    if not _is_evident(calls.cut(int(begins[longest]) - shorter, int(ends[longest])), shorter):
        return None
    return _runs_of(cycle, run.tokens, least=shorter)[0][0] - shorter


def _runs_of(cycle: Ints, tokens: Ints, least: float) -> list[tuple[int, int]]:
    """Find runs of at least so many calls that repeat a cycle of these tokens (sorted), from any of its places on."""
    lag = cycle.shape[0]
    return [
        (begin, end)
        for begin, end in zip(*(edges.tolist() for edges in _runs(tokens, lag)), strict=True)
        if end - begin >= least and np.array_equal(np.sort(tokens[end - lag : end]), cycle)
    ]


def _sums_gradients(calls: Calls, cycle: Ints) -> bool:
    """Check whether a call outside the cycle sums gradients up: then the cycle is only a part of an iteration."""
    return bool((calls.has(Trait.GRADIENTS) & ~are_among(calls.tokens, cycle)).any())


def _runs(tokens: Ints, lag: int) -> tuple[Ints, Ints]:
    """Find maximal runs of calls that equal the call ``lag`` before: first and one-past-last indices."""
    equal: Flags = np.zeros(max(0, tokens.shape[0] - lag) + 2, dtype=np.bool_)
    equal[1:-1] = tokens[lag:] == tokens[: tokens.shape[0] - lag] if tokens.shape[0] > lag else []
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    return edges[0::2] + lag, edges[1::2] + lag


def _one_token(calls: Calls, first: int) -> Period | None:
    """Find the period within the newest run, of one token alone, from its gaps."""
    run = calls.cut(first, len(calls))
    gaps = np.maximum(run.starts_ns[1:] - run.starts_ns[:-1], 1)
    choice = of_equal_calls(gaps, plausible=_plausible(run, 1))
    if choice is None:
        return None
    lag, certain = choice
    least = EVIDENCE_CALLS_ONE_TOKEN if lag == 1 else EVIDENCE_CALLS
    if not _is_evident(run, lag, least_calls=least) or _is_fragment(calls, 1, len(run) - 1):
        return None
    return Period(1, first, certain=certain) if lag == 1 else _by_gaps(calls, lag, first, certain)
