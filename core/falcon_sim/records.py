"""What a rank's shim would have written: ring records of the simulated iterations, as of blocking calls (Gloo).

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

    def __init__(self, model: JobModel, rank: int) -> None:
        stages, replicas, tensor = model.shape
        self._model = model
        self.rank = rank
        self._stage, rest = divmod(rank, replicas * tensor)
        self._replica, self._tensor = divmod(rest, tensor)
        self._block: Block | None = None  # whose records are at hand
        self._ready = np.empty((0, 0), dtype=RECORD_DTYPE)  # [iterations of the block, calls]
        self._calls_in_comm: dict[int, int] = {}  # in an iteration of the block
        self._first = self._taken = 0  # its first iteration made, and one past the last one written
        self._written = 0  # records before the block
        self._numbers: dict[int, int] = {}  # of the communicators' next calls, before the block
        self.offset_ns = _CLOCK_SKEW_NS * (1 + rank // model.job.procs_per_node)
        self._last = stages - 1

    def records(self, block: Block, begins_ns: npt.NDArray[np.int64], first: int, last: int) -> RecordArray:
        """Iterations ``first`` … ``last`` − 1 of the block: [calls], dtype RECORD_DTYPE.

        ``begins_ns`` [iterations of the block]: when each began, on the simulator's clock.
        """
        if block is not self._block:
            self._open(block, begins_ns, first)
        self._taken = last
        return self._ready[first - self._first : last - self._first].reshape(-1)

    def _open(self, block: Block, begins_ns: npt.NDArray[np.int64], first: int) -> None:
        """Make the records of the whole rest of a block; whatever of it is never taken was never written."""
        done = self._taken - self._first
        self._written += done * self._ready.shape[1]
        for comm, number in self._calls_in_comm.items():
            self._numbers[comm] = self._numbers.get(comm, 0) + done * number
        self._block, self._first = block, first
        calls = self._calls(block, slice(first, len(block)))
        count, width = len(block) - first, len(calls)
        out = np.zeros((count, width), dtype=RECORD_DTYPE)
        begins = begins_ns[first:].astype(np.float64) + self.offset_ns
        starts = np.stack([call.starts for call in calls], axis=1) * 1e9 + begins[:, None]
        ends = np.stack([call.ends for call in calls], axis=1) * 1e9 + begins[:, None]
        out["t_start_ns"] = starts
        out["duration_ns"] = np.maximum(ends - starts, 0)
        out["op"] = [call.op for call in calls]
        out["bytes"] = [call.size for call in calls]
        out["peer_or_root"] = [call.peer for call in calls]
        out["dtype"] = DType.BFLOAT16
        out["kind"] = Kind.BLOCKING
        comms = np.array([call.comm for call in calls])
        out["comm"] = comms
        self._calls_in_comm = {}
        for comm in np.unique(comms).tolist():
            mine = comms == comm
            number, share = self._numbers.get(comm, 0), int(mine.sum())
            out["comm_seq"][:, mine] = (number + np.arange(count * share)).reshape(count, share)
            self._calls_in_comm[comm] = share
        out["seq"] = self._written + 1 + np.arange(count * width).reshape(count, width)
        self._ready = out

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
