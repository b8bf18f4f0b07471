"""Unicron's five cases and two traces, and the public spot traces: who gets which workers, over days."""

from __future__ import annotations

import csv
import statistics
from typing import Literal

import msgspec
import numpy as np

from benchmarks.public_data import public_file
from falcon_sim.cluster.fleet import Event, Fleet, FleetJob, FleetPolicy, FleetResult, best_start, gpt_throughput

GPUS, PER_NODE = 128, 8
MOST = 32  # GPUs that a task can use: assumed (with no bound, nearly linear scaling gives all to the heaviest task)
DAY = 86_400.0
SEEDS = range(8)

# Table 3 of the paper; its sixth task's column is lost in our text. Assumed: sizes go on (case 1 and 3: 7B; 2, 4 and 5:
# 13B), weights go on by 0.3.
SIZES = {1: [7.0] * 6, 2: [1.3] * 3 + [7.0] * 2 + [13.0], 3: [7.0] * 6}
SIZES |= {4: SIZES[2], 5: SIZES[2]}
UP = [0.5, 0.8, 1.1, 1.4, 1.7, 2.0]
WEIGHTS = {1: [1.0] * 6, 2: [1.0] * 6, 3: UP, 4: UP, 5: UP[::-1]}

# Unicron §7.2, §2.4: 30 min until a dead process is noticed, 68 min in all with 15 min of work redone on average.
RESTART_ONLY = FleetPolicy(
    planner=False,
    lost_notice_seconds=5.7,
    process_notice_seconds=1800.0,
    transition_seconds=1380.0,
    redone_seconds=900.0,
)
# Ours: lease 3 s and a look; processes 1 s; start and restore from a replica's memory; half a minute of work.
FALCON = FleetPolicy(
    planner=True, lost_notice_seconds=4.0, process_notice_seconds=1.0, transition_seconds=90.0, redone_seconds=30.0
)


def jobs_of(case: int, workers: dict[str, int] | None = None) -> list[FleetJob]:
    """Return the six tasks, with the best start or the given sizes."""
    drafts = [
        FleetJob(
            name=f"task{place + 1}",
            throughput=gpt_throughput(size, PER_NODE, MOST),
            weight=weight,
            workers=0,
        )
        for place, (size, weight) in enumerate(zip(SIZES[case], WEIGHTS[case], strict=True))
    ]
    sizes = workers or best_start(drafts, GPUS)
    return [msgspec.structs.replace(job, workers=sizes[job.name]) for job in drafts]


def _proportional(shares: list[float], jobs: list[FleetJob]) -> dict[str, int]:
    """Share out whole nodes, the largest remainders first; lower each count to a count that the job can run with."""
    nodes = GPUS // PER_NODE
    exact = [share / sum(shares) * nodes for share in shares]
    counts = [int(share) for share in exact]
    for place in sorted(range(len(exact)), key=lambda at: counts[at] - exact[at])[: nodes - sum(counts)]:
        counts[place] += 1
    sizes = {}
    for job, count in zip(jobs, counts, strict=True):
        fitting = [size for size in job.throughput if size <= count * PER_NODE]
        sizes[job.name] = max(fitting, default=0)
    return sizes


def waf(jobs: list[FleetJob], sizes: dict[str, int]) -> float:
    """Return Σ w·T [FLOP/s]."""
    return sum(job.weight * job.throughput.get(sizes[job.name], 0.0) for job in jobs)


def cases() -> list[str]:
    """Return Markdown rows: the baselines' WAF over the plan's."""
    lines = ["| case | plan, weighted PFLOP/s | equally | weighted | sized |", "|---|---|---|---|---|"]
    for case in SIZES:
        jobs = jobs_of(case)
        ours = waf(jobs, best_start(jobs, GPUS))
        ratios = [waf(jobs, _proportional(shares, jobs)) / ours for shares in ([1.0] * 6, WEIGHTS[case], SIZES[case])]
        lines.append(f"| {case} | {ours / 1e15:.2f} | " + " | ".join(f"{share:.1%}" for share in ratios) + " |")
    return lines


def trace(
    seed: int, *, days: float, lost: int, processes: int, repair_days: tuple[float, float]
) -> tuple[list[Event], float]:
    """Draw ``lost`` failures of nodes and ``processes`` failures of processes, on random nodes, over ``days``.

    The times are uniformly random: a Poisson process of which the count is known.
    """
    rng = np.random.default_rng(seed)
    nodes = GPUS // PER_NODE
    events = []
    away: dict[str, float] = {}
    for at in np.sort(rng.uniform(0, days * DAY, lost)).tolist():
        there = [f"n{node}" for node in range(nodes) if away.get(f"n{node}", 0.0) <= at]
        if not there:
            continue
        node = str(rng.choice(there))
        away[node] = at + float(rng.uniform(*repair_days)) * DAY
        events += [Event(at, "Lost", node), Event(away[node], "Joined", node)]
    events += [Event(at, "Process", f"n{rng.integers(nodes)}") for at in rng.uniform(0, days * DAY, processes).tolist()]
    return events, days * DAY


