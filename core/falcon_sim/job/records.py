"""Write the ring records that a rank's shim would have written in the simulated iterations.

``calls: Blocking``: a record a call, with its real start and duration (Gloo). ``Enqueued`` (NCCL): the host hands all
calls of an iteration over at its begin, at most up to what the device does, and waits for the device once, at its end;
so a record says when the call was enqueued and no more. In one iteration of ``sample_every`` the device's times follow
as completions, their starts late by up to a poll of the shim.

The job's calls: a receive before a pass whose input comes from another stage, the tensor-parallel all-reduce and the
experts' all-to-all in a pass, a send after it (which returns at once), the reduction of the gradients, and the norm.
Each node's clock has an offset of its own: no code may compare two of them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray
from falcon_sim.job.model import NORM_SECONDS, Block, Group, JobModel
from falcon_sim.job.pipeline import Floats, Schedule

Ints = npt.NDArray[np.int64]

TENSOR, EXPERT, PIPELINE, DATA, WORLD = 1, 2, 3, 4, 5  # communicator ids, as each process numbers them
_LAUNCH_SECONDS = 5e-6  # between two calls that the host enqueues
_POLL_SECONDS = 5e-4  # of the shim's helper thread, which notices when a call began
SEND_NS = 10_000  # a send only hands its buffer over
_TOKEN_BYTES = 1 << 12  # of a call whose payload grows with the work
_EVALUATION_BYTES = 64  # a handful of sums
_CLOCK_SKEW_NS = 3_600_000_000_000
_BYTES = {Op.ALL_REDUCE: 1 << 24, Op.ALL_TO_ALL: 1 << 22, Op.SEND: 1 << 21, Op.RECV: 1 << 21}


_Bounds = IntEnum("_Bounds", ["READY", "START", "COMPUTED", "REDUCED", "END", "SENT"], start=0)
"""Where a call of a pass may begin or end: its row in the array of the passes' times."""


class Layout(NamedTuple):
    """The calls that a stage's ranks make in an iteration, in order: arrays by call; those outside passes come last."""

    op: Ints
    comm: Ints
    size: Ints
    peer: Ints
    steps: Ints  # [passes]: the stage's, as indices into the schedule's steps
    seconds: Floats  # [passes]: their computation by a healthy rank
    microbatches: Ints  # [passes]
    place: Ints  # [calls in passes]: the pass, as an index into ``steps``
    begins: Ints  # [calls in passes]: _Bounds
    ends: Ints


