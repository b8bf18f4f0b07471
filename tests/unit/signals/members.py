"""All members of invented jobs, as ring records: a straggler makes the other ranks wait at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray
from tests.unit.signals.streams import MS

TRANSFER_NS = 2 * MS


class Job:
    """Ranks that compute and meet in collectives, each on a clock of its own.

    ``sampled``: None records blocking calls (Gloo). A number n records the enqueue times of all calls, and the device
    times of one window in n, a cycle late (NCCL). A window has ``window`` calls, and need not begin where a cycle does.
    The end of a call on the device is recorded as the time of the poll that noticed it; polls are ``poll_ns`` apart.
    """

    def __init__(
        self,
        ranks: int,
        *,
        sampled: int | None = None,
        window: int = 4,
        poll_ns: int = 1,
        seed: int = 0,
        jitter: float = 0.01,
    ) -> None:
        self.ranks = ranks
        self._sampled = sampled
        self._window = window
        self._poll_ns = poll_ns
        self._rng = np.random.default_rng(seed)
        self._jitter = jitter
        self._now = np.full(ranks, 1_000 * MS, dtype=np.int64)
        self._host = self._now.copy()
        self._skew = np.arange(ranks) * 12_345_678_901  # clocks of different machines
        self._rows: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
        self._late: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
        self._numbers: list[dict[int, int]] = [{} for _ in range(ranks)]
        self._calls = [0] * ranks
        self._cycle = 0

    def compute(self, nanoseconds: int | Sequence[int], slowdown: Mapping[int, float] | None = None) -> None:
        """Let every rank compute, for as long as all ranks do, or by rank."""
        noise = 1.0 + self._jitter * np.abs(self._rng.standard_normal(self.ranks))
        factor = np.array([(slowdown or {}).get(rank, 1.0) for rank in range(self.ranks)])
        self._now += (np.asarray(nanoseconds) * noise * factor).astype(np.int64)

    def meet(
        self,
        op: Op,
        size: int | Sequence[int],
        groups: Sequence[Sequence[int]],
        comm: int,
        transfer_ns: Callable[[int], int] | None = None,
    ) -> None:
        """Run one collective in each group; ``transfer_ns`` gives the duration by the group's place.

        ``size`` is one for all ranks, or by rank.
        """
        for place, group in enumerate(groups):
            transfer = TRANSFER_NS if transfer_ns is None else transfer_ns(place)
            end = int(self._now[list(group)].max()) + int(
                transfer * (1 + self._jitter * abs(self._rng.standard_normal()))
            )
            for rank in group:
                self._call(rank, op, size if isinstance(size, int) else size[rank], comm, int(self._now[rank]), end)
                self._now[rank] = end

    def _call(self, rank: int, op: Op, size: int, comm: int, start: int, end: int) -> None:
        number = self._numbers[rank].get(comm, 0)
        self._numbers[rank][comm] = number + 1
        start, end = start + int(self._skew[rank]), end + int(self._skew[rank])

        def row(kind: Kind, begin: int, duration: int) -> tuple[int, ...]:
            return (0, begin, duration, comm, size, number, 0, -1, 0, 0, op, DType.FLOAT32, kind, 0, 0)

        if self._sampled is None:
            self._rows[rank].append(row(Kind.BLOCKING, start, end - start))
            return
        self._rows[rank].append(row(Kind.ENQUEUED, start, 0))
        self._calls[rank] += 1
        if self._calls[rank] // self._window % self._sampled == 0:
            noticed = -(-end // self._poll_ns) * self._poll_ns
            self._late[rank].append(row(Kind.COMPLETED, noticed - (end - start), end - start))

    def end_cycle(self) -> None:
        """End a cycle; every second time, append the completions that polls have noticed since."""
        self._cycle += 1
        if self._cycle % 2 == 0:
            for rows, late in zip(self._rows, self._late, strict=True):
                rows += late
                late.clear()

    def records(self, rank: int) -> RecordArray:
        records = np.array(self._rows[rank], dtype=RECORD_DTYPE)
        records["seq"] = np.arange(1, len(records) + 1)
        return records


def data_parallel(job: Job, cycles: int, slowdown: Mapping[int, float] | None = None) -> None:
    """Run cycles of 100 ms of computation, a burst of three gradient buckets, and a mean of the loss."""
    everybody = [range(job.ranks)]
    for _ in range(cycles):
        job.compute(100 * MS, slowdown)
        for size in (1 << 20, 1 << 20, 1 << 12):
            job.meet(Op.ALL_REDUCE, size, everybody, comm=7)
            job.compute(2 * MS)
        job.meet(Op.ALL_REDUCE, 4, everybody, comm=7)
        job.end_cycle()
