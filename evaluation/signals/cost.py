"""What the signals cost: time a sample by length of the history, a poll of eight ranks, memory of a rank."""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from evaluation.signals.changes import rng_of
from evaluation.signals.markdown import table
from evaluation.signals.series import noise
from falcon_core.signals.calls.stream import Floats
from falcon_core.signals.changepoint.bocd import RunLengthPosterior
from falcon_core.signals.changepoint.detector import HAZARD, PRIOR, ChangeDetector
from falcon_core.signals.rank.chain import RankChain
from falcon_core.signals.rank.warm_up import warm_up
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray

LENGTHS = (50, 500, 5_000, 50_000)
QUICK_LENGTHS = (50, 500, 5_000)
_TAIL = 50  # samples timed at the end of each history
_BLOCKS = 15
_MS = 1_000_000
_ITERATION_NS = 250 * _MS
_CALLS = 40
_POLL_NS = 100 * _MS
_RANKS = 8


def _detector() -> ChangeDetector:
    defaults = Detection()
    return ChangeDetector(verify_percent=defaults.verify_percent, consecutive=defaults.consecutive_iterations)


def _after(count: int, share: float) -> tuple[ChangeDetector, list[int]]:
    """Return a detector that has taken about ``count`` samples, and the samples that come next."""
    times = (noise(rng_of("cost", 0), count + _TAIL * _BLOCKS, share) * 1e9).astype(np.int64).tolist()
    detector = _detector()
    for at in range(count - _TAIL):
        detector.feed(at, at, times[at])
    return detector, times[count - _TAIL :]


def _microseconds(run: Callable[[list[int]], None], samples: list[int]) -> float:
    """Return the CPU time of one sample [µs], the median over blocks of samples."""
    blocks = []
    for at in range(0, len(samples), _TAIL):
        block = samples[at : at + _TAIL]
        begin = time.process_time_ns()
        run(block)
        blocks.append((time.process_time_ns() - begin) / 1000 / len(block))
    return statistics.median(blocks)


def change_point_table(lengths: tuple[int, ...]) -> str:
    """Measure the posterior bounded and unbounded, and the whole detector at two noises."""
    rows = []
    for length in lengths:
        row: list[object] = [length]
        for share in (0.02, 0.10):
            detector, rest = _after(length, share)
            row.append(f"{_microseconds(lambda block, fed=detector: _feed(fed, block), rest):.1f}")  # type: ignore[misc]
        bounded = RunLengthPosterior(PRIOR, hazard=HAZARD)
        exact = RunLengthPosterior(PRIOR, hazard=HAZARD, most=0)
        samples = rng_of("cost", 1).standard_normal(length).tolist()
        for posterior, most in ((bounded, 50_000), (exact, 5_000)):
            if length > most:
                row.append("–")
                continue
            for sample in samples:
                posterior.update(sample)
            rest = [0] * (_TAIL * _BLOCKS)
            row.append(f"{_microseconds(lambda block, fed=posterior: _update(fed, block), rest):.1f}")  # type: ignore[misc]
        rows.append(row)
    head = [
        "µs of CPU a sample after n samples",
        "detector, noise 2 %",
        "detector, noise 10 %",
        "posterior",
        "exact O(n)",
    ]
    return table(head, rows)


class _Together:
    """The posterior of several ranks in one array, [4, ranks, run lengths], to see what that would save.

    It drops the oldest run lengths, of all ranks alike, which is cheaper than to choose the least probable of each: a
    lower bound of the cost, not a detector.
    """

    _MOST = 64

    def __init__(self, ranks: int) -> None:
        prior = PRIOR
        lengths = np.arange(self._MOST + 1)
        weights = prior.weight + lengths
        shapes = prior.shape + 0.5 * lengths
        norms = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in shapes.tolist()])
        self._table = np.stack(
            (
                norms + 0.5 * np.log(weights / (weights + 1)),
                shapes + 0.5,
                1 / (weights + 1),
                weights / (2 * weights + 2),
            )
        )
        self._state = np.zeros((4, ranks, self._MOST + 1))
        self._fresh = np.array((HAZARD, prior.mean, prior.rate, prior.shape * math.log(prior.rate)))[:, None]
        self._state[:, :, 0] = self._fresh
        self._lengths = np.zeros(self._MOST + 1, dtype=np.int64)
        self._count = 1

    def update(self, samples: Floats) -> None:
        """Take one sample of each rank, [ranks]."""
        count = self._count
        lengths = self._lengths[:count]
        norm, exponent, gain, growth = self._table.take(lengths, axis=1)
        masses, means, rates, powers = self._state[:, :, :count]
        density = powers + norm
        deviations = samples[:, None] - means
        means += gain * deviations
        deviations *= deviations
        deviations *= growth
        rates += deviations
        np.log(rates, out=powers)
        powers *= exponent
        density -= powers
        density -= density.max(axis=1, keepdims=True)
        likelihood = np.exp(density)
        likelihood *= masses
        np.multiply(likelihood, (1 - HAZARD) / likelihood.sum(axis=1, keepdims=True), out=masses)
        lengths += 1
        self._state[:, :, count] = self._fresh
        self._lengths[count] = 0
        self._count = count + 1
        if self._count > self._MOST:
            kept = 3 * self._MOST // 4
            self._state[:, :, :kept] = self._state[:, :, self._count - kept : self._count]
            self._lengths[:kept] = self._lengths[self._count - kept : self._count]
            self._count = kept


