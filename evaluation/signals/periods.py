"""The Period table: exact, undetermined or wrong, and the calls needed; beside the published autocorrelation."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import NamedTuple

import numpy as np

from evaluation.signals.calls import JOBS, Job, stream
from evaluation.signals.changes import rng_of
from evaluation.signals.markdown import table
from falcon_core.signals.calls.stream import Calls
from falcon_core.signals.iterations.segmenter import IterationTracker

_ACF_SHARE = 0.95  # FALCON §4.2
_BATCHES = 49  # calls a poll
_CYCLES = 12
_CYCLES_FLIPPED = 40
_LEAST = 1_200  # calls of a stream


class Outcome(NamedTuple):
    final: str  # exact, undetermined or wrong, at the end
    needed: int | None  # calls until it was exact to the end
    wrong: int  # calls during which another period was shown, before the end


def followed(calls: Calls, true: int) -> Outcome:
    """Return what the shipped tracker says after each batch of calls."""
    tracker = IterationTracker()
    needed, wrong = None, 0
    for at in range(0, len(calls), _BATCHES):
        batch = calls.cut(at, at + _BATCHES)
        tracker.feed(batch)
        shown = tracker.period_calls
        if shown == true:
            needed = needed or at + len(batch)
        else:
            needed = None
            wrong += len(batch) if shown is not None else 0
    shown = tracker.period_calls
    return Outcome("exact" if shown == true else "undetermined" if shown is None else "wrong", needed, wrong)


def autocorrelation(calls: Calls, true: int) -> Outcome:
    """Find the first lag whose centred autocorrelation of the tokens reaches 0.95 over the stream (FALCON §4.2)."""
    values = calls.tokens - calls.tokens.mean()
    size = 1 << (2 * len(calls) - 1).bit_length()
    spectrum = np.fft.rfft(values, size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), size)[: len(calls) // 3]
    # each lag has fewer terms than lag 0: without the correction long periods never reach the threshold
    shares = covariance * len(calls) / ((len(calls) - np.arange(covariance.shape[0])) * max(float(covariance[0]), 1e-9))
    reached = np.flatnonzero(shares[1:] >= _ACF_SHARE)
    if not reached.size:
        return Outcome("undetermined", None, 0)
    return Outcome("exact" if int(reached[0]) + 1 == true else "wrong", None, 0)


def _length(job: Job) -> int:
    cycles = max(_CYCLES_FLIPPED if job.flipped else _CYCLES, 4 * job.evaluate_every)
    return job.start + max(_LEAST, cycles * len(job.cycle))


def period_table(seeds: int) -> str:
    rows = []
    for name, job in JOBS.items():
        true = len(job.cycle)
        streams = [stream(job, rng_of(name, seed), _length(job)) for seed in range(seeds)]
        ours = [followed(calls, true) for calls in streams]
        theirs = [autocorrelation(calls, true) for calls in streams]
        needed = [outcome.needed for outcome in ours if outcome.needed is not None]
        shown = f"{statistics.median(needed):.0f}, {max(needed)}" if needed else "–"
        rows.append([name, true, _counts(ours), shown, sum(outcome.wrong > 0 for outcome in ours), _counts(theirs)])
    return table(
        [
            f"Period, {seeds} seeds",
            "true",
            "shipped: exact / undetermined / wrong at the end",
            "calls until exact (median, most)",
            "streams with another period on the way",
            "autocorrelation ≥ 0.95",
        ],
        rows,
    )


def _counts(outcomes: list[Outcome]) -> str:
    counts = Counter(outcome.final for outcome in outcomes)
    return f"{counts['exact']} / {counts['undetermined']} / {counts['wrong']}"
