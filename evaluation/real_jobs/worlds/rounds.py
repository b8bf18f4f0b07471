"""Jobs whose groups of ranks meet rarely, as with DiLoCo and local SGD: records of every rank, block after block.

A step is a replica's own: its ranks shard the parameters among them (FSDP: all-gathers in the forward pass, all-gathers
and reduce-scatters in the backward pass, the gradient's norm). After each round of many steps the replicas average what
they have learned, in a few large all-reduces. Between two rounds replicas run on their own: a fast replica is ahead of
a slow one until it has to wait for it.

``World`` and ``RoundsWorld`` have the same methods. Here an iteration is a step, and a block's ``seconds`` are those in
which the slowest rank gets on by a step. A rank's records become visible once it has ended the step, so that ranks of
fast replicas show more steps than those of slow ones.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np

from evaluation.real_jobs.scene import SAMPLE_EVERY, Scene
from evaluation.real_jobs.worlds.world import START_UNIX_NS
from falcon_core.wire.ring import RECORD_DTYPE, DType, Kind, Op, RecordArray
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.records import DATA, TENSOR, Ints

_BLOCK = 64  # steps
_LAYERS = 6
_CALL_SECONDS = 0.001  # on a device, once all members have come
_AVERAGES = 4  # all-reduces between replicas after a round
_AVERAGING_SECONDS = 0.3  # all of them
_LAUNCH_NS = 5_000  # between two calls that the host enqueues
_POLL_NS = 500_000  # of the shim's helper thread, which notices when a call began
_CLOCK_SKEW_NS = 3_600_000_000_000


class Call(NamedTuple):
    """A call of a step, and what a healthy rank computes before it."""

    op: Op
    comm: int
    size: int
    seconds: float


class Steps(msgspec.Struct, frozen=True):
    """Some steps of all ranks; times are seconds of the world's clock."""

    seconds: Floats  # [steps]: by which the slowest rank gets on
    begins: Floats  # [steps, ranks]
    calls: list[list[Call]]  # of each step
    starts: list[Floats]  # of each step: [calls, ranks]
    ends: list[Floats]
    first: int  # number of the first step
    world_ends: Floats  # [steps]: the slowest rank has ended it

    def __len__(self) -> int:
        return len(self.calls)