def _both(events: list[Event], seconds: float) -> tuple[FleetResult, FleetResult, FleetResult]:
    nodes = [f"n{node}" for node in range(GPUS // PER_NODE)]
    jobs = jobs_of(5)
    alone = msgspec.structs.replace(FALCON, planner=False)
    policies = (RESTART_ONLY, alone, FALCON)
    base, stop, ours = (Fleet(jobs, nodes, PER_NODE, policy).run(events, seconds) for policy in policies)
    return base, stop, ours


def traces() -> list[str]:
    """Return Markdown rows: accumulated WAF over the restart-only baseline, medians over seeds."""
    lines = [
        "| trace | repair | the paper: Unicron ÷ restart-only | ours: fast recovery, sizes fixed | ours: and the plan"
        " | of the ideal: restart-only, ours |",
        "|---|---|---|---|---|---|",
    ]
    for name, days, lost, processes, repair, theirs in (
        ("a: 8 weeks, 10 SEV1, 33 others", 56.0, 10, 33, (1.0, 7.0), "1.2 ×"),
        ("b: 7 days, 26 SEV1, 80 others", 7.0, 26, 80, (1.0, 7.0), "1.9 ×"),
        ("b, as many nodes repaired as lost", 7.0, 26, 80, (1 / 20, 7 / 20), "1.9 ×"),
    ):
        stops, plans, bases, ours = [], [], [], []
        for seed in SEEDS:
            base, stop, plan = _both(*trace(seed, days=days, lost=lost, processes=processes, repair_days=repair))
            stops.append(stop.accumulated_waf / base.accumulated_waf)
            plans.append(plan.accumulated_waf / base.accumulated_waf)
            bases.append(base.accumulated_waf / base.ideal_waf)
            ours.append(plan.accumulated_waf / plan.ideal_waf)
        lines.append(
            f"| {name} | {repair[0] * 24:.1f}–{repair[1] * 24:.0f} h | {theirs} | {_spread(stops)} | {_spread(plans)}"
            f" | {statistics.median(bases):.1%}, {statistics.median(ours):.1%} |"
        )
    return lines


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} × ({min(values):.2f}–{max(values):.2f})"


Mode = Literal["none", "stop", "all"]


def spot(name: str) -> tuple[list[Event], float]:
    """Return the nodes of ``p3`` or ``g4dn`` that come and go; raises FileNotFoundError without the data."""
    with public_file(f"failures/bamboo_spot_{name}.csv").open() as lines:
        rows = [(float(row["ms"]) / 1000, row["action"], row["node"]) for row in csv.DictReader(lines)]
    events = [Event(at, "Joined" if action == "add" else "Lost", node) for at, action, node in rows]
    return events, rows[-1][0]


def spot_table() -> list[str]:
    """Return Markdown rows: useful work over what the nodes that were there could have done."""
    lines = [
        "| trace | nodes, mean (most) | fixed size | no Falcon | fail-stop only | all, with the plan |",
        "|---|---|---|---|---|---|",
    ]
    for name, size in (("p3", 16), ("p3", 24), ("g4dn", 8), ("g4dn", 12)):
        events, seconds = spot(name)
        job = FleetJob(
            name="job", throughput={count: 0.97 ** np.log2(count) * count for count in range(4, 33)}, workers=size
        )
        offered, most = _offered(events, seconds, job)
        unwatched = msgspec.structs.replace(RESTART_ONLY, lost_notice_seconds=1800.0)
        fixed = msgspec.structs.replace(FALCON, planner=False)
        shares = [
            Fleet([job], [], 1, policy).run(events, seconds).accumulated_waf / offered
            for policy in (unwatched, fixed, FALCON)
        ]
        mean = _mean_nodes(events, seconds)
        lines.append(
            f"| {name} | {mean:.1f} ({most}) | {size} | " + " | ".join(f"{share:.1%}" for share in shares) + " |"
        )
    return lines


def _offered(events: list[Event], seconds: float, job: FleetJob) -> tuple[float, int]:
    """Return ∫ T(nodes present) dt, the work of an elastic job whose changes cost nothing, and the most nodes."""
    work, there, last, most = 0.0, 0, 0.0, 0
    for event in [*sorted(events), Event(seconds, "Joined", "")]:
        work += job.throughput.get(min(there, max(job.throughput)), 0.0) * (event.at_seconds - last)
        last = event.at_seconds
        there += 1 if event.kind == "Joined" else -1
        most = max(most, there)
    return work, most


def _mean_nodes(events: list[Event], seconds: float) -> float:
    held, there, last = 0.0, 0, 0.0
    for event in sorted(events):
        held += there * (event.at_seconds - last)
        last = event.at_seconds
        there += 1 if event.kind == "Joined" else -1
    return held / seconds


if __name__ == "__main__":
    for rows in (cases(), traces(), spot_table()):
        print("\n".join(rows), end="\n\n")