class RingWriter:
    """A writer of one rank's records, block after block."""

    def __init__(self, model: JobModel, rank: int, sample_every: int = 1) -> None:
        """Take ``sample_every``: where calls are enqueued, iterations of which a single one is timed on the device."""
        stages, replicas, tensor = model.shape
        self._model = model
        self.rank = rank
        self._stage, rest = divmod(rank, replicas * tensor)
        self._replica, self._tensor = divmod(rest, tensor)
        self.sample_every = sample_every  # may change between two pieces of a block
        self._opened_with = sample_every
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
        """Return the calls of an iteration of the block at hand."""
        return sum(self._calls_in_comm.values())

    def records(self, block: Block, begins_ns: npt.NDArray[np.int64], first: int, last: int) -> RecordArray:
        """Write iterations ``first`` … ``last`` − 1 of the block: [records], dtype RECORD_DTYPE.

        ``begins_ns`` [iterations of the block]: when each began, on the simulator's clock.
        """
        if block is not self._block or self.sample_every != self._opened_with:
            self._open(block, begins_ns, first)
        self._taken = last
        return self._ready[self._ends[first - self._first] : self._ends[last - self._first]]

    def introductions(self, at_ns: int) -> RecordArray:
        """Write the records that introduce the communicators, before a generation's first call: [communicators]."""
        degrees = self._model.job.parallelism
        seats = [
            (TENSOR, degrees.tensor, self._tensor),
            (EXPERT, degrees.expert, self._replica % degrees.expert),
            (PIPELINE, degrees.pipeline, self._stage),
            (DATA, degrees.data, self._replica),
            (WORLD, degrees.world, self.rank),
        ]
        seats = [seat for seat in seats if seat[1] > 1]
        out = np.zeros(len(seats), dtype=RECORD_DTYPE)
        out["comm"], out["group"], out["peer_or_root"] = np.array(seats, dtype=np.int64).reshape(-1, 3).T
        out["kind"], out["t_start_ns"] = Kind.DESCRIPTOR, at_ns + self.offset_ns
        self._number(out)
        return out

    def aside(self, starts_ns: npt.NDArray[np.int64], ends_ns: npt.NDArray[np.int64]) -> RecordArray:
        """Write all-reduces of all ranks that are no part of an iteration, as of an evaluation: [calls] → [calls].

        They come between two blocks: after the last iteration that was taken, and before the next block.
        """
        out = np.zeros(len(starts_ns), dtype=RECORD_DTYPE)
        out["op"], out["comm"], out["bytes"], out["peer_or_root"] = Op.ALL_REDUCE, WORLD, _EVALUATION_BYTES, -1
        out["dtype"], out["t_start_ns"] = DType.FLOAT32, starts_ns + self.offset_ns
        blocking = self._model.job.calls == "Blocking"
        out["kind"] = Kind.BLOCKING if blocking else Kind.ENQUEUED
        out["duration_ns"] = ends_ns - starts_ns if blocking else 0
        done = self._taken - self._first
        made = self._numbers.get(WORLD, 0)
        out["comm_seq"] = made + done * self._calls_in_comm.get(WORLD, 0) + np.arange(len(out))
        self._numbers[WORLD] = made + len(out)
        self._number(out)
        return out

    def _number(self, out: RecordArray) -> None:
        """Number records that belong to no block, after the block's records that were taken."""
        out["seq"] = self._written + int(self._ends[self._taken - self._first]) + 1 + np.arange(len(out))
        self._written += len(out)

    def _open(self, block: Block, begins_ns: npt.NDArray[np.int64], first: int) -> None:
        """Make the records of the whole rest of a block; records that are never taken count as never written."""
        done = self._taken - self._first
        self._written += int(self._ends[done])
        self._iterations += done
        for comm, number in self._calls_in_comm.items():
            self._numbers[comm] = self._numbers.get(comm, 0) + done * number
        self._block, self._first, self._opened_with = block, first, self.sample_every
        # The rank's own schedule depends on how many micro-batches its replica has.
        group = next(group for group in block.groups if self._replica in group.replicas)
        layout = self._layout(group.schedule)
        starts, ends = self._times(block, group, layout, slice(first, len(block)))
        count, width = starts.shape
        out = np.zeros((count, width), dtype=RECORD_DTYPE)
        begins = begins_ns[first:].astype(np.float64)[:, None] + self.offset_ns
        out["op"], out["peer_or_root"] = layout.op, layout.peer
        out["bytes"] = self._sizes(group, layout, slice(first, len(block)))
        out["dtype"] = DType.BFLOAT16
        comms = layout.comm
        out["comm"] = comms
        self._calls_in_comm = {}
        for comm in np.unique(comms).tolist():
            mine = comms == comm
            number, share = self._numbers.get(comm, 0), int(mine.sum())
            out["comm_seq"][:, mine] = (number + np.arange(count * share)).reshape(count, share)
            self._calls_in_comm[comm] = share
        self._ready, self._ends = self._recorded(out, starts, ends, begins)
        self._ready["seq"] = self._written + 1 + np.arange(len(self._ready))

    def _sizes(self, group: Group, layout: Layout, rows: slice) -> npt.NDArray[np.int64]:
        """Return the payloads, bytes: [calls], or [iterations, calls] where they grow with the work."""
        if group.draws.work is None or self._model.job.sizes == "Fixed":
            return layout.size
        calls = len(layout.place)
        work = group.draws.work[:, rows, group.replicas.index(self._replica)]
        grown = np.repeat(layout.size[None], work.shape[1], axis=0)
        tokens = np.rint(work[layout.microbatches[layout.place]].T * layout.size[:calls] / _TOKEN_BYTES)
        grown[:, :calls] = np.maximum(1, tokens).astype(np.int64) * _TOKEN_BYTES
        return grown

    def _recorded(
        self, calls: RecordArray, starts: Floats, ends: Floats, begins_ns: Floats
    ) -> tuple[RecordArray, npt.NDArray[np.int64]]:
        """Put records in ring order, and return the end of each iteration in them.

        Shapes: [iterations, calls] → [n], [iterations + 1].

        ``starts``, ``ends``: seconds since the iterations' begins, ``begins_ns`` [iterations, 1].
        """
        count, width = calls.shape
        device = calls.copy()
        device["t_start_ns"] = starts * 1e9 + begins_ns
        device["duration_ns"] = np.maximum(ends - starts, 0) * 1e9
        # A blocking call is recorded when it returns, with its real duration.
        if self._model.job.calls == "Blocking":
            device["kind"] = Kind.BLOCKING
            return device.reshape(-1), np.arange(count + 1) * width
        calls["kind"] = Kind.ENQUEUED
        calls["t_start_ns"] = np.minimum(np.arange(width) * _LAUNCH_SECONDS, starts) * 1e9 + begins_ns
        # Of enqueued calls, only those of sampled iterations are timed on the device.
        sampled = (self._iterations + np.arange(count)) % self.sample_every == 0
        device["kind"] = Kind.COMPLETED
        device["t_start_ns"] += (self._late.uniform(0, _POLL_SECONDS * 1e9, (count, width))).astype(np.uint64)
        device = np.take_along_axis(device, np.argsort(ends, axis=1, kind="stable"), axis=1)
        both = np.concatenate((calls, device), axis=1)
        written = np.repeat(np.column_stack((np.ones(count, dtype=np.bool_), sampled)), width, axis=1)
        return both[written], np.concatenate(([0], written.sum(axis=1).cumsum()))

    def _times(self, block: Block, group: Group, layout: Layout, rows: slice) -> tuple[Floats, Floats]:
        """Compute when each call began and ended, seconds since its iteration's begin: [iterations, calls] each."""
        model, played, place = self._model, group.played, group.replicas.index(self._replica)
        tensor = model.job.tensor_seconds / group.schedule.chunks
        compute = block.compute[rows, self._stage, self._replica]  # [iterations, tensor]
        own, met = compute[:, self._tensor], compute.max(axis=1)
        bounds = np.empty((len(_Bounds), len(layout.steps), len(own)))
        for row, times in ((_Bounds.READY, played.ready), (_Bounds.START, played.starts), (_Bounds.END, played.ends)):
            bounds[row] = times[:, rows, place][layout.steps]
        start, base, draws = bounds[_Bounds.START], layout.seconds[:, None], group.draws
        if draws.alike:
            bounds[_Bounds.COMPUTED] = start + base * own
            bounds[_Bounds.REDUCED] = start + base * met + tensor
        else:
            for number, step in enumerate(layout.steps.tolist()):
                spent = layout.seconds[number] * compute * _at(draws.factor(step), rows, place)
                moved = tensor * _at(model.payload(draws, int(layout.microbatches[number])), rows, place)
                bounds[_Bounds.COMPUTED, number] = start[number] + spent[:, self._tensor]
                bounds[_Bounds.REDUCED, number] = start[number] + spent.max(axis=1) + moved
        bounds[_Bounds.SENT] = bounds[_Bounds.END] + SEND_NS / 1e9
        starts = [bounds[layout.begins, layout.place]]
        ends = [bounds[layout.ends, layout.place]]
        reduced = block.reduced[rows, self._stage, self._tensor]
        if model.shape[1] > 1:
            done = block.finished[rows, self._stage].max(axis=1)
            buckets = model.job.buckets
            parts = [done + (reduced - done) * number / buckets for number in range(1, buckets)]
            starts.append(np.array([block.finished[rows, self._stage, self._replica], *parts]))
            ends.append(np.array([*parts, reduced]))
        if model.job.parallelism.world > 1:
            starts.append(reduced[None])
            ends.append(block.reduced[None, rows].max(axis=(2, 3)) + NORM_SECONDS)
        return np.concatenate(starts).T, np.concatenate(ends).T

    def _layout(self, schedule: Schedule) -> Layout:
        """Make the layout of a stage's ranks, once for all of them."""
        known = self._model.layouts
        if (schedule.microbatches, self._stage) not in known:
            known[schedule.microbatches, self._stage] = self._laid_out(schedule)
        layout: Layout = known[schedule.microbatches, self._stage]
        return layout

    def _laid_out(self, schedule: Schedule) -> Layout:
        model = self._model
        degrees, steps = model.job.parallelism, schedule.of_stage(self._stage)
        calls: list[tuple[int, ...]] = []  # op, comm, size, peer, pass, begin, end
        for number, index in enumerate(steps):
            work, _, _, received = schedule.steps[index]
            reached = _Bounds.COMPUTED

            def add(op: Op, comm: int, peer: int, begin: int, end: int, number: int = number) -> None:
                calls.append((op, comm, _BYTES[op], peer, number, begin, end))

            if received:
                add(Op.RECV, PIPELINE, int(work.forward), _Bounds.READY, _Bounds.START)
            if model.shape[2] > 1:
                add(Op.ALL_REDUCE, TENSOR, -1, reached, _Bounds.REDUCED)
                reached = _Bounds.REDUCED
            if degrees.expert > 1:
                add(Op.ALL_TO_ALL, EXPERT, -1, reached, _Bounds.END)
            if self._sends(work.chunk, schedule.chunks, forward=work.forward):
                add(Op.SEND, PIPELINE, int(not work.forward), _Bounds.END, _Bounds.SENT)
        _, _, _, _, place, begins, ends = np.array(calls, dtype=np.int64).reshape(-1, 7).T
        if model.shape[1] > 1:
            buckets = model.job.buckets
            calls += [(Op.ALL_REDUCE, DATA, (1 << 28) // buckets, -1, 0, 0, 0)] * buckets
        if degrees.world > 1:
            calls.append((Op.ALL_REDUCE, WORLD, 4, -1, 0, 0, 0))
        op, comm, size, peer, *_ = np.array(calls, dtype=np.int64).reshape(-1, 7).T
        forward = np.array([schedule.steps[index].work.forward for index in steps])
        seconds = np.where(forward, model.forward[self._stage], model.backward[self._stage]) / schedule.chunks
        microbatches = np.array([schedule.steps[index].work.microbatch for index in steps])
        return Layout(op, comm, size, peer, np.array(steps), seconds, microbatches, place, begins, ends)

    def _sends(self, chunk: int, chunks: int, *, forward: bool) -> bool:
        if self._last == 0:
            return False
        if forward:
            return self._stage < self._last or chunk < chunks - 1
        return self._stage > 0 or chunk > 0


def _at(values: Floats, rows: slice, place: int) -> Floats:
    """Return these iterations of a replica: [iterations, replicas, ...] → [iterations, ...]; length 1 is all alike."""
    cut: Floats = values if len(values) == 1 else values[rows]
    mine: Floats = cut[:, 0 if cut.shape[1] == 1 else place]
    return mine
