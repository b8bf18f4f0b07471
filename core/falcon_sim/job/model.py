"""Compute the iteration times of a hybrid-parallel job: stages, replicas, collectives and noise.

Many iterations are computed at once. Ranks are numbered as core's default layout numbers them (tensor fastest, then
data, pipeline slowest), so arrays by rank have the shape [pipeline, data, tensor]. One iteration: every replica plays
its schedule, the replicas' gradients are reduced stage by stage, a small all-reduce over the world (the gradient's
norm) ends it for all ranks.

A fault changes computation by ``compute`` (a factor for each rank), and communication by ``links`` (a factor for each
pair of nodes; a collective is as fast as the slowest link of its ring, and a link within a node is never slow).

Noise is drawn for each rank and iteration, for all ranks of an iteration together, for each micro-batch (its work: long
sequences take long in every pass and on every stage) and for each pass of each rank. A pass of rank r lasts base × r's
factor in the iteration × the micro-batch's work × the pass's noise. Where micro-batches differ, the longest passes meet
others at different stages, so that a pipeline takes longer than the mean of its passes suggests.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from falcon_sim.job.pipeline import Floats, Pass, Played, Schedule, play
from falcon_sim.job.scenario import Job, by_stage, schedule_of

NORM_SECONDS = 0.001  # the all-reduce of the gradient's norm


class Conditions(msgspec.Struct, frozen=True):
    """The machines under the job for a while, and the work that the job gives them."""

    compute: Floats  # [world] or [iterations, world]: factor of the rank's computation, 1 is healthy
    links: Floats  # [nodes, nodes]: factor between two of the job's nodes, by role
    counts: tuple[int, ...]  # micro-batches of each replica
    work: Floats | None = None  # [iterations, data]: work of the replica's micro-batches, 1 is usual; None: all 1


class Draws(msgspec.Struct, frozen=True):
    """What differs from micro-batch to micro-batch and from pass to pass, for replicas with the same schedule."""

    schedule: Schedule
    work: Floats | None = None  # [micro-batches, iterations, replicas]; None: all 1
    scatter: Floats | None = None  # noise of passes: [steps, iterations, replicas, tensor]; None: all 1

    @property
    def alike(self) -> bool:
        """Return whether all passes of a stage and direction take equally long."""
        return self.work is None and self.scatter is None

    def factor(self, step: int) -> Floats:
        """Return the factor on a step's computation: [iterations, replicas, tensor], or axes of length 1."""
        factor = np.ones((1, 1, 1))
        if self.work is not None:
            factor = factor * self.work[self.schedule.steps[step].work.microbatch][:, :, None]
        return factor if self.scatter is None else factor * self.scatter[step]