class StepWriter:
    """A writer of one rank's records, step after step."""

    def __init__(self, scene: Scene, rank: int) -> None:
        self._enqueues = scene.job.calls == "Enqueued"
        self._members = scene.job.parallelism.tensor
        self._replicas = scene.job.parallelism.data
        self.rank = rank
        self.sample_every = SAMPLE_EVERY
        self.offset_ns = _CLOCK_SKEW_NS * (1 + rank // scene.job.procs_per_node)
        self._late = np.random.default_rng(rank)
        self._written = 0
        self._numbers: dict[int, int] = {}  # of the communicators' next calls
        self._block: Steps | None = None
        self._taken = 0  # steps of the block

    def introductions(self, at_ns: int) -> RecordArray:
        """Write the records that introduce the communicators, before the first call: [communicators]."""
        seats = [
            (TENSOR, self._members, self.rank % self._members),
            (DATA, self._replicas, self.rank // self._members),
        ]
        out = np.zeros(len(seats), dtype=RECORD_DTYPE)
        out["comm"], out["group"], out["peer_or_root"] = np.array(seats, dtype=np.int64).T
        out["kind"], out["t_start_ns"] = Kind.DESCRIPTOR, at_ns + self.offset_ns
        return self._numbered([out])

    def records(self, block: Steps, _: Ints, __: int, last: int) -> RecordArray:
        """Write the steps that this rank has ended when the slowest has ended step ``last`` − 1 of the block."""
        if block is not self._block:
            self._block, self._taken = block, 0
        until, first = block.world_ends[last - 1], self._taken
        while self._taken < len(block) and block.ends[self._taken][-1, self.rank] <= until:
            self._taken += 1
        return self._numbered([self._step(block, step) for step in range(first, self._taken)])

    def _step(self, block: Steps, step: int) -> RecordArray:
        calls = block.calls[step]
        device = np.zeros(len(calls), dtype=RECORD_DTYPE)
        for row, call in enumerate(calls):
            number = self._numbers.get(call.comm, 0)
            self._numbers[call.comm] = number + 1
            device["op"][row], device["comm"][row], device["bytes"][row] = call.op, call.comm, call.size
            device["comm_seq"][row] = number
        device["dtype"], device["peer_or_root"] = DType.BFLOAT16, -1
        starts = (block.starts[step][:, self.rank] * 1e9).astype(np.int64)
        ends = (block.ends[step][:, self.rank] * 1e9).astype(np.int64)
        device["duration_ns"] = ends - starts
        device["t_start_ns"], device["kind"] = starts + self.offset_ns, Kind.BLOCKING
        if not self._enqueues:
            return device
        host = device.copy()
        host["kind"], host["duration_ns"] = Kind.ENQUEUED, 0
        begin = int(block.begins[step, self.rank] * 1e9) + self.offset_ns
        host["t_start_ns"] = begin + np.arange(len(calls)) * _LAUNCH_NS
        if (block.first + step) % self.sample_every:
            return host
        device["kind"] = Kind.COMPLETED
        device["t_start_ns"] += self._late.uniform(0, _POLL_NS, len(calls)).astype(np.uint64)
        return np.concatenate((host, device))

    def _numbered(self, parts: list[RecordArray]) -> RecordArray:
        out = np.concatenate(parts) if parts else np.zeros(0, dtype=RECORD_DTYPE)
        out["seq"] = self._written + 1 + np.arange(len(out))
        self._written += len(out)
        return out


class RoundsWorld:
    """A job in motion. ``roles``: the node of each pod; nodes beyond the scene's are healthy spares."""

    def __init__(self, scene: Scene, seed: list[int], steps: int) -> None:
        """Take the ``steps`` of a round."""
        self.scene, self._seed, self._round = scene, seed, steps
        self.roles = list(range(scene.nodes))
        self.now_ns = 0
        self.writers: list[StepWriter] = []
        self._clocks: Floats = np.zeros(scene.job.parallelism.world)  # of each rank, s
        self._calls = _calls(scene)

    def begin(self) -> list[RecordArray]:
        """Begin a generation with new rings: the first records of each rank."""
        self.writers = [StepWriter(self.scene, rank) for rank in range(self.scene.job.parallelism.world)]
        self._clocks = np.full(len(self.writers), self.now_ns / 1e9)
        return [writer.introductions(self.now_ns) for writer in self.writers]

    def unix_offset_ns(self, rank: int) -> int:
        """Return what turns the rank's ring clock into wall time."""
        return START_UNIX_NS - self.writers[rank].offset_ns

    def asides(self, _: int) -> list[RecordArray]:
        """Return the calls before a step that belong to no step: there are none."""
        return []

    def block(self, first: int) -> tuple[Steps, Ints]:
        """Draw the steps from ``first`` on. The second value is when each begins for the slowest rank, ns: [steps]."""
        scene = self.scene
        last = min(first + _BLOCK, scene.iterations)
        rng = np.random.default_rng([*self._seed, first])
        compute = self._compute(first, last, rng)
        begins, calls, starts, ends = [], [], [], []
        before = self._clocks.max()
        for row in range(last - first):
            begins.append(self._clocks)
            averages = (first + row + 1) % self._round == 0
            calls.append(self._calls + _averages() * averages)
            began, ended = self._played(calls[-1], compute[row], rng)
            starts.append(began)
            ends.append(ended)
        world_ends = np.array([step.max() for step in ends])
        seconds = np.diff(world_ends, prepend=before)
        block = Steps(seconds, np.array(begins), calls, starts, ends, first, world_ends)
        return block, np.rint((world_ends - seconds) * 1e9).astype(np.int64)

    def _compute(self, first: int, last: int, rng: np.random.Generator) -> Floats:
        """Return the factor of each rank's computation: [steps, ranks]."""
        scene, job = self.scene, self.scene.job
        compute = scene.compute[first:last].copy().reshape(last - first, len(self.roles), job.procs_per_node)
        for role, node in enumerate(self.roles):
            if node < scene.nodes:
                compute[:, role] *= scene.slowed[first:last, node]
        factor: Floats = compute.reshape(last - first, -1)
        factor = factor * np.exp(job.noise * rng.standard_normal(factor.shape))
        return factor * np.exp(job.common_noise * rng.standard_normal((last - first, 1)))

    def _played(self, calls: list[Call], compute: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Let all ranks make the calls of a step: when each began and ended, s: [calls, ranks] each."""
        scatter = np.exp(self.scene.job.pass_noise * rng.standard_normal((len(calls), len(compute))))
        members = self.scene.job.parallelism.tensor
        starts, ends, clocks = [], [], self._clocks
        for call, noise in zip(calls, scatter, strict=True):
            came = clocks + call.seconds * compute * noise
            starts.append(came)
            if call.comm == DATA:
                # The all-reduces of a replica's members differ by their shard alone, and end at the same time.
                clocks = np.full(len(came), came.max() + _AVERAGING_SECONDS / _AVERAGES)
            else:
                clocks = np.repeat(came.reshape(-1, members).max(axis=1), members) + _CALL_SECONDS
            ends.append(clocks)
        self._clocks = clocks
        return np.array(starts), np.array(ends)


def _calls(scene: Scene) -> list[Call]:
    """Return the calls of a step: layers of two sizes in turn."""
    forward, backward = scene.job.forward_seconds, scene.job.backward_seconds
    assert isinstance(forward, float)
    assert isinstance(backward, float)
    sizes = [(1 << 20) * (1 + layer % 2) for layer in range(_LAYERS)]
    calls = [Call(Op.ALL_GATHER, TENSOR, size, forward / _LAYERS) for size in sizes]
    for size in reversed(sizes):
        calls.append(Call(Op.ALL_GATHER, TENSOR, size, 0.0))
        calls.append(Call(Op.REDUCE_SCATTER, TENSOR, size, backward / _LAYERS))
    return [*calls, Call(Op.ALL_REDUCE, TENSOR, 4, 0.005)]


def _averages() -> list[Call]:
    return [Call(Op.ALL_REDUCE, DATA, 1 << (24 + number), 0.002) for number in range(_AVERAGES)]


ROUND_STEPS: Final = {"rounds of 20 steps": 20, "rounds of 50 steps": 50, "rounds of 80 steps": 80}
"""The steps of a round, by the kind of job."""
