"""What happens to a job, iteration by iteration: plain arrays that know nothing of what measures them.

A *pattern* says which kind of job runs, which *effects* its work has (the job's own doing, by rank) and which *faults*
its machines have (by node). ``Scene`` holds all of it for one seed. What belongs to the job stays with the rank, what
belongs to a machine with the node: when a node is replaced, its faults leave with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from falcon_sim.job.scenario import Degrees, Job

Calls = Literal["Blocking", "Enqueued"]
Level = Literal["low", "high"]
PROCESSES = {8: 2, 16: 2, 128: 8}  # ranks of a node, by the job's size
NOISE = {"low": (0.015, 0.0), "high": (0.04, 0.05)}  # of a rank; of all ranks together
SAMPLE_EVERY = 20  # enqueued calls: iterations of which one is timed on the device
Kind = Literal[
    "data parallel",
    "accumulating",
    "recommendation",
    "dropless experts",
    "padded experts",
    "packed sequences",
    "3D",
    "variable pipeline",
    "3D, four replicas",
    "rounds of 20 steps",
    "rounds of 50 steps",
    "rounds of 80 steps",
    "overlapped DDP",
    "overlapped FSDP",
    "shallow FSDP",
    "much communication",
    "store barrier",
    "store barrier, slept",
    "file lock",
    "file lock, slept",
    "file lock in order, slept",
]


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A component with a fault: a node (one of its ranks or all of them), or a node's link."""

    node: int
    onset: int  # first slow iteration, from 0
    link: bool = False


class Scene:
    """All iterations of a job under one seed. Effects and faults write into the arrays."""

    def __init__(self, job: Job, iterations: int, rng: np.random.Generator) -> None:
        degrees = job.parallelism
        self.job, self.iterations, self.rng = job, iterations, rng
        self.nodes = degrees.world // job.procs_per_node
        self.compute = np.ones((iterations, degrees.world))  # by rank: the job's own
        self.work = np.ones(
            (iterations, degrees.data)
        )  # of a replica's micro-batches: time and, where they vary, sizes
        self.microbatches = np.full(iterations, job.microbatches)
        self.pause = np.zeros(iterations)  # seconds that all ranks stand still before it
        self.evaluated = np.zeros(iterations, dtype=np.bool_)  # before it, with calls of its own
        self.slowed = np.ones((iterations, self.nodes, job.procs_per_node))  # by node and process: the machines'
        self.links = np.ones((iterations, self.nodes))  # by node: all links of it
        self.broken: list[Broken] = []

    @property
    def data(self) -> int:
        return self.job.parallelism.data


Effect = Callable[[Scene], None]


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """A job and what happens to it."""

    name: str
    kind: Kind
    effects: tuple[Effect, ...] = ()
    faults: tuple[Effect, ...] = ()  # they name what they break; none: the job is healthy
    iterations: int = 1500
    calls: Calls = "Blocking"

    @property
    def healthy(self) -> bool:
        return not self.faults


def job_of(kind: Kind, world: int, calls: Calls, level: Level) -> Job:
    """Return the job: an iteration takes about a second where all is well."""
    noise, common = NOISE[level]
    small = world <= 16
    flat: dict[str, Any] = {
        "parallelism": Degrees(data=world),
        "microbatches": 1,
        "forward_seconds": 0.25,
        "backward_seconds": 0.5,
    }
    deep: dict[str, Any] = {
        "sizes": "ByWork",
        "microbatches": 8,
        "tensor_seconds": 0.003,
        "transfer_seconds": 0.003,
        "reduce_seconds": 0.1,
    }
    fields: dict[str, Any]
    match kind:
        case "data parallel":
            fields = {**flat, "buckets": 6, "reduce_seconds": 0.15}
        case "accumulating":
            fields = {**flat, "microbatches": 4, "forward_seconds": 0.07, "backward_seconds": 0.13, "buckets": 4}
        case "recommendation":
            fields = {
                **flat,
                "parallelism": Degrees(data=world, expert=world),
                "expert_seconds": 0.03,
                "work_noise": 0.1,
                "sizes": "ByWork",
                "buckets": 2,
            }
        case "dropless experts" | "padded experts":
            fields = {
                "parallelism": Degrees(data=world, expert=16),
                "microbatches": 4,
                "forward_seconds": 0.06,
                "backward_seconds": 0.12,
                "expert_seconds": 0.01,
            }
            if kind == "dropless experts":
                fields |= {"work_noise": 0.1, "sizes": "ByWork"}
        case "packed sequences":
            tensor = 2 if small else 8
            fields = {
                **deep,
                "parallelism": Degrees(tensor=tensor, data=world // tensor),
                "microbatches": 4,
                "forward_seconds": 0.07,
                "backward_seconds": 0.14,
                "work_noise": 0.12,
            }
        case "3D" | "variable pipeline":
            tensor, data = (2, 2) if small else (4, 8)
            fields = {**deep, "parallelism": Degrees(tensor=tensor, data=data, pipeline=4)}
            fields |= {"forward_seconds": 0.025, "backward_seconds": 0.05}
            if kind == "variable pipeline":
                fields["work_noise"] = 0.2
        case "3D, four replicas":
            tensor, data = (2, 4) if small else (4, 16)
            fields = {**deep, "parallelism": Degrees(tensor=tensor, data=data, pipeline=2)}
            fields |= {"forward_seconds": 0.03, "backward_seconds": 0.06}
        case "rounds of 20 steps" | "rounds of 50 steps" | "rounds of 80 steps":  # played by ``worlds.rounds``
            tensor = 4 if small else 8
            fields = {"parallelism": Degrees(tensor=tensor, data=world // tensor), "microbatches": 1}
            fields |= {"forward_seconds": 0.12, "backward_seconds": 0.24}
        case "overlapped DDP" | "overlapped FSDP" | "shallow FSDP":  # played by ``worlds.overlapped``
            fields = flat
        case "store barrier" | "store barrier, slept" | "file lock" | "file lock, slept" | "file lock in order, slept":
            fields = flat  # played by ``worlds.unseen``
        case "much communication":  # all of it while no rank computes
            fields = {**flat, "buckets": 6, "reduce_seconds": 0.75}
    return Job(
        name=kind,
        procs_per_node=PROCESSES[world],
        calls=calls,
        noise=noise,
        common_noise=common,
        pass_noise=2 * noise,
        **fields,
    )


def entropy(pattern: Pattern, world: int, level: Level, seed: int) -> list[int]:
    """Return what a case's random numbers are seeded with."""
    return [seed, world, zlib.crc32(pattern.name.encode()), ("low", "high").index(level)]


def scene_of(pattern: Pattern, world: int, level: Level, seed: int) -> Scene:
    """Draw a scene. The same arguments give the same scene."""
    rng = np.random.default_rng(entropy(pattern, world, level, seed))
    scene = Scene(job_of(pattern.kind, world, pattern.calls, level), pattern.iterations, rng)
    for effect in (*pattern.effects, *pattern.faults):
        effect(scene)
    return scene


def between(scene: Scene, first: int, last: int | None = None) -> slice:
    """Return these iterations, as far as the scene has them."""
    return slice(max(0, first), scene.iterations if last is None else min(last, scene.iterations))
