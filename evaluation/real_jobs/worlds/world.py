"""The machines and rings of a scene: records of every rank, block after block, for the nodes that the job is on now.

The records of an iteration depend on the scene, the nodes and where the block begins. So two codes get the same records
until one of them changes the nodes.
"""

from __future__ import annotations

import numpy as np

from evaluation.real_jobs.scene import SAMPLE_EVERY, Scene
from falcon_core.wire.ring import RecordArray
from falcon_sim.job.model import Block, Conditions, JobModel
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.records import Ints, RingWriter

START_UNIX_NS = 1_800_000_000_000_000_000
_BLOCK = 64  # iterations, at most
_EVALUATION_CALLS = 30


class World:
    """A job in motion. ``roles``: the node of each replica; nodes beyond the scene's are healthy spares."""

    def __init__(self, scene: Scene, seed: list[int]) -> None:
        self.scene, self._seed = scene, seed
        self._model = JobModel(scene.job, np.random.default_rng(seed))
        self.roles = list(range(scene.nodes))
        self.now_ns = 0
        self.writers: list[RingWriter] = []

    def begin(self) -> list[RecordArray]:
        """Begin a generation with new rings: the first records of each rank."""
        ranks = range(self.scene.job.parallelism.world)
        self.writers = [RingWriter(self._model, rank, SAMPLE_EVERY) for rank in ranks]
        return [writer.introductions(self.now_ns) for writer in self.writers]

    def unix_offset_ns(self, rank: int) -> int:
        """Return what turns the rank's ring clock into wall time."""
        return START_UNIX_NS - self.writers[rank].offset_ns

    def asides(self, iteration: int) -> list[RecordArray]:
        """Let the pause before the iteration pass: the calls that each rank makes in it."""
        seconds = float(self.scene.pause[iteration])
        begin, self.now_ns = self.now_ns, self.now_ns + round(seconds * 1e9)
        if not self.scene.evaluated[iteration]:
            return []
        bounds = np.linspace(begin, self.now_ns, _EVALUATION_CALLS + 1).astype(np.int64)
        return [writer.aside(bounds[1:] - 2_000_000, bounds[1:]) for writer in self.writers]

    def block(self, first: int) -> tuple[Block, Ints]:
        """Draw the iterations from ``first`` on, up to the next change of what a block has in common.

        The second value is when each begins, ns of the world's clock: [iterations].
        """
        scene = self.scene
        last = min(first + _BLOCK, scene.iterations)
        later = np.arange(first + 1, last)
        differs = scene.microbatches[later] != scene.microbatches[first]
        differs |= (scene.links[later] != scene.links[first]).any(axis=1)
        differs |= scene.pause[later] > 0
        if differs.any():
            last = int(later[differs][0])
        rows = slice(first, last)
        count = int(scene.microbatches[first])
        self._model.rng = np.random.default_rng([*self._seed, first])
        block = self._model.block(last - first, self._conditions(rows, count))
        begins = self.now_ns + np.concatenate(([0.0], np.cumsum(block.seconds)[:-1])) * 1e9
        return block, begins.astype(np.int64)

    def _conditions(self, rows: slice, count: int) -> Conditions:
        """Put the job's own load (by rank) on the nodes of now (by node)."""
        scene = self.scene
        compute = scene.compute[rows].copy().reshape(-1, len(self.roles), scene.job.procs_per_node)
        links: Floats = np.ones((len(self.roles), len(self.roles)))
        for role, node in enumerate(self.roles):
            if node < scene.nodes:
                compute[:, role] *= scene.slowed[rows, node]
                factor = scene.links[rows.start, node]
                links[role] = np.maximum(links[role], factor)
                links[:, role] = np.maximum(links[:, role], factor)
        work = scene.work[rows]
        return Conditions(
            compute.reshape(len(compute), -1),
            links,
            (count,) * scene.data,
            None if (work == 1).all() else work,
        )
