"""Jobs whose calls run while ranks compute, as with DDP and FSDP: records of every rank, block after block.

- *DDP*: each of six buckets is reduced as soon as its part of the backward pass is done. The next iteration begins when
  the last is.
- *FSDP*: each layer's parameters are gathered one layer ahead, and its gradients are reduced while the layer before
  computes. In the backward pass both share a stream.

Calls of a rank run one after the other. A call begins when its rank is ready and its previous call is over. It ends at
all ranks together. So the calls of a rank that waits for a slow one last longer, and cover its own computation.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from evaluation.real_jobs.scene import Scene
from evaluation.real_jobs.worlds.rounds import Call, Steps, StepWriter
from evaluation.real_jobs.worlds.world import START_UNIX_NS
from falcon_core.wire.ring import Op, RecordArray
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.records import DATA, Ints

_BLOCK = 64  # iterations
_FORWARD_SECONDS, _BACKWARD_SECONDS, _OPTIMIZER_SECONDS = 0.25, 0.5, 0.02
_TRANSFER_SECONDS = 0.3  # of all calls of an iteration
_LAUNCH_SECONDS = 1e-5  # between two calls of a stream
_BUCKETS = 6


class _Iteration:
    """One iteration of all ranks, while its calls are made."""

    def __init__(self, begin: float, factor: Floats, scatter: float, rng: np.random.Generator) -> None:
        """Begin at ``begin`` [s]. ``factor``: of each rank's computation: [ranks]. ``scatter``: of each pass."""
        self.calls: list[Call] = []
        self.starts: list[Floats] = []
        self.ends: list[Floats] = []
        self.ready = np.full(len(factor), begin)  # when each rank has computed what there is so far, s
        self._free = self.ready  # when each rank's stream is
        self._factor, self._scatter, self._rng = factor, scatter, rng

    def compute(self, seconds: float) -> None:
        """Let all ranks compute."""
        noise = np.exp(self._scatter * self._rng.standard_normal(len(self.ready)))
        self.ready = self.ready + seconds * self._factor * noise

    def call(self, op: Op, size: int, seconds: float) -> Floats:
        """Make a call, and return when it ends at each rank, s: [ranks]."""
        start = np.maximum(self.ready, self._free + _LAUNCH_SECONDS)
        self._free = np.full(len(start), start.max() + seconds)
        self.calls.append(Call(op, DATA, size, 0.0))
        self.starts.append(start)
        self.ends.append(self._free)
        return self._free

    def wait(self, end: Floats) -> None:
        """Let all ranks wait for a call: ``end`` [ranks]."""
        self.ready = np.maximum(self.ready, end)


class OverlappedWorld:
    """A job in motion. ``roles``: the node of each pod; nodes beyond the scene's are healthy spares."""

    def __init__(self, scene: Scene, seed: list[int], layers: int) -> None:
        """Take the ``layers`` of a job with FSDP; 0: the job has DDP."""
        self.scene, self._seed, self._layers = scene, seed, layers
        self.roles = list(range(scene.nodes))
        self.now_ns = 0
        self.writers: list[StepWriter] = []

    def begin(self) -> list[RecordArray]:
        """Begin a generation with new rings: the first records of each rank."""
        self.writers = [StepWriter(self.scene, rank) for rank in range(self.scene.job.parallelism.world)]
        return [writer.introductions(self.now_ns) for writer in self.writers]

    def unix_offset_ns(self, rank: int) -> int:
        """Return what turns the rank's ring clock into wall time."""
        return START_UNIX_NS - self.writers[rank].offset_ns

    def asides(self, _: int) -> list[RecordArray]:
        """Return the calls before an iteration that belong to no iteration: there are none."""
        return []

    def block(self, first: int) -> tuple[Steps, Ints]:
        """Draw the iterations from ``first`` on. The second value is when each begins, ns: [iterations]."""
        last = min(first + _BLOCK, self.scene.iterations)
        rng = np.random.default_rng([*self._seed, first])
        clock = self.now_ns / 1e9
        begins, played = [], []
        for factor in self._factors(first, last, rng):
            begins.append(clock)
            iteration = _Iteration(clock, factor, self.scene.job.pass_noise, rng)
            played.append(iteration)
            clock = self._play(iteration)
        world_ends = np.array([*begins[1:], clock])
        seconds = world_ends - np.array(begins)
        at = np.repeat(np.array(begins)[:, np.newaxis], self.scene.job.parallelism.world, axis=1)
        block = Steps(
            seconds=seconds,
            begins=at,
            calls=[each.calls for each in played],
            starts=[np.array(each.starts) for each in played],
            ends=[np.array(each.ends) for each in played],
            first=first,
            world_ends=world_ends,
        )
        return block, np.rint(np.array(begins) * 1e9).astype(np.int64)

    def _factors(self, first: int, last: int, rng: np.random.Generator) -> Floats:
        """Return the factor of each rank's computation: [iterations, ranks]."""
        scene, job = self.scene, self.scene.job
        compute = scene.compute[first:last].copy().reshape(last - first, len(self.roles), job.procs_per_node)
        for role, node in enumerate(self.roles):
            if node < scene.nodes:
                compute[:, role] *= scene.slowed[first:last, node]
        factor: Floats = compute.reshape(last - first, -1)
        factor = factor * np.exp(job.noise * rng.standard_normal(factor.shape))
        return factor * np.exp(job.common_noise * rng.standard_normal((last - first, 1)))

    def _play(self, iteration: _Iteration) -> float:
        """Let all ranks play an iteration, and return when the last of them ends it, s."""
        iteration.compute(_OPTIMIZER_SECONDS)
        if self._layers:
            _sharded(iteration, self._layers)
        else:
            iteration.compute(_FORWARD_SECONDS)
            for bucket in range(_BUCKETS):
                iteration.compute(_BACKWARD_SECONDS / _BUCKETS)
                iteration.call(Op.ALL_REDUCE, (25 << 20) + 4096 * bucket, _TRANSFER_SECONDS / _BUCKETS)
        iteration.wait(iteration.ends[-1])
        return float(iteration.ready.max())


def _sharded(iteration: _Iteration, layers: int) -> None:
    seconds = _TRANSFER_SECONDS / (3 * layers - 1)
    sizes = [(8 << 20) + 4096 * layer for layer in range(layers)]
    there = iteration.call(Op.ALL_GATHER, sizes[0], seconds)
    for layer in range(layers):
        iteration.wait(there)
        if layer + 1 < layers:
            there = iteration.call(Op.ALL_GATHER, sizes[layer + 1], seconds)
        iteration.compute(_FORWARD_SECONDS / layers)
    for layer in reversed(range(layers)):
        if layer:
            there = iteration.call(Op.ALL_GATHER, sizes[layer - 1], seconds)
        iteration.compute(_BACKWARD_SECONDS / layers)
        iteration.call(Op.REDUCE_SCATTER, sizes[layer], seconds)
        iteration.wait(there)


LAYERS: Final = {"overlapped DDP": 0, "overlapped FSDP": 24, "shallow FSDP": 8}
"""The layers that are sharded, by the kind of job; 0: none."""
