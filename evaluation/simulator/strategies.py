"""Each strategy alone, as FALCON §7.3 tries it: the slowdown before and after, steady states of the job's model.

The planners see the true speeds here (the engine's runs measure them); depths and shares of communication are assumed,
so that the slowdown before mitigation is as the paper's where it is given.
"""

from __future__ import annotations

import msgspec
import numpy as np

from falcon_core.planning import microbatch
from falcon_core.planning.goodput import removed_slowdown
from falcon_sim.job.model import Conditions, JobModel
from falcon_sim.job.scenario import Degrees, Job
from falcon_sim.policies import rungs

TOTAL = 64  # micro-batches of an iteration
DEPTHS = {"weak": 1.3, "medium": 1.7, "severe": 2.2}
CONGESTION = {"weak": 2.0, "medium": 4.0, "severe": 8.0}  # times a healthy transfer


def _quiet(job: Job) -> JobModel:
    return JobModel(msgspec.structs.replace(job, noise=0.0, transfer_noise=0.0), np.random.default_rng(0))


def _seconds(model: JobModel, conditions: Conditions) -> float:
    return float(model.block(1, conditions).seconds[0])


def shared(replicas: int, depths: list[float]) -> tuple[float, float, float]:
    """Run S2 on a node of 8 GPUs: (healthy, slow, mitigated) seconds; ``depths`` of the first replicas' first ranks."""
    job = Job(
        parallelism=Degrees(tensor=8 // replicas, data=replicas), microbatches=TOTAL // replicas, reduce_seconds=0.1
    )
    model = _quiet(job)
    healthy = model.healthy()
    compute = healthy.compute.copy()
    for place, depth in enumerate(depths):
        compute[place * (8 // replicas)] = depth
    slow = msgspec.structs.replace(healthy, compute=compute)
    own = compute.reshape(replicas, -1).max(axis=1) * (model.forward + model.backward)[0]
    plan = microbatch.plan(own.tolist(), TOTAL, current=healthy.counts)
    mitigated = msgspec.structs.replace(slow, counts=plan.counts)
    return _seconds(model, healthy), _seconds(model, slow), _seconds(model, mitigated)


def exchanged(links: int, factor: float) -> tuple[float, float, float]:
    """Run S3 on 16 GPUs, 4DP × 4PP, each GPU a role; ``links`` stages have one slow link in their ring."""
    job = Job(
        parallelism=Degrees(data=4, pipeline=4), procs_per_node=1, microbatches=8, forward_seconds=0.03,
        backward_seconds=0.06, transfer_seconds=0.001, reduce_seconds=0.3,
    )  # fmt: skip
    model = _quiet(job)
    healthy = model.healthy()
    slow_links = healthy.links.copy()
    pairs = {}
    for stage in range(links):
        first = 4 * (stage + 1) % 16
        pairs[first, first + 1] = factor * (1 + 0.05 * stage)
        slow_links[first, first + 1] = slow_links[first + 1, first] = pairs[first, first + 1]
    slow = msgspec.structs.replace(healthy, links=slow_links)
    plan = rungs.placed(job, model, healthy.counts, np.ones(16), pairs, iterations=10_000, overhead_seconds=45.0)
    nodes = np.array(plan.nodes if plan is not None else range(16))
    mitigated = msgspec.structs.replace(slow, links=slow_links[np.ix_(nodes, nodes)])
    return _seconds(model, healthy), _seconds(model, slow), _seconds(model, mitigated)


def between_nodes(stages: int, factor: float) -> tuple[float, float, float]:
    """Run S3 on two nodes of 8 GPUs, each GPU a role, whose link is congested: every ring of gradients crosses it.

    A pipeline lies within a node at first, half of the replicas on each; S3 may let the pipelines cross instead.
    """
    data = 16 // stages
    job = Job(
        parallelism=Degrees(data=data, pipeline=stages), procs_per_node=1, microbatches=32 // data,
        forward_seconds=0.03, backward_seconds=0.06, transfer_seconds=0.004, reduce_seconds=0.3,
    )  # fmt: skip
    model = _quiet(job)
    healthy = model.healthy()
    side = np.arange(16) % data >= data // 2  # a role's number is stage × replicas + replica
    slow_links = np.where(side[:, None] != side[None, :], factor, healthy.links)
    pairs = {(a, b): factor for a in range(16) for b in range(a + 1, 16) if side[a] != side[b]}
    slow = msgspec.structs.replace(healthy, links=slow_links)
    plan = rungs.placed(job, model, healthy.counts, np.ones(16), pairs, iterations=10_000, overhead_seconds=45.0)
    nodes = np.array(plan.nodes if plan is not None else range(16))
    mitigated = msgspec.structs.replace(slow, links=slow_links[np.ix_(nodes, nodes)])
    return _seconds(model, healthy), _seconds(model, slow), _seconds(model, mitigated)


def tables() -> list[str]:
    """Return Markdown rows."""
    lines = ["| S2, 8 GPUs | slowdown | after S2 | removed (by time) | the paper |", "|---|---|---|---|---|"]
    averages = {2: "55.3 % on average", 4: "77.8 %", 8: "64.9 %"}
    for replicas in (2, 4, 8):
        for name, depth in DEPTHS.items():
            lines.append(
                _row(
                    f"{replicas} replicas, one {name} ({depth} ×)",
                    shared(replicas, [depth]),
                    averages[replicas],
                )
            )
    for count in range(1, 5):
        published = {1: "79.7 % (1.9 → 1.2 ×)", 4: "no room"}.get(count, "less")
        lines.append(_row(f"4 replicas, {count} slow (1.9 ×)", shared(4, [1.9] * count), published))
    lines += [
        "",
        "| S3, 16 GPUs, 4DP × 4PP | slowdown | after S3 | removed (by time) | the paper |",
        "|---|---|---|---|---|",
    ]
    for links, published in ((1, "1.6 → 1.3 ×"), (2, "1.7 → 1.3 ×"), (3, "1.9 → 1.7 ×")):
        lines.append(_row(f"{links} slow links, one a stage", exchanged(links, 3.2), published))
    lines += [
        "",
        "| S3, two nodes of 8 GPUs, their link congested | slowdown | after S3 | removed (by time) | the paper |",
        "|---|---|---|---|---|",
    ]
    for stages, published in ((4, "53.7 % on average, at most 61.5 %"), (8, "24.8 % on average")):
        for name, factor in CONGESTION.items():
            lines.append(_row(f"{stages} stages, {name} ({factor:g} ×)", between_nodes(stages, factor), published))
    return lines


def _row(name: str, seconds: tuple[float, float, float], published: str) -> str:
    healthy, slow, mitigated = seconds
    removed = removed_slowdown(healthy, slow, mitigated)
    return f"| {name} | {slow / healthy:.2f} × | {mitigated / healthy:.2f} × | {removed:.1%} | {published} |"


if __name__ == "__main__":
    print("\n".join(tables()))
