"""Streams of calls of jobs that do not exist, one rank each; shaped like NCCL's: a call ends when it is enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from falcon_core.signals.calls.stream import Calls, Ints, traits
from falcon_core.wire.ring import Op

Generator = np.random.Generator
MS = 1_000_000
_NOISE = 0.1  # of every gap, log-normal
_OTHER_SIZE = 1 << 12


class Kind(NamedTuple):
    """One call of the cycle: its operation, size, and the computation before it in ms."""

    op: Op
    size: int
    before_ms: float


class Job(NamedTuple):
    """A cycle, and what disturbs it."""

    cycle: Sequence[Kind]
    start: int = 0  # irregular calls before the first cycle
    flipped: float = 0.0  # share of the calls that are of another kind
    evaluate_every: int = 0  # cycles between two evaluations
    cut: bool = False  # the stream begins at a random place of a cycle


def distinct(length: int, kinds: int = 7) -> list[Kind]:
    """Make gradient buckets in ``kinds`` sizes, of which one size occurs once: a cycle of ``length`` calls."""
    buckets = [Kind(Op.ALL_REDUCE, 1 << 20 | index % kinds, 300 / length) for index in range(length - 1)]
    return [Kind(Op.ALL_REDUCE, 4, 20.0), *buckets]


def pipeline(micro_batches: int) -> list[Kind]:
    pair = [Kind(Op.RECV, 1 << 16, 2.0), Kind(Op.SEND, 1 << 16, 2.0)]
    return [*(pair * micro_batches), Kind(Op.ALL_REDUCE, 1 << 20, 20.0)]


def many_then_two(buckets: int) -> list[Kind]:
    return [
        *([Kind(Op.ALL_REDUCE, 1 << 20, 2.0)] * buckets),
        Kind(Op.ALL_GATHER, 1 << 10, 5.0),
        Kind(Op.BROADCAST, 1 << 10, 5.0),
    ]


def fsdp(layers: int, compute_ms: float = 2.0) -> list[Kind]:
    gather, scatter = Kind(Op.ALL_GATHER, 1 << 20, compute_ms), Kind(Op.REDUCE_SCATTER, 1 << 20, 1.5 * compute_ms)
    return [*([gather] * layers), *([gather, scatter] * layers)]


def micro_batches(number: int, layers: int, compute_ms: float) -> list[Kind]:
    """Accumulate gradients: each micro-batch communicates; one call of the optimizer ends the iteration."""
    gather, scatter = Kind(Op.ALL_GATHER, 1 << 20, compute_ms), Kind(Op.REDUCE_SCATTER, 1 << 20, compute_ms)
    return [*([*[gather] * layers, *[gather, scatter] * layers] * number), Kind(Op.ALL_REDUCE, 4, 30.0)]


def tensor_parallel(number: int, layers: int, compute_ms: float) -> list[Kind]:
    """Make micro-batches whose layers sum activations up; the sum of the gradients ends the iteration."""
    layer = Kind(Op.ALL_REDUCE, 1 << 20, compute_ms)
    micro_batch = [Kind(Op.RECV, 1 << 16, 2.0), *[layer] * (4 * layers), Kind(Op.SEND, 1 << 16, 2.0)]
    return [*micro_batch * number, Kind(Op.ALL_REDUCE, 1 << 24, 30.0)]


def equal_buckets(buckets: int) -> list[Kind]:
    """Make one token only: a burst after one long computation."""
    return [Kind(Op.ALL_REDUCE, 1 << 20, 200.0 if index == 0 else 3.0) for index in range(buckets)]


def alike_layers(layers: int, of_layer: Sequence[float]) -> list[Kind]:
    """Make layers whose parameters are summed up one by one, ``of_layer`` ms apart; computation precedes the first."""
    layer = [Kind(Op.ALL_REDUCE, (1 << 20) + number, before_ms) for number, before_ms in enumerate(of_layer)]
    first = layer[0]._replace(before_ms=1.5 * layers * of_layer[0])
    return [first, *layer[1:], *layer * (layers - 1)]


JOBS: dict[str, Job] = {
    **{f"{length} calls": Job(distinct(length)) for length in (4, 17, 40, 150, 200, 400, 2_000)},
    "32 × (send, recv) + all-reduce (65)": Job(pipeline(32)),
    "96 all-reduces + 2 (98)": Job(many_then_two(96)),
    "40 AG + 40 × (AG, RS) (120)": Job(fsdp(40)),
    "40 AG + 40 × (AG, RS), slow layers (80 ms)": Job(fsdp(40, 80.0)),
    "FSDP, 12 layers (36)": Job(fsdp(12)),
    "all-reduce only, 1 a cycle": Job(equal_buckets(1)),
    "all-reduce only, 5 equal buckets": Job(equal_buckets(5)),
    "all-reduce only, 6 buckets": Job(alike_layers(1, (200.0, 3, 3, 3, 3, 3))),
    "3 equal layers of 2 parameters (6)": Job(alike_layers(3, (30.0, 1))),
    "8 equal experts of 2 parameters (16)": Job(alike_layers(8, (20.0, 5))),
    "12 equal blocks of 4 parameters (48)": Job(alike_layers(12, (20.0, 1, 8, 1))),
    "40 calls, 1 % flipped": Job(distinct(40), flipped=0.01),
    "40 calls, 5 % flipped": Job(distinct(40), flipped=0.05),
    "4 calls, 5 % flipped": Job(distinct(4), flipped=0.05),
    "FSDP, 40 layers, 1 % flipped": Job(fsdp(40), flipped=0.01),
    "65 calls, evaluation every 50 cycles": Job(pipeline(32), evaluate_every=50),
    "17 calls, evaluation every 100 cycles": Job(distinct(17), evaluate_every=100),
    "17 calls, evaluation every 10 cycles": Job(distinct(17), evaluate_every=10),
    "4 micro-batches of 0.1 s + optimizer (145)": Job(micro_batches(4, 12, 3.0)),
    "16 micro-batches of 0.5 s + optimizer (193), see the notes": Job(micro_batches(16, 4, 40.0)),
    "8 tensor-parallel micro-batches of 0.2 s + gradients (145)": Job(tensor_parallel(8, 4, 12.0)),
    "120 calls after an irregular start of 200": Job(fsdp(40), start=200),
    "17 calls after an irregular start of 200": Job(distinct(17), start=200),
    "40 AG + 40 × (AG, RS), random cut": Job(fsdp(40), cut=True),
    "32 × (send, recv) + all-reduce, random cut": Job(pipeline(32), cut=True),
    "150 calls, random cut": Job(distinct(150), cut=True),
}


def stream(job: Job, rng: Generator, count: int) -> Calls:
    """Return the first ``count`` calls of a rank."""
    kinds: list[Kind] = []
    kinds += [Kind(Op.BROADCAST, int(size), 5.0) for size in rng.integers(1, 9, job.start)]
    cycle = list(job.cycle)
    cycles = 0
    if job.cut:
        kinds += cycle[int(rng.integers(len(cycle))) :]
    while len(kinds) < count:
        kinds += cycle
        cycles += 1
        if job.evaluate_every and cycles % job.evaluate_every == 0:
            kinds += [Kind(Op.ALL_REDUCE, 8, 30.0)] * 5
    del kinds[count:]
    ops = np.array([int(kind.op) for kind in kinds])
    tokens = _tokens(kinds)
    op_of_token = np.zeros(tokens.max() + 2, dtype=np.int64)  # the last is of another kind
    size_of_token = np.full(tokens.max() + 2, _OTHER_SIZE)
    op_of_token[tokens] = ops
    size_of_token[tokens] = [kind.size for kind in kinds]
    flips = rng.random(count) < job.flipped
    flips[: job.start] = False
    tokens[flips] = rng.integers(0, tokens.max() + 2, int(flips.sum()))
    gaps = np.array([kind.before_ms for kind in kinds]) * MS * np.exp(_NOISE * rng.standard_normal(count))
    starts: Ints = np.cumsum(np.maximum(gaps, 1000)).astype(np.int64)
    return Calls(
        tokens=tokens,
        numbers=np.arange(count),
        starts_ns=starts,
        ends_ns=starts.copy(),
        measured=np.zeros(count, dtype=np.bool_),
        traits=traits(ops, np.array([kind.size for kind in kinds])),
        kinds=op_of_token[tokens],
        sizes=size_of_token[tokens],
    )


def _tokens(kinds: Sequence[Kind]) -> Ints:
    names: dict[tuple[Op, int], int] = {}
    tokens: Ints = np.array([names.setdefault((kind.op, kind.size), len(names)) for kind in kinds], dtype=np.int64)
    return tokens
