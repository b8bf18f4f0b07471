"""What a rank's shim would have written: ring records of the simulated iterations.

``calls: Blocking``: a record a call, with its real start and duration (Gloo). ``Enqueued`` (NCCL): the host hands all
calls of an iteration over at its begin, at most up to what the device does, and waits for the device once, at its end;
so a record says when the call was enqueued and no more. In one iteration of ``sample_every`` the device's times follow
as completions, their starts late by up to a poll of the shim.

The job's calls: a receive before a pass whose input comes from another stage, the tensor-parallel all-reduce and the
experts' all-to-all in a pass, a send after it (which returns at once), the reduction of the gradients, and the norm.
Each node's clock has an offset of its own: nothing may compare two of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray
from falcon_sim.model import NORM_SECONDS, Block, Group, JobModel
from falcon_sim.pipeline import Floats

TENSOR, EXPERT, PIPELINE, DATA, WORLD = 1, 2, 3, 4, 5  # communicator ids, as each process numbers them
_LAUNCH_SECONDS = 5e-6  # between two calls that the host enqueues
_POLL_SECONDS = 5e-4  # of the shim's helper thread, which notices when a call began
SEND_NS = 10_000  # a send only hands its buffer over
_CLOCK_SKEW_NS = 3_600_000_000_000
_BYTES = {Op.ALL_REDUCE: 1 << 24, Op.ALL_TO_ALL: 1 << 22, Op.SEND: 1 << 21, Op.RECV: 1 << 21}


class _Call(NamedTuple):
    op: Op
    comm: int
    size: int
    peer: int
    starts: Floats  # [iterations], seconds since the iteration's begin
    ends: Floats


class RingWriter:
    """Writes one rank's records, block after block."""

    def __init__(self, model: JobModel, rank: int, sample_every: int = 1) -> None:
        """``sample_every``: where calls are enqueued, iterations of which one is timed on the device."""
        stages, replicas, tensor = model.shape
        self._model = model
        self.rank = rank
        self._stage, rest = divmod(rank, replicas * tensor)
        self._replica, self._tensor = divmod(rest, tensor)
        self._sample_every = sample_every
        self._late = np.random.default_rng(rank)
        self._block: Block | None = None  # whose records are at hand
        self._ready = np.empty(0, dtype=RECORD_DTYPE)
        self._ends: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)  # of each iteration in it, after a 0
        self._calls_in_comm: dict[int, int] = {}  # in an iteration of the block
        self._first = self._taken = 0  # its first iteration made, and one past the last one written
        self._iterations = 0  # before the block
        self._written = 0  # records before the block
        self._numbers: dict[int, int] = {}  # of the communicators' next calls, before the block
        self.offset_ns = _CLOCK_SKEW_NS * (1 + rank // model.job.procs_per_node)
        self._last = stages - 1

    @property
    def calls_in_iteration(self) -> int:
        """As of the block at hand."""
        return sum(self._calls_in_comm.values())

    def records(self, block: Block, begins_ns: npt.NDArray[np.int64], first: int, last: int) -> RecordArray:
        """Iterations ``first`` … ``last`` − 1 of the block: [records], dtype RECORD_DTYPE.

        ``begins_ns`` [iterations of the block]: when each began, on the simulator's clock.
        """
        if block is not self._block:
            self._open(block, begins_ns, first)
        self._taken = last
        return self._ready[self._ends[first - self._first] : self._ends[last - self._first]]

    def _open(self, block: Block, begins_ns: npt.NDArray[np.int64], first: int) -> None:
        """Make the records of the whole rest of a block; whatever of it is never taken was never written."""
        done = self._taken - self._first
        self._written += int(self._ends[done])
        self._iterations += done
        for comm, number in self._calls_in_comm.items():
            self._numbers[comm] = self._numbers.get(comm, 0) + done * number
        self._block, self._first = block, first
        calls = self._calls(block, slice(first, len(block)))
        count, width = len(block) - first, len(calls)
        out = np.zeros((count, width), dtype=RECORD_DTYPE)
        begins = begins_ns[first:].astype(np.float64)[:, None] + self.offset_ns
        starts = np.stack([call.starts for call in calls], axis=1)
        ends = np.stack([call.ends for call in calls], axis=1)
        out["op"] = [call.op for call in calls]
        out["bytes"] = [call.size for call in calls]
        out["peer_or_root"] = [call.peer for call in calls]
        out["dtype"] = DType.BFLOAT16
        comms = np.array([call.comm for call in calls])
        out["comm"] = comms
        self._calls_in_comm = {}
        for comm in np.unique(comms).tolist():
            mine = comms == comm
            number, share = self._numbers.get(comm, 0), int(mine.sum())
            out["comm_seq"][:, mine] = (number + np.arange(count * share)).reshape(count, share)
            self._calls_in_comm[comm] = share
        self._ready, self._ends = self._told(out, starts, ends, begins)
        self._ready["seq"] = self._written + 1 + np.arange(len(self._ready))

    def _told(
        self, calls: RecordArray, starts: Floats, ends: Floats, begins_ns: Floats
    ) -> tuple[RecordArray, npt.NDArray[np.int64]]:
        """Records in ring order, and where each iteration ends in them: [iterations, calls] → [n], [iterations + 1].

        ``starts``, ``ends``: seconds since the iterations' begins, ``begins_ns`` [iterations, 1].
        """
        count, width = calls.shape
        device = calls.copy()
        device["t_start_ns"] = starts * 1e9 + begins_ns
        device["duration_ns"] = np.maximum(ends - starts, 0) * 1e9
        if self._model.job.calls == "Blocking":
            device["kind"] = Kind.BLOCKING
            return device.reshape(-1), np.arange(count + 1) * width
        calls["kind"] = Kind.ENQUEUED
        calls["t_start_ns"] = np.minimum(np.arange(width) * _LAUNCH_SECONDS, starts) * 1e9 + begins_ns
        sampled = (self._iterations + np.arange(count)) % self._sample_every == 0
        device["kind"] = Kind.COMPLETED
        device["t_start_ns"] += (self._late.uniform(0, _POLL_SECONDS * 1e9, (count, width))).astype(np.uint64)
        device = np.take_along_axis(device, np.argsort(ends, axis=1, kind="stable"), axis=1)
        both = np.concatenate((calls, device), axis=1)
        written = np.repeat(np.column_stack((np.ones(count, dtype=np.bool_), sampled)), width, axis=1)
        return both[written], np.concatenate(([0], written.sum(axis=1).cumsum()))

    def _calls(self, block: Block, rows: slice) -> list[_Call]:
        group = next(one for one in block.groups if self._replica in one.replicas)
        calls = self._passes(block, group, rows)
        finished = block.finished[rows, self._stage, self._replica]
        reduced = block.reduced[rows, self._stage, self._tensor]
        if self._model.shape[1] > 1:
            calls.append(_Call(Op.ALL_REDUCE, DATA, 1 << 28, -1, finished, reduced))
        if self._model.job.parallelism.world > 1:
            done = block.reduced[rows].max(axis=(1, 2)) + NORM_SECONDS
            calls.append(_Call(Op.ALL_REDUCE, WORLD, 4, -1, reduced, done))
        return calls

    def _passes(self, block: Block, group: Group, rows: slice) -> list[_Call]:
        model, schedule = self._model, group.schedule
        job, place = model.job, group.replicas.index(self._replica)
        own = block.compute[rows, self._stage, self._replica, self._tensor]
        met = block.compute[rows, self._stage, self._replica].max(axis=1)
        calls: list[_Call] = []
        for index in schedule.of_stage(self._stage):
            work, _, _, received = schedule.steps[index]
            start, end = (times[index][rows, place] for times in (group.played.starts, group.played.ends))
            base = (model.forward if work.forward else model.backward)[self._stage] / schedule.chunks
            if received:
                ready = group.played.ready[index][rows, place]
                calls.append(_Call(Op.RECV, PIPELINE, _BYTES[Op.RECV], int(work.forward), ready, start))
            reached = start + base * own
            if model.shape[2] > 1:
                after = start + base * met + job.tensor_seconds / schedule.chunks
                calls.append(_Call(Op.ALL_REDUCE, TENSOR, _BYTES[Op.ALL_REDUCE], -1, reached, after))
                reached = after
            if job.parallelism.expert > 1:
                calls.append(_Call(Op.ALL_TO_ALL, EXPERT, _BYTES[Op.ALL_TO_ALL], -1, reached, end))
            if self._sends(work.chunk, schedule.chunks, forward=work.forward):
                size = _BYTES[Op.SEND]
                calls.append(_Call(Op.SEND, PIPELINE, size, int(not work.forward), end, end + SEND_NS / 1e9))
        return calls

    def _sends(self, chunk: int, chunks: int, *, forward: bool) -> bool:
        if self._last == 0:
            return False
        if forward:
            return self._stage < self._last or chunk < chunks - 1
        return self._stage > 0 or chunk > 0
