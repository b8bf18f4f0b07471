"""Describe the year's jobs: ten kinds, each in a small and in a large size, on 1,000 nodes.

No publication says how jobs of a cluster differ; every figure here is assumed, within what ``docs/signals.md`` and the
issues of real jobs describe. The nodes of all jobs and their spares are 1,000.
"""

from __future__ import annotations

from typing import Final

import msgspec

from falcon_sim.job.scenario import Cluster, Degrees, Job

replace = msgspec.structs.replace


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of job: what it computes, and how its healthy ranks differ from each other and from time to time."""

    name: str
    job: Job
    spread: float = 0.02  # of the ranks' work: standard deviation of its logarithm, the same all year
    noise: float = 0.01  # of a rank's computation: standard deviation of its logarithm
    correlation: float = 0.0  # of that noise from an iteration to the next
    pause_every: int = 0  # iterations from a pause of all ranks to the next (a checkpoint or an evaluation); 0: none
    pause_seconds: float = 0.0


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the fleet."""

    name: str
    kind: Kind
    number: int  # among the fleet's jobs: part of every seed
    cluster: Cluster

    @property
    def nodes(self) -> int:
        return self.kind.job.parallelism.world // self.kind.job.procs_per_node


def _job(data: int, pipeline: int = 1, tensor: int = 1, expert: int = 1, **times: float) -> Job:
    degrees = Degrees(data=data, pipeline=pipeline, tensor=tensor, expert=expert)
    return Job(parallelism=degrees, procs_per_node=tensor, noise=0.0, reports_checkpoints=True, **times)  # type: ignore[arg-type]


def _kind(name: str, small: Job, large: Job, **rest: float) -> tuple[Kind, Kind]:
    return Kind(name=name, job=small, **rest), Kind(name=name, job=large, **rest)  # type: ignore[arg-type]


_PLAIN = {"forward_seconds": 0.15, "backward_seconds": 0.3, "microbatches": 4, "reduce_seconds": 0.2}
_SHORT = {"forward_seconds": 0.03, "backward_seconds": 0.06, "microbatches": 4, "reduce_seconds": 0.04}
_LONG = {"forward_seconds": 1.2, "backward_seconds": 2.4, "microbatches": 8, "reduce_seconds": 1.5}
_RARE = {"forward_seconds": 0.3, "backward_seconds": 0.6, "microbatches": 64, "reduce_seconds": 4.0}
_STAGES = {"forward_seconds": 0.2, "backward_seconds": 0.4, "microbatches": 8, "reduce_seconds": 0.4}

KINDS: Final[tuple[tuple[Kind, Kind], ...]] = (
    _kind("plain", _job(8, **_PLAIN), _job(256, **_PLAIN)),
    _kind("unequal ranks", _job(16, **_PLAIN), _job(48, **_PLAIN), spread=0.08),
    _kind("pipeline", _job(4, 4, **_STAGES), _job(16, 8, **_STAGES)),
    _kind("iterations of 30 s", _job(8, **_LONG), _job(52, **_LONG)),
    _kind("iterations of 0.4 s", _job(8, **_SHORT), _job(16, **_SHORT)),
    _kind("noise that lasts", _job(16, **_PLAIN), _job(64, **_PLAIN), noise=0.04, correlation=0.9),
    _kind("experts", _job(16, expert=8, **_PLAIN), _job(32, expert=8, **_PLAIN), spread=0.04, noise=0.03),
    _kind("tensor", _job(8, tensor=4, **_STAGES), _job(128, tensor=4, **_STAGES)),
    _kind(
        "garbage collection",
        _job(16, spikes=0.05, spike_factor=1.5, **_PLAIN),
        _job(64, spikes=0.05, spike_factor=1.5, **_PLAIN),
        noise=0.02,
    ),
    _kind("rare synchronisation", _job(8, **_RARE), _job(32, **_RARE), pause_every=30, pause_seconds=30.0),
)
_SPARES: Final = {"small": 2, "large": 4}


def fleet() -> list[Member]:
    """List the jobs, the small ones first."""
    jobs = []
    for place, size in enumerate(_SPARES):
        for kind in (pair[place] for pair in KINDS):
            cluster = Cluster(
                spares=_SPARES[size], stop_seconds=2.0, start_seconds=20.0, restore_seconds=8.0, pod_seconds=20.0
            )
            jobs.append(Member(name=f"{kind.name}, {size}", kind=kind, number=len(jobs), cluster=cluster))
    return jobs
