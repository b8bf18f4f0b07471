"""Jobs whose ranks also wait for each other where no call is seen: records, CPU times and stacks of every rank.

In each iteration a rank does its *shared part*, then its gradients are reduced layer by layer (blocking calls, as with
Gloo). Ranks wait for each other at the shared part:

- *barrier*: each waits until all have done it, as with a counter in a store.
- *lock*: one rank after the other does it, in an order that is drawn each time, as with a lock on a file.
- *queue*: likewise, in the order of the ranks each time.

What a fault or the job itself adds to the shared part is computed, or slept, as with a slow file system.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from evaluation.real_jobs.scene import Scene
from evaluation.real_jobs.worlds.rounds import Call, Steps, StepWriter
from evaluation.real_jobs.worlds.world import START_UNIX_NS
from falcon_core.wire.ring import Op, RecordArray
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.records import DATA, Ints

_BLOCK = 64  # iterations
_LAYERS = 4
_LAYER_SECONDS, _CALL_SECONDS = 0.1, 0.02
_SHARED_SECONDS = {"barrier": 0.3, "lock": 0.04, "queue": 0.04}


class Shared(NamedTuple):
    """What ranks do where they wait for each other unseen."""

    how: str  # "barrier", "lock" or "queue"
    sleeps: bool  # what is added to it is no computation


class Stood(NamedTuple):
    """How long ranks were at each place of the program since the generation began, s: [ranks] each."""

    ran: Floats  # CPU time, wherever it was
    waiting: Floats  # in the unseen wait
    shared: Floats
    elsewhere: Floats


class UnseenWorld:
    """A job in motion. ``roles``: the node of each pod; nodes beyond the scene's are healthy spares."""

    def __init__(self, scene: Scene, seed: list[int], shared: Shared) -> None:
        self.scene, self._seed, self._shared = scene, seed, shared
        self.roles = list(range(scene.nodes))
        self.now_ns = 0
        self.writers: list[StepWriter] = []
        self._block_first = 0
        self._stood: list[Floats] = []  # at the end of each iteration of the block: [4, ranks]

    def begin(self) -> list[RecordArray]:
        """Begin a generation with new rings: the first records of each rank."""
        world = self.scene.job.parallelism.world
        self.writers = [StepWriter(self.scene, rank) for rank in range(world)]
        self._stood = [np.zeros((4, world))]
        return [writer.introductions(self.now_ns) for writer in self.writers]

    def unix_offset_ns(self, rank: int) -> int:
        """Return what turns the rank's ring clock into wall time."""
        return START_UNIX_NS - self.writers[rank].offset_ns

    def asides(self, _: int) -> list[RecordArray]:
        """Return the calls before an iteration that belong to no iteration: there are none."""
        return []

    def stood(self, made: int) -> Stood:
        """Return where the ranks were in all iterations before iteration ``made`` of the newest block."""
        return Stood(*self._stood[made - self._block_first])

    def block(self, first: int) -> tuple[Steps, Ints]:
        """Draw the iterations from ``first`` on. The second value is when each begins, ns: [iterations]."""
        scene, world = self.scene, self.scene.job.parallelism.world
        last = min(first + _BLOCK, scene.iterations)
        rng = np.random.default_rng([*self._seed, first])
        self._block_first, self._stood = first, [self._stood[-1]]
        clock = self.now_ns / 1e9
        begins, calls, starts, ends = [], [], [], []
        for factor in self._factors(first, last):
            begins.append(clock)
            made, began, ended = self._play(clock, factor, rng)
            calls.append(made)
            starts.append(began)
            ends.append(ended)
            clock = float(ended[-1].max())
        world_ends = np.array([*begins[1:], clock])
        block = Steps(
            seconds=world_ends - np.array(begins),
            begins=np.repeat(np.array(begins)[:, np.newaxis], world, axis=1),
            calls=calls,
            starts=starts,
            ends=ends,
            first=first,
            world_ends=world_ends,
        )
        return block, np.rint(np.array(begins) * 1e9).astype(np.int64)

    def _factors(self, first: int, last: int) -> Floats:
        """Return the factor of each rank's shared part: [iterations, ranks]."""
        scene, procs = self.scene, self.scene.job.procs_per_node
        factors = scene.compute[first:last].copy().reshape(last - first, len(self.roles), procs)
        for role, node in enumerate(self.roles):
            if node < scene.nodes:
                factors[:, role] *= scene.slowed[first:last, node]
        return np.asarray(factors.reshape(last - first, -1))

    def _play(self, begin: float, factor: Floats, rng: np.random.Generator) -> tuple[list[Call], Floats, Floats]:
        """Play an iteration: its calls, and when they begin and end at each rank, s: [calls, ranks] each."""
        job = self.scene.job

        def computed(seconds: float) -> Floats:
            return np.asarray(seconds * np.exp(job.noise * rng.standard_normal(len(factor))))

        usual = computed(_SHARED_SECONDS[self._shared.how])
        whole = usual * factor
        if self._shared.how == "barrier":
            waited = whole.max() - whole
        else:
            order = rng.permutation(len(factor)) if self._shared.how == "lock" else np.arange(len(factor))
            waited = np.empty(len(factor))
            waited[order] = np.concatenate(([0.0], np.cumsum(whole[order])[:-1]))
        ready = begin + whole + waited
        ran = usual if self._shared.sleeps else whole
        calls, starts, ends = [], [], []
        elsewhere = np.zeros(len(factor))
        for layer in range(_LAYERS):
            layer_seconds = computed(_LAYER_SECONDS)
            start = ready + layer_seconds
            ran, elsewhere = ran + layer_seconds, elsewhere + layer_seconds
            ready = np.full(len(factor), start.max() + _CALL_SECONDS)
            elsewhere = elsewhere + ready - start
            calls.append(Call(Op.ALL_REDUCE, DATA, (1 << 20) + 4096 * layer, 0.0))
            starts.append(start)
            ends.append(ready)
        self._stood.append(self._stood[-1] + np.array([ran, waited, whole, elsewhere]))
        return calls, np.array(starts), np.array(ends)


SHARED: Final = {
    "store barrier": Shared("barrier", sleeps=False),
    "store barrier, slept": Shared("barrier", sleeps=True),
    "file lock": Shared("lock", sleeps=False),
    "file lock, slept": Shared("lock", sleeps=True),
    "file lock in order, slept": Shared("queue", sleeps=True),
}
"""What ranks do where they wait for each other unseen, by the kind of job."""
