"""The cases: each returns a Markdown table and curves (sizes, medians of CPU time in ms) for the plot."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.planning.measure import median_ms, table
from falcon_core.planning import microbatch, partial_iteration
from falcon_core.planning.capacity import capacity
from falcon_core.planning.capacity.capacity import Horizon, Job
from falcon_core.planning.capacity.capacity_prune import prune
from falcon_core.planning.capacity.capacity_table import Event, Table, WorkerFailed, build_table
from falcon_core.planning.placement import placement
from falcon_core.planning.placement.placement import Cost
from falcon_core.planning.placement.placement_model import Cluster, Roles, roles_of
from falcon_core.topology.parallelism import Axis, derive

Curve = tuple[str, list[int], list[float]]
Result = tuple[str, list[Curve]]
HOUR = Horizon(running_seconds=3600.0, transition_seconds=60.0)


def _speeds(groups: int) -> list[float]:
    """Draw the times of healthy groups with 2 % noise; one group in sixteen is up to three times slower."""
    drawn = np.random.default_rng(groups)
    times = 1.0 + 0.02 * np.abs(drawn.standard_normal(groups))
    slow = drawn.choice(groups, max(1, groups // 16), replace=False)
    times[slow] *= drawn.uniform(1.2, 3.0, len(slow))
    return [float(time) for time in times]


def plain_greedy(times: Sequence[float], total: int) -> float:
    """Plan as the baseline: every micro-batch one by one to the group that would finish it first."""
    counts = [1] * len(times)
    heap = [(2 * time, group) for group, time in enumerate(times)]
    heapq.heapify(heap)
    for _ in range(total - len(times)):
        _, group = heap[0]
        counts[group] += 1
        heapq.heapreplace(heap, ((counts[group] + 1) * times[group], group))
    return max(count * time for count, time in zip(counts, times, strict=True))


def microbatches() -> Result:
    """Measure S2 for 2 … 10 000 groups, 32 micro-batches each, with a plan in force."""
    rows: list[list[object]] = []
    sizes, medians = [], []
    for groups in (2, 8, 64, 512, 2048, 10_000):
        times, total = _speeds(groups), 32 * groups
        current = microbatch.even(total, groups)
        found = microbatch.plan(times, total, current=current)
        wall, cpu = median_ms(partial(microbatch.plan, times, total, current=current))
        _, base = median_ms(partial(plain_greedy, times, total))
        same = "yes" if plain_greedy(times, total) == found.best_seconds else "NO"
        speedup = (found.current_seconds or 0.0) / found.seconds
        rows.append([groups, total, wall, cpu, base / cpu, same, speedup, found.moved])
        sizes.append(groups)
        medians.append(cpu)
    head = ["groups", "micro-batches", "wall ms", "CPU ms", "greedy one by one, ×", "same optimum"]
    text = table("Micro-batches (S2), exact", [*head, "iteration shorter, ×", "moved"], rows)
    return text, [("micro-batches, groups", sizes, medians)]


def jobs_of(count: int, largest: int, unit: int, held: int) -> list[Job]:
    """Make jobs of different scaling and weight, each able to run with any multiple of ``unit`` up to ``largest``."""
    drawn = random.Random(count)
    made = []
    for index in range(count):
        exponent = drawn.uniform(0.6, 0.95)
        curve = {size: 1e14 * float(size**exponent) for size in range(unit, largest + 1, unit)}
        made.append(Job(name=f"job-{index}", throughput=curve, weight=drawn.uniform(0.5, 2.0), workers=held))
    return made


def capacities() -> Result:
    """Measure Unicron eq. 3 for growing clusters, beside the plain program of eq. 5 where that ends soon enough."""
    rows: list[list[object]] = []
    sizes, medians = [], []
    for workers, count, unit, largest in (
        (128, 6, 1, 128),
        (1000, 20, 1, 1000),
        (1000, 20, 8, 1000),
        (10_000, 100, 8, 1024),
        (10_000, 100, 8, 10_000),
        (10_000, 100, 1, 10_000),
    ):
        jobs = jobs_of(count, largest, unit, workers // count // unit * unit)
        choices = sum(len(job.throughput) for job in jobs)
        wall, cpu = median_ms(partial(capacity.plan, jobs, workers, HOUR))
        ratio: object = "—"
        if workers <= 1000:
            found = capacity.plan(jobs, workers, HOUR).value
            _, base = median_ms(partial(eq5, jobs, workers))
            ratio = base / cpu
            assert abs(eq5(jobs, workers) / found - 1) < 1e-9
        rows.append([workers, count, unit, choices, wall, cpu, ratio])
        if unit == 1:
            sizes.append(workers)
            medians.append(cpu)
    head = ["workers", "jobs", "unit", "choices in all", "wall ms", "CPU ms", "eq. 5 over all counts, ×"]
    return table("Capacity (Unicron eq. 2–5), exact", head, rows), [("capacity, workers", sizes, medians)]


def eq5(jobs: Sequence[Job], workers: int) -> float:
    """Compute the baseline: S(i, j) = max over all k ≤ j, possible or not; a vector operation for each j."""
    best = np.zeros(workers + 1)
    for job in jobs:
        gains = np.array([capacity.reward(job, count, HOUR) for count in range(workers + 1)])
        best = np.array([np.max(best[j::-1] + gains[: j + 1]) for j in range(workers + 1)])
    return float(best[-1])


def hard_capacities() -> Result:
    """Measure curves whose duality gap is wide, so that few counts can be skipped: 10 000 workers, 100 jobs."""
    drawn = random.Random(1)
    curves: list[tuple[str, int, Callable[[int, int], float]]] = [
        ("20 % noise on each count", 10_000, lambda _, size: size**0.8 * drawn.uniform(0.8, 1.0)),
        ("steps of 37 … 136 workers", 10_000, lambda job, size: 1.0 + size // (37 + job) * (37 + job) ** 0.9),
        ("convex, at most 3 000", 3000, lambda _, size: size**1.2),
        ("S-shaped, at most 3 000", 3000, lambda _, size: size**3 / (size**2 + 300.0**2)),
    ]
    rows: list[list[object]] = []
    for name, largest, curve in curves:
        jobs = [
            Job(
                name=f"job-{index}",
                throughput={size: float(curve(index, size)) for size in range(1, largest + 1)},
                weight=drawn.uniform(0.5, 2.0),
                workers=96,
            )
            for index in range(100)
        ]
        options = [capacity.options_of(job, HOUR, 1) for job in jobs]
        kept = sum(len(choices.units) for choices in prune(options, 10_000))
        wall, cpu = median_ms(partial(capacity.plan, jobs, 10_000, HOUR))
        rows.append([name, sum(len(choices.units) for choices in options), kept, wall, cpu])
    head = ["T(t, x)", "choices in all", "left after skipping", "wall ms", "CPU ms"]
    return table("Capacity: curves that are hard to skip on, exact", head, rows), []


def tables() -> Result:
    """Measure the look-up table for every single next event."""
    rows: list[list[object]] = []
    for workers, count, unit, largest in ((128, 6, 8, 128), (1000, 20, 8, 1000), (10_000, 100, 8, 1024)):
        jobs = jobs_of(count, largest, unit, workers // count // unit * unit)
        build = partial(build_table, jobs, workers, lambda _: HOUR, workers_per_node=unit)
        wall, cpu = median_ms(build)
        made, event = build(), WorkerFailed(jobs[-1].name)
        _, look_up = median_ms(partial(look_up_often, made, event))  # of 1 000, in ms: of one, in µs
        _, alone = median_ms(partial(capacity.plan, jobs, workers - unit, HOUR, faulted={event.job or ""}))
        rows.append([workers, count, len(made.plans), wall, cpu, alone * len(made.plans) / cpu, look_up])
    head = ["workers", "jobs", "events", "wall ms", "CPU ms", "a program for each event, ×", "look-up µs"]
    return table("Look-up table for the next event", head, rows), []


def look_up_often(made: Table, event: Event) -> None:
    for _ in range(1000):
        made.after(event)


def _faults(nodes: int, bad: int, seed: int) -> Cluster:
    drawn = np.random.default_rng(seed)
    compute, links = 1 + 0.01 * np.abs(drawn.standard_normal((2, nodes)))
    which = drawn.choice(nodes, 2 * bad, replace=False)
    compute[which[:bad]] *= drawn.uniform(1.2, 2.5, bad)
    links[which[bad:]] *= drawn.uniform(1.5, 4.0, bad)
    return Cluster(
        compute_slowdown=tuple(map(float, compute)),
        link_slowdown=tuple(map(float, links)),
    )


def _roles(nodes: int, stages: int, lockstep: bool) -> Roles:
    return roles_of(
        derive(nodes * 8, tensor=8, pipeline=stages),
        8,
        stage_seconds=[1.1, *[1.0] * (stages - 2), 1.2],
        microbatches=32,
        bytes_per_link={Axis.DATA: 1e9, Axis.PIPELINE: 1e8},
        lockstep=lockstep,
    )


def placements() -> Result:
    """Measure S3 for 16 … 1 024 nodes of 8 ranks; 1 % noise; bad nodes: half slow, half with a congested adapter."""
    rows: list[list[object]] = []
    curves: list[Curve] = []
    cost = Cost(iterations=1000, move_seconds=30.0, seconds_per_rank=0.01)
    for lockstep in (False, True):
        kind = "lockstep" if lockstep else "replicas"
        sizes, medians = [], []
        for nodes, bad in ((16, 2), (64, 2), (256, 4), (1024, 16), (1024, 100)):
            roles = _roles(nodes, min(8, nodes // 4), lockstep)
            runs = [_faults(nodes, bad, seed) for seed in range(5)]
            wall, cpu = median_ms(partial(placement.plan, roles, runs[0], cost=cost))
            shorter, *gaps = _quality([placement.plan(roles, state, cost=cost) for state in runs])
            rows.append([kind, nodes, 2 * bad, wall, cpu, shorter, *gaps])
            if bad <= 16:
                sizes.append(nodes)
                medians.append(cpu)
        curves.append((f"placement ({kind}), nodes", sizes, medians))
    head = ["model", "nodes", "bad", "wall ms", "CPU ms", "iteration shorter, ×", "gap %, median", "gap %, worst of 5"]
    return table("Placement (S3), heuristic with a lower bound", head, rows), curves


def _quality(plans: list[placement.Placement]) -> tuple[float, float, float]:
    """Return how many times shorter the iteration is (median), and the gap to the bound [%], median and worst."""
    gaps = [plan.gap for plan in plans]
    shorter = [plan.current_seconds / plan.seconds for plan in plans]
    return float(np.median(shorter)), 100 * float(np.median(gaps)), 100 * max(gaps)


def placement_optimality() -> Result:
    """Compare the local search with all permutations, on six nodes."""
    roles = roles_of(
        derive(12, tensor=2, pipeline=3),
        2,
        stage_seconds=[1.2, 1.0, 1.1],
        microbatches=4,
        bytes_per_link={Axis.DATA: 1e9, Axis.PIPELINE: 2e8},
    )
    drawn, cases = random.Random(11), []
    for _ in range(200):
        compute, links = [1.0] * 6, [1.0] * 6
        for _ in range(3):
            compute[drawn.randrange(6)] = 1 + 2 * drawn.random()
        for _ in range(2):
            links[drawn.randrange(6)] = 1 + 4 * drawn.random()
        pair = tuple(sorted(drawn.sample(range(6), 2)))
        cases.append(
            Cluster(
                compute_slowdown=tuple(compute),
                link_slowdown=tuple(links),
                pair_slowdown={(pair[0], pair[1]): 1 + 4 * drawn.random()},
                seconds_per_byte=1e-9,
            )
        )
    cost = Cost(iterations=100, move_seconds=20.0, seconds_per_rank=0.5)
    optimum = [placement.plan(roles, cluster, cost=cost).cost_seconds for cluster in cases]
    exact, placement.EXACT_ROLES = placement.EXACT_ROLES, 0  # type: ignore[misc]
    found = [placement.plan(roles, cluster, cost=cost) for cluster in cases]
    placement.EXACT_ROLES = exact  # type: ignore[misc]
    ratios = [plan.cost_seconds / best for plan, best in zip(found, optimum, strict=True)]
    bounds = [plan.lower_bound_seconds / best for plan, best in zip(found, optimum, strict=True)]
    assert max(bounds) <= 1 + 1e-9
    row: list[object] = [len(cases), sum(ratio < 1 + 1e-9 for ratio in ratios), 100 * (max(ratios) - 1)]
    row += [100 * (1 - float(np.median(bounds))), 100 * (1 - min(bounds))]
    head = ["cases", "optimal", "worst above the optimum %", "bound below the optimum %, median", "worst"]
    return table("Placement: local search beside brute force, six nodes", head, [row]), []


def resumptions() -> Result:
    """Measure Unicron §6.2, scenario 1: who computes the failed rank's micro-batches."""
    rows: list[list[object]] = []
    for ranks in (8, 512, 4096):
        progress = [
            partial_iteration.Progress(
                rank=rank, microbatches=tuple(range(32 * rank, 32 * rank + 32)), finished=16 + rank % 2
            )
            for rank in range(ranks)
        ]
        wall, cpu = median_ms(partial(partial_iteration.resume, progress, {3}, ["all"]))
        rows.append([ranks, wall, cpu])
    return table("Resuming a broken iteration", ["replicas", "wall ms", "CPU ms"], rows), []


ALL: tuple[Callable[[], Result], ...] = (
    microbatches,
    capacities,
    hard_capacities,
    tables,
    placements,
    placement_optimality,
    resumptions,
)
