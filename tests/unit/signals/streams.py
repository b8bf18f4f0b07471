"""Invented streams of calls, as ring records: what a rank of a training job would have written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from falcon_core.signals.calls.stream import Calls, Tokenizer
from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray

MS = 1_000_000


class Call(NamedTuple):
    """One call: what it is, how long the rank computes before it, and how long it lasts."""

    op: Op
    size: int
    before_ns: int
    duration_ns: int = 2 * MS
    comm: int = 7


class Script:
    """A stream of calls that grows on a clock of its own."""

    def __init__(self, seed: int = 0, jitter: float = 0.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.now_ns = 1_000 * MS
        self.jitter = jitter
        self._rows: list[tuple[int, ...]] = []
        self._comm_seq: dict[int, int] = {}

    def call(self, call: Call, slowdown: float = 1.0) -> None:
        noise = 1.0 + self.jitter * abs(float(self.rng.standard_normal()))
        self.now_ns += int(call.before_ns * slowdown * noise)
        number = self._comm_seq.get(call.comm, 0)
        self._comm_seq[call.comm] = number + 1
        self._rows.append(
            (
                len(self._rows) + 1,
                self.now_ns,
                call.duration_ns,
                call.comm,
                call.size,
                number,
                0,
                -1,
                0,
                0,
                call.op,
                DType.FLOAT32,
                Kind.BLOCKING,
                0,
                0,
            )
        )
        self.now_ns += call.duration_ns

    def cycle(self, calls: Sequence[Call], times: int = 1, slowdown: float = 1.0) -> None:
        for _ in range(times):
            for call in calls:
                self.call(call, slowdown)

    @property
    def records(self) -> RecordArray:
        return np.array(self._rows, dtype=RECORD_DTYPE)

    @property
    def calls(self) -> Calls:
        return Tokenizer().calls(self.records)


def ddp(buckets: int, compute_ns: int = 200 * MS, *, equal: bool = False) -> list[Call]:
    """Return gradient buckets that come in a burst after one long computation."""
    return [
        Call(Op.ALL_REDUCE, 4096 if equal else 4096 * (index + 1), compute_ns if index == 0 else 3 * MS)
        for index in range(buckets)
    ]


def ddp_start() -> list[Call]:
    """Return DistributedDataParallel's calls before its first step: it verifies shapes and broadcasts parameters."""
    return [
        Call(Op.ALL_GATHER, 8, 50 * MS),
        Call(Op.ALL_GATHER, 256, 1 * MS),
        *(Call(Op.BROADCAST, size, 1 * MS) for size in (1 << 20, 1 << 18, 1 << 18, 1 << 12)),
        Call(Op.BARRIER, 0, 300 * MS),
    ]


def pipeline(micro_batches: int) -> list[Call]:
    """Return the calls of a pipeline's stage, for instance 32 × (send, recv) + 1 all-reduce."""
    pair = [Call(Op.RECV, 1 << 16, 2 * MS), Call(Op.SEND, 1 << 16, 2 * MS)]
    return [*(pair * micro_batches), Call(Op.ALL_REDUCE, 1 << 20, 20 * MS)]


def one_f_one_b(micro_batches: int, *, stage: int, stages: int) -> list[Call]:
    """Return the calls of a stage that fills the pipeline, alternates forward and backward passes, and drains it."""
    receive, send = Call(Op.RECV, 1 << 16, 2 * MS), Call(Op.SEND, 1 << 16, 20 * MS)
    reduce = Call(Op.ALL_REDUCE, 1 << 18, 20 * MS, comm=8)  # over the tensor-parallel ranks
    later, earlier = stage < stages - 1, stage > 0
    forward = [*([receive] if earlier else []), reduce, *([send] if later else [])]
    backward = [*([receive] if later else []), reduce, *([send] if earlier else [])]
    warm = min(stages - stage - 1, micro_batches)
    steady = [*forward, *backward] * (micro_batches - warm)
    return [*(forward * warm), *steady, *(backward * warm), Call(Op.ALL_REDUCE, 1 << 20, 20 * MS)]


def fsdp(layers: int) -> list[Call]:
    """Return the all-gathers of the forward pass, then (all-gather, reduce-scatter) of the backward pass."""
    gather = Call(Op.ALL_GATHER, 1 << 20, 2 * MS)
    return [*([gather] * layers), *([gather, Call(Op.REDUCE_SCATTER, 1 << 20, 3 * MS)] * layers)]