def together_table(length: int) -> str:
    """Measure whether it would pay to update all ranks' posteriors in one array."""
    rows = []
    for ranks in (1, _RANKS, 64):
        samples = rng_of("together", ranks).standard_normal((length + _TAIL * _BLOCKS, ranks))
        alone = [RunLengthPosterior(PRIOR, hazard=HAZARD) for _ in range(ranks)]
        together = _Together(ranks)

        def one_by_one(block: list[int], samples: Floats = samples, alone: list[RunLengthPosterior] = alone) -> None:
            for at in block:
                for posterior, sample in zip(alone, samples[at].tolist(), strict=True):
                    posterior.update(sample)

        def at_once(block: list[int], samples: Floats = samples, together: _Together = together) -> None:
            for at in block:
                together.update(samples[at])

        row: list[object] = [ranks]
        for run in (one_by_one, at_once):
            run(list(range(length)))
            row.append(f"{_microseconds(run, list(range(length, len(samples)))) / ranks:.1f}")
        rows.append(row)
    return table(["µs of CPU a sample and rank: posteriors of n ranks", "one by one", "in one array, at least"], rows)


def _feed(detector: ChangeDetector, block: list[int]) -> None:
    for at, nanoseconds in enumerate(block):
        detector.feed(100_000 + at, at, nanoseconds)


def _update(posterior: RunLengthPosterior, block: list[int]) -> None:
    for sample in block:
        posterior.update(sample)


def records(iterations: int, seed: int) -> RecordArray:
    """Make what a rank writes: 40 calls in 250 ms, of seven sizes and one of its own."""
    rng = rng_of("records", seed)
    count = iterations * _CALLS
    out: RecordArray = np.zeros(count, dtype=RECORD_DTYPE)
    numbers = np.arange(count)
    gaps = _ITERATION_NS / _CALLS * np.exp(0.05 * rng.standard_normal(count))
    out["seq"] = numbers + 1
    out["t_start_ns"] = np.cumsum(gaps).astype(np.uint64) + 1_000 * _MS
    out["duration_ns"] = _MS
    out["comm"] = 7
    out["comm_seq"] = numbers
    out["op"] = Op.ALL_REDUCE
    out["dtype"] = DType.FLOAT32
    out["kind"] = Kind.BLOCKING
    out["bytes"] = np.where(numbers % _CALLS == 0, 4, 1024 * (1 + numbers % _CALLS % 7))
    return out


def poll_table(iterations: int) -> str:
    """Feed eight ranks' records of 100 ms at a time through the whole chain, from the first call on."""
    streams = [records(iterations, rank) for rank in range(_RANKS)]
    warm_up()  # as an agent does
    chains = [RankChain(Detection(), place=rank) for rank in range(_RANKS)]
    starts = [stream["t_start_ns"].astype(np.int64) for stream in streams]
    last = min(int(times[-1]) for times in starts)
    polls = []
    for until in range(1_000 * _MS, last, _POLL_NS):
        spans = [np.searchsorted(times, (until - _POLL_NS, until)).tolist() for times in starts]
        begin = time.process_time_ns()
        for chain, stream, (first, end) in zip(chains, streams, spans, strict=True):
            if end > first:
                chain.feed(stream[first:end])
        polls.append((time.process_time_ns() - begin) / 1e6)
    found = sum(chain.signals(0, 0).period_calls == _CALLS for chain in chains)
    rows = [
        ["median", f"{statistics.median(polls):.2f}"],
        ["99th percentile", f"{float(np.quantile(polls, 0.99)):.2f}"],
        ["longest", f"{max(polls):.2f}"],
        ["an iteration of a rank, mean", f"{sum(polls) / sum(chain.signals(0, 0).iterations for chain in chains):.3f}"],
    ]
    return table([f"{len(polls)} polls of {_RANKS} ranks ({found} periods found), whole chain", "ms of CPU"], rows)


def memory_table(iterations: int) -> str:
    """Measure the Python and numpy memory of one rank's chain, and of its change detector alone."""
    stream = records(iterations, 99)
    RankChain(Detection()).feed(stream[:_CALLS])  # what all ranks share is there before
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    chain = RankChain(Detection())
    sizes = []
    for at in range(0, len(stream), _CALLS):
        chain.feed(stream[at : at + _CALLS])
        if at // _CALLS in (iterations // 2, iterations - 1):
            sizes.append(tracemalloc.get_traced_memory()[0] - before)
    start, _ = tracemalloc.get_traced_memory()
    detector = _detector()
    _feed(detector, [1_000_000_000 + at for at in range(500)])
    alone = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    rows = [
        [f"chain after {iterations // 2} iterations of {_CALLS} calls", f"{sizes[0] / 1024:.0f}"],
        [f"chain after {iterations} iterations", f"{sizes[-1] / 1024:.0f}"],
        ["change detector alone, after 500", f"{alone / 1024:.0f}"],
    ]
    return table(["Memory of a rank", "KiB"], rows)
