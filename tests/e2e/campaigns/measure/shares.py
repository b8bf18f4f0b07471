"""Measure what micro-batches that move away from a slow node (S2) remove, beside the exact optimum and without S2.

Two jobs after each other, the same but for the ladder: in one nothing but a replacement, at a price that is never
reached, in the other S2 before it. In each a node's CPU is halved after some healthy steps. The script's own clock
times the steps. The optimum is the planner's, for micro-batches that take as many times longer on the slow rank as the
job without S2 has become slower. Losses are those of the same global batches: the same to rounding. The ranks of the
last layout share the parameters (FSDP), on today's PyTorch from the host, since the image's is older.
"""

from __future__ import annotations

import argparse
from typing import Final

import msgspec

from benchmarks.limits import Limit
from dev.cluster import faults
from dev.install import CACHE, heal_nodes, prepare_cluster
from dev.kubectl import Kubectl
from evaluation.harness import Table
from falcon_core.planning.microbatch import plan
from tests.e2e.campaigns.measure.limited import limited
from tests.e2e.campaigns.stage import namespace
from tests.e2e.jobs import Job, training_job, with_script
from tests.e2e.pipelines import SPARE

STEPS: Final = 20  # of a median
HALF: Final = 0.5
MOST_DIFFERENCE: Final = 1e-5  # of a loss, relative: the order of the sum differs
LEAST_OF_OPTIMUM: Final = 0.8  # of what the optimum removes
REPLACING: Final = {"type": "ReplaceNode", "overheadSeconds": 3600}
LADDERS: Final = {"without": [REPLACING], "with": [{"type": "AdjustMicrobatches"}, REPLACING]}


class Layout(msgspec.Struct, frozen=True):
    """A job: so many ranks, a pod each, of so many micro-batches; ``sharded``: each has a part of the parameters."""

    ranks: int
    micro: int
    sharded: bool = False


class Run(msgspec.Struct, kw_only=True):
    """One job: seconds a step while it is well and while a node is slow; losses by step."""

    healthy: float
    slow: float
    losses: dict[int, float]
    shares: list[int]


LAYOUTS: Final = (Layout(3, 4), Layout(4, 16), Layout(3, 16, sharded=True))


def measure(kubectl: Kubectl, layout: Layout) -> tuple[Run, Run]:
    """Run a layout without and with S2."""
    return _run(kubectl, layout, "without"), _run(kubectl, layout, "with")


def _run(kubectl: Kubectl, layout: Layout, ladder: str) -> Run:
    heal_nodes(Kubectl(kubectl.kubeconfig))
    spec = {"mitigation": {"strategies": [{"type": "Ignore"}, *LADDERS[ladder]]}}
    name = f"shares-{layout.ranks}-{layout.micro}-{ladder}"
    torch = str(CACHE / "torch" / "site") if layout.sharded else None
    made = training_job(name, steps=1, replicas=layout.ranks, python_path=torch, spec=spec)
    if layout.ranks > 3:  # the local cluster's fourth node is the spare
        made["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    arguments = ["--steps", "100000", "--micro-batches", str(layout.micro), "--context", "32", "--batch-size", "2"]
    arguments += ["--sharded"] if layout.sharded else []
    job = Job(kubectl, with_script(kubectl, made, "sharing.py", *arguments))
    even = [layout.micro] * layout.ranks
    try:
        job.wait_settled()
        healthy = job.step_seconds("even steps", lambda step: step["shares"] == even, STEPS)
        faults.slow(job.member(1)["node"], HALF)
        began = max(step["step"] for step in job.steps())
        if ladder == "with":
            slow = job.step_seconds("moved steps", lambda step: step["shares"][1] < layout.micro, STEPS)
        else:
            slow = job.step_seconds("slow steps", lambda step: step["step"] > began + 2, STEPS)
        steps = job.steps()
        print(f"{name}: {healthy:.3f} s healthy, {slow:.3f} s with a slow node, {steps[-1]['shares']}", flush=True)
        losses = {int(step["step"]): float(step["loss"]) for step in steps}
        return Run(healthy=healthy, slow=slow, losses=losses, shares=steps[-1]["shares"])
    finally:
        job.delete()
        heal_nodes(Kubectl(kubectl.kubeconfig))


def compared(layout: Layout, without: Run, shared: Run) -> tuple[str, list[Limit]]:
    """Return a row of the table, and what is promised of it."""
    slowdown = without.slow / without.healthy
    best = plan([slowdown] + [1.0] * (layout.ranks - 1), layout.ranks * layout.micro).seconds / layout.micro
    optimum = (slowdown - best) / (slowdown - 1)
    removed = (slowdown - shared.slow / shared.healthy) / (slowdown - 1)
    common = without.losses.keys() & shared.losses.keys()
    differs = max(abs(without.losses[step] / shared.losses[step] - 1) for step in common)
    what = f"{layout.ranks} ranks × {layout.micro}{', FSDP' if layout.sharded else ''}"
    row = (
        f"| {what} | {without.healthy:.2f}, {without.slow:.2f} s | {shared.healthy:.2f}, {shared.slow:.2f} s"
        f" {shared.shares} | {removed:.0%} | {optimum:.0%} | {differs:.1e} of {len(common)} |"
    )
    return row, [
        Limit(
            what=f"{what}: of the slowdown that the optimum removes, not removed",
            measured=1 - removed / optimum,
            most=1 - LEAST_OF_OPTIMUM,
        ),
        Limit(what=f"{what}: greatest relative difference of a loss", measured=differs, most=MOST_DIFFERENCE),
    ]


def make(options: argparse.Namespace) -> Table:
    """Return a row for each layout, with its limits. All of them take fifteen minutes."""
    lines = [
        "| job | without S2: healthy, slow | with S2: healthy, slow, shares | removed | optimum | losses differ by |",
        "|---|---|---|---|---|---|",
    ]
    limits: list[Limit] = []
    with namespace(prepare_cluster()) as kubectl:
        for layout in LAYOUTS if options.layout is None else [LAYOUTS[number] for number in options.layout]:
            row, promised = compared(layout, *measure(kubectl, layout))
            lines.append(row)
            limits += promised
    return limited("\n".join([*lines, ""]), limits)
