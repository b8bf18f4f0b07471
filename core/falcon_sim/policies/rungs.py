"""Plan S2 and S3 with core's planners for FALCON's published policy (``published``) and for hindsight.

Their inputs are measurements: compute times from the ranks' reports, slow communicators from profile mode, the links of
the suspects from peer-to-peer tests.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

import msgspec
import numpy as np

from falcon_core.planning import microbatch, ski_rental
from falcon_core.planning.errors import PlanningError
from falcon_core.planning.placement import placement
from falcon_core.planning.placement.placement_model import Cluster, Roles, roles_of
from falcon_core.recovery import Observation
from falcon_core.recovery.strategies import adjust_microbatches, swap_for_link
from falcon_core.signals.job.transfers import match, slow_links
from falcon_core.topology.parallelism import Axis, Parallelism
from falcon_core.wire.ring import RecordArray
from falcon_sim.job.model import JobModel
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.records import DATA, EXPERT
from falcon_sim.job.scenario import Job, Strategy

S2, S3 = adjust_microbatches.TYPE, swap_for_link.TYPE
_SLOW_NODE = 1.1  # measured computation over the median of the same stage: less is noise


def candidates(strategies: tuple[Strategy, ...]) -> list[ski_rental.Candidate]:
    """List S2 and S3 as far as the scenario allows them."""
    return [
        ski_rental.Candidate(name=strategy.type, overhead_seconds=strategy.overhead_seconds or 0.0)
        for strategy in strategies
        if strategy.type in (S2, S3)
    ]


def compute_times(obs: Observation, width: int) -> dict[int, float]:
    """Return the seconds of computation in an iteration by rank, for an even share.

    They are the medians of the newest ``width`` iterations.
    """
    return {
        rank.rank: statistics.median(rank.sent.compute_ns[-width:]) / 1e9
        for rank in obs.ranks
        if len(rank.sent.compute_ns) >= width
    }


def shares(model: JobModel, times: dict[int, float], counts: tuple[int, ...]) -> microbatch.MicrobatchPlan | None:
    """Plan S2 from measured times; None where a stage of a replica was not measured. The job is shareable."""
    job = model.job
    stages, replicas, tensor = model.shape
    known = np.array([times.get(rank, -np.inf) for rank in range(job.parallelism.world)])
    pass_seconds = known.reshape(stages, replicas, tensor).max(axis=2) / job.microbatches  # [stages, replicas]
    if not np.isfinite(pass_seconds).all():
        return None
    slowest = pass_seconds.max(axis=0)
    filling = pass_seconds.sum(axis=0) - slowest
    try:
        return microbatch.plan(slowest.tolist(), sum(counts), fixed_seconds=filling.tolist(), current=counts)
    except PlanningError:
        return None


def slow_communicators(model: JobModel, records: dict[int, RecordArray]) -> list[tuple[int, ...]]:
    """Return the members of the communicators whose transfers profile mode finds slow."""
    _, replicas, tensor = model.shape
    names: dict[tuple[int, int], str] = {}
    by_name: dict[str, list[int]] = defaultdict(list)
    expert = model.job.parallelism.expert
    for rank in range(model.job.parallelism.world):
        stage, rest = divmod(rank, replicas * tensor)
        replica, place = divmod(rest, tensor)
        for comm, name in (
            (DATA, f"data {stage}.{place}"),
            (EXPERT, f"expert {stage}.{place}.{replica // expert}"),
        ):
            names[rank, comm] = name
            by_name[name].append(rank)
    members = {name: tuple(ranks) for name, ranks in by_name.items()}
    return [link.members for link in slow_links(match(records, names, members))]


def node_slowdowns(model: JobModel, times: dict[int, float]) -> Floats:
    """Return [roles]: how many times slower a node computes than its stage's median, by its slowest rank.

    It is 1 where the difference is noise.
    """
    stages, replicas, tensor = model.shape
    measured = np.array([times.get(rank, np.nan) for rank in range(stages * replicas * tensor)]).reshape(stages, -1)
    ratio = np.nan_to_num(measured / np.nanmedian(measured, axis=1, keepdims=True), nan=1.0).reshape(-1)
    by_node = ratio.reshape(-1, model.job.procs_per_node).max(axis=1)
    return np.where(by_node >= _SLOW_NODE, by_node, 1.0)


def roles(job: Job, model: JobModel, counts: tuple[int, ...]) -> Roles:
    """Return the job as the placement planner sees it.

    One second counts as one byte, so that volumes are healthy times.
    """
    degrees = job.parallelism
    layout = Parallelism(tensor=degrees.tensor, expert=degrees.expert, data=degrees.data, pipeline=degrees.pipeline)
    # Only axes that run between nodes can have a slow link.
    volumes = {Axis.DATA: job.reduce_seconds, Axis.PIPELINE: 2 * job.microbatches * job.transfer_seconds}
    if degrees.expert > 1:
        volumes[Axis.EXPERT] = 2 * job.microbatches * job.expert_seconds
    plain = roles_of(
        layout,
        job.procs_per_node,
        stage_seconds=(model.forward + model.backward).tolist(),
        microbatches=job.microbatches,
        bytes_per_link=dict.fromkeys(volumes, 1.0),
    )
    # a healthy time holds however many of a node's communicators share the path: they are not added up
    timed = [
        msgspec.structs.replace(communicator, bytes_per_link=volumes[Axis(communicator.kind)])
        for communicator in plain.communicators
    ]
    plain = msgspec.structs.replace(plain, communicators=tuple(timed))
    if degrees.expert > 1:
        return plain
    return msgspec.structs.replace(plain, microbatches=counts)


def placed(
    job: Job,
    model: JobModel,
    counts: tuple[int, ...],
    slowdowns: Floats,
    pairs: dict[tuple[int, int], float],
    iterations: int,
    overhead_seconds: float,
) -> placement.Placement | None:
    """Plan S3: ``pairs`` are measured links, ``iterations`` how long it is hoped to serve; None: nothing to gain."""
    count = len(slowdowns)
    try:
        plan = placement.plan(
            roles(job, model, counts),
            Cluster(
                compute_slowdown=tuple(slowdowns.tolist()),
                link_slowdown=(1.0,) * count,
                pair_slowdown={pair: max(1.0, value) for pair, value in pairs.items() if value >= _SLOW_NODE},
                seconds_per_byte=1.0,
            ),
            cost=placement.Cost(iterations=float(max(1, iterations)), move_seconds=overhead_seconds),
        )
    except PlanningError:
        return None
    return plan if plan.moved_roles else None
