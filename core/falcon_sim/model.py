"""How long the iterations of a hybrid-parallel job take: stages, replicas, collectives, noise; many iterations at once.

Ranks are numbered as core's default layout numbers them (tensor fastest, then data, pipeline slowest), so arrays by
rank have the shape [pipeline, data, tensor]. One iteration: every replica plays its schedule, the replicas' gradients
are reduced stage by stage, a small all-reduce over the world (the gradient's norm) ends it for everybody.

What a fault does: computation by ``compute`` (a factor for each rank), communication by ``links`` (a factor for each
pair of nodes; a collective is as fast as the slowest link of its ring, and a link within a node is never slow).
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from falcon_sim.pipeline import Floats, Pass, Played, Schedule, play
from falcon_sim.scenario import Job, by_stage, schedule_of

NORM_SECONDS = 0.001  # the all-reduce of the gradient's norm


class Conditions(msgspec.Struct, frozen=True):
    """The machines under the job for a while."""

    compute: Floats  # [world]: factor of the rank's computation, 1 is healthy
    links: Floats  # [nodes, nodes]: factor between two of the job's nodes, by role
    counts: tuple[int, ...]  # micro-batches of each replica


class Group(msgspec.Struct, frozen=True):
    """Replicas with equally many micro-batches."""

    schedule: Schedule
    replicas: list[int]
    played: Played  # arrays [steps, iterations, replicas of the group]


class Block(msgspec.Struct, frozen=True):
    """Some iterations under the same conditions; seconds since the iteration's own begin."""

    seconds: Floats  # [iterations]
    compute: Floats  # [iterations, pipeline, data, tensor]: each rank's factor, noise included
    groups: list[Group]
    finished: Floats  # [iterations, pipeline, data]: passes done
    reduced: Floats  # [iterations, pipeline, tensor]: gradients reduced

    def __len__(self) -> int:
        return int(self.seconds.shape[0])


class JobModel:
    """The model of a job, which draws its iterations."""

    def __init__(self, job: Job, rng: np.random.Generator) -> None:
        self.job = job
        degrees = job.parallelism
        self.shape = (degrees.pipeline, degrees.data, degrees.tensor)
        self.forward = np.array(by_stage(job, job.forward_seconds))
        self.backward = np.array(by_stage(job, job.backward_seconds))
        self.node = (np.arange(degrees.world) // job.procs_per_node).reshape(self.shape)
        self._rng = rng
        self._schedules: dict[int, Schedule] = {}
        self.layouts: dict[tuple[int, int], Any] = {}  # of the records, by micro-batches and stage

    @property
    def even(self) -> tuple[int, ...]:
        """Return the usual share of micro-batches of each replica."""
        return (self.job.microbatches,) * self.job.parallelism.data

    def healthy(self) -> Conditions:
        """Return the conditions of healthy machines."""
        nodes = int(self.node.max()) + 1
        return Conditions(np.ones(self.job.parallelism.world), np.ones((nodes, nodes)), self.even)

    def schedule(self, microbatches: int) -> Schedule:
        """Return the schedule of a replica with so many micro-batches."""
        if microbatches not in self._schedules:
            self._schedules[microbatches] = schedule_of(self.job, microbatches)
        return self._schedules[microbatches]

    def block(self, iterations: int, conditions: Conditions) -> Block:
        """Draw the next iterations."""
        job, rng = self.job, self._rng
        noise = np.exp(job.noise * rng.standard_normal((iterations, *self.shape)))
        compute = conditions.compute.reshape(self.shape) * noise
        if job.spikes > 0:
            hit = np.flatnonzero(rng.random(iterations) < job.spikes)
            flat = compute.reshape(iterations, -1)
            flat[hit, rng.integers(flat.shape[1], size=len(hit))] *= job.spike_factor
        slowest = compute.max(axis=3)  # [iterations, pipeline, data]: tensor ranks meet in every pass
        wire = np.exp(job.transfer_noise * rng.standard_normal((iterations, *self.shape[:2])))
        hops = self._hops(conditions.links)
        experts = self._expert_links(conditions.links)
        groups: list[Group] = []
        finished = np.empty((iterations, *self.shape[:2]))
        for count in sorted(set(conditions.counts)):
            replicas = [place for place, own in enumerate(conditions.counts) if own == count]
            schedule = self.schedule(count)
            played = self._play(schedule, slowest[:, :, replicas], wire[:, :, replicas], hops[:, replicas], experts)
            groups.append(Group(schedule, replicas, played))
            for stage in range(self.shape[0]):
                finished[:, stage, replicas] = played.ends[schedule.of_stage(stage)[-1]]
        reduced = self._reduce(finished, conditions.links, wire)
        seconds = reduced.max(axis=(1, 2)) + NORM_SECONDS + job.optimizer_seconds
        return Block(seconds, compute, groups, finished, reduced)

    def _play(self, schedule: Schedule, slowest: Floats, wire: Floats, hops: Floats, experts: Floats) -> Played:
        job = self.job
        chunks = schedule.chunks
        times = {
            (stage, forward): (self.forward if forward else self.backward)[stage] / chunks * slowest[:, stage]
            + (job.tensor_seconds + job.expert_seconds * experts[stage]) / chunks
            for stage in range(schedule.stages)
            for forward in (True, False)
        }

        def transfer(source: Pass, work: Pass) -> Floats:
            edge = min(source.stage, work.stage) if abs(source.stage - work.stage) == 1 else schedule.stages - 1
            moved: Floats = job.transfer_seconds * hops[edge] * wire[:, work.stage]
            return moved

        lockstep = job.parallelism.expert
        return play(schedule, lambda work: times[work.stage, work.forward], transfer, lockstep=lockstep)

    def _hops(self, links: Floats) -> Floats:
        """Return [pipeline, data]: the factor from each stage to the next (the last's: to the first)."""
        following = np.roll(self.node, -1, axis=0)
        factors: Floats = np.where(self.node == following, 1.0, links[self.node, following]).max(axis=2)
        return factors

    def _expert_links(self, links: Floats) -> Floats:
        """Return [pipeline]: the factor of the slowest link between replicas that share experts."""
        expert = self.job.parallelism.expert
        if expert == 1:
            return np.ones(self.shape[0])
        return np.array([max(self.ring(links, group.ravel()) for group in stage) for stage in self._experts()])

    def _experts(self) -> list[list[np.ndarray]]:
        expert = self.job.parallelism.expert
        return [[stage[at : at + expert] for at in range(0, self.shape[1], expert)] for stage in self.node]

    @staticmethod
    def ring(links: Floats, nodes: np.ndarray) -> float:
        """Return the slowest link of a ring over these nodes."""
        path = [int(node) for place, node in enumerate(nodes) if place == 0 or node != nodes[place - 1]]
        if len(path) > 1 and path[0] == path[-1]:
            path.pop()
        if len(path) < 2:
            return 1.0
        return max(float(links[a, b]) for a, b in zip(path, path[1:] + path[:1], strict=True))

    def _reduce(self, finished: Floats, links: Floats, wire: Floats) -> Floats:
        stages, replicas, tensor = self.shape
        done = finished.max(axis=2)[:, :, None]
        if replicas == 1:
            return np.repeat(done, tensor, axis=2)
        factors = np.array([[self.ring(links, self.node[s, :, t]) for t in range(tensor)] for s in range(stages)])
        reduced: Floats = done + self.job.reduce_seconds * factors * wire[:, :, :1]
        return reduced