class Group(msgspec.Struct, frozen=True):
    """Replicas with equally many micro-batches."""

    schedule: Schedule
    replicas: list[int]
    played: Played  # arrays [steps, iterations, replicas of the group]
    draws: Draws


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
        self.rng = rng
        self._schedules: dict[int, Schedule] = {}
        self.layouts: dict[tuple[int, int], Any] = {}  # of the records, by micro-batches and stage

    @property
    def even(self) -> tuple[int, ...]:
        """Return the usual share of micro-batches of each replica."""
        return (self.job.microbatches,) * self.job.parallelism.data

    @property
    def shareable(self) -> bool:
        """Return whether replicas of the job may have different numbers of micro-batches."""
        job = self.job
        if job.parallelism.expert > 1 or job.parallelism.data < 2:
            return False  # experts meet in every pass: all replicas need as many passes
        return job.schedule == "1F1B" or job.chunks == 1  # interleaved rounds allow multiples of the stages alone

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
        job, rng = self.job, self.rng
        # Log-normal, so that times stay positive and factors multiply.
        noise = np.exp(job.noise * rng.standard_normal((iterations, *self.shape)))
        compute = conditions.compute.reshape(-1, *self.shape) * noise
        if job.common_noise > 0:
            compute *= np.exp(job.common_noise * rng.standard_normal((iterations, 1, 1, 1)))
        if job.spikes > 0:
            hit = np.flatnonzero(rng.random(iterations) < job.spikes)
            flat = compute.reshape(iterations, -1)
            flat[hit, rng.integers(flat.shape[1], size=len(hit))] *= job.spike_factor
        wire = np.exp(job.transfer_noise * rng.standard_normal((iterations, *self.shape[:2])))
        hops = self._hops(conditions.links)
        experts = self._expert_links(conditions.links)
        groups: list[Group] = []
        finished = np.empty((iterations, *self.shape[:2]))
        # Replicas with the same number of micro-batches have the same schedule, and are played together.
        for count in sorted(set(conditions.counts)):
            replicas = [place for place, own in enumerate(conditions.counts) if own == count]
            schedule = self.schedule(count)
            draws = self._draws(schedule, conditions, iterations, replicas)
            played = self._play(draws, compute[:, :, replicas], wire[:, :, replicas], hops[:, replicas], experts)
            groups.append(Group(schedule, replicas, played, draws))
            for stage in range(self.shape[0]):
                finished[:, stage, replicas] = played.ends[schedule.of_stage(stage)[-1]]
        reduced = self._reduce(finished, conditions.links, wire)
        seconds = reduced.max(axis=(1, 2)) + NORM_SECONDS + job.optimizer_seconds
        return Block(seconds, compute, groups, finished, reduced)

    def _draws(self, schedule: Schedule, conditions: Conditions, iterations: int, replicas: list[int]) -> Draws:
        """Draw the micro-batches' work and the passes' noise; nothing is drawn for noise of 0."""
        job, given = self.job, conditions.work
        work = scatter = None
        if given is not None or job.work_noise > 0:
            work = np.ones((schedule.microbatches, iterations, len(replicas)))
        if work is not None and given is not None:
            work *= given[:, replicas]
        if work is not None and job.work_noise > 0:
            work *= np.exp(job.work_noise * self.rng.standard_normal(work.shape))
        if job.pass_noise > 0:
            shape = (len(schedule.steps), iterations, len(replicas), self.shape[2])
            scatter = np.exp(job.pass_noise * self.rng.standard_normal(shape))
        return Draws(schedule, work, scatter)

    def _play(self, draws: Draws, compute: Floats, wire: Floats, hops: Floats, experts: Floats) -> Played:
        """Play a schedule. ``compute``: [iterations, pipeline, replicas, tensor]."""
        job, schedule = self.job, draws.schedule
        chunks = schedule.chunks
        places = {step.work: place for place, step in enumerate(schedule.steps)}
        slowest = compute.max(axis=3)  # tensor ranks meet in every pass
        times = {
            (stage, forward): (self.forward if forward else self.backward)[stage] / chunks * slowest[:, stage]
            + (job.tensor_seconds + job.expert_seconds * experts[stage]) / chunks
            for stage in range(schedule.stages)
            for forward in (True, False)
        }

        def duration(work: Pass) -> Floats:
            usual: Floats = times[work.stage, work.forward]
            # Usually all passes are alike; then one array serves them all.
            if draws.alike:
                return usual
            base = (self.forward if work.forward else self.backward)[work.stage] / chunks
            met = (compute[:, work.stage] * draws.factor(places[work])).max(axis=2)
            moved = (job.tensor_seconds + job.expert_seconds * experts[work.stage]) / chunks
            lasts: Floats = base * met + moved * self.payload(draws, work.microbatch)
            return lasts

        def transfer(source: Pass, work: Pass) -> Floats:
            edge = min(source.stage, work.stage) if abs(source.stage - work.stage) == 1 else schedule.stages - 1
            moved: Floats = job.transfer_seconds * hops[edge] * wire[:, work.stage]
            sized: Floats = moved * self.payload(draws, work.microbatch)
            return sized

        lockstep = job.parallelism.expert
        return play(schedule, duration, transfer, lockstep=lockstep)

    def payload(self, draws: Draws, microbatch: int) -> Floats:
        """Return the factor on a micro-batch's payloads: [iterations, replicas], or [1, 1] where all are alike."""
        if self.job.sizes == "Fixed" or draws.work is None:
            return np.ones((1, 1))
        factor: Floats = draws.work[microbatch]
        return factor

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
