"""The host cost of NCCL calls by mode, and how often a cycle may be sampled: ``python -m benchmarks.shim.sampling``.

A stand-in for NCCL and CUDA is called, bare and through the shim, in turns in one process: switched off, tracked
outside a sampled cycle, tracked inside one (two events a call), in profile mode, and eight calls in a group. **The
stand-in's event calls cost nearly nothing**, so that the figures are the shim's own part; what CUDA adds is a
parameter:

    cost of a sampled call   c = own part beyond a plain tracked call + 2 × (host time of one cudaEventRecord)
    share of sampling        s = c × calls per cycle ÷ (N × iteration time)
    smallest N               N = ⌈c × calls per cycle ÷ (bound × iteration time)⌉

``--event-us`` names the host times of an event to tabulate. What every call costs, sampled or not, is shown beside it:
no N makes it less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shim.jobs import SHIM
from falcon_core.signals.rank.profiling import SAMPLE_EVERY

BENCH = Path(os.environ.get("SHIM_TEST_OUT", "")) / "nccl_bench"
BURSTS = 400
BOUND = 0.001  # of the iteration time
EVENTS = 2  # a sampled call

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Job:
    """A job to hold N against: its shape is an example, not a measurement."""

    name: str
    calls: int  # of NCCL in an iteration
    iteration_seconds: float


JOBS = [
    Job("DDP, 30 buckets", 30, 0.25),
    Job("FSDP, 32 layers", 100, 1.0),
    Job("TP 8, 32 layers, 16 micro-batches", 2048, 5.0),
    Job("1F1B, 8 stages, 64 micro-batches", 260, 8.0),
    Job("small model, many calls", 256, 0.1),
]


def sampled_cost_ns(own_ns: float, event_us: float) -> float:
    """Return the host time that sampling adds to a call, in ns: our part and that of its two events."""
    return own_ns + EVENTS * event_us * 1e3


def share(cost_ns: float, job: Job, every: int) -> float:
    """Return the share of the iteration time, on average, where one cycle in ``every`` is sampled."""
    return cost_ns * 1e-9 * job.calls / (every * job.iteration_seconds)


def smallest_n(cost_ns: float, job: Job, bound: float = BOUND) -> int:
    """Return the smallest N that keeps sampling's share of the iteration time within ``bound``."""
    return max(1, math.ceil(cost_ns * 1e-9 * job.calls / (bound * job.iteration_seconds)))


def _run(folder: str) -> Figures:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(SHIM),
        "FALCON_RING_DIR": f"{folder}/rings",
        "FALCON_CONTROL": f"{folder}/control",
        "RANK": "0",
        "WORLD_SIZE": "4",
    }
    done = subprocess.run([str(BENCH), str(BURSTS)], env=environment, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--event-us", type=float, nargs="+", default=[0.5, 1, 2, 5], help="host time of one event")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        runs = [_run(folder) for _ in range(arguments.rounds)]

    def median(name: str, figure: str = "p50_ns") -> float:
        return statistics.median(run[name][figure] for run in runs)

    def over(name: str, base: str) -> tuple[float, float, float]:
        """Return the median of the runs' differences, and the least and the greatest."""
        differences = [run[name]["p50_ns"] - run[base]["p50_ns"] for run in runs]
        return statistics.median(differences), min(differences), max(differences)

    print(f"bare stand-in call: {median('bare'):.1f} ns; over it, per call (p50; least and most of the runs):")
    for name, what in (
        ("off", "switched off"),
        ("track", "track mode, outside a sampled cycle"),
        ("sampled", "track mode, inside a sampled cycle"),
        ("profile", "profile mode"),
        ("exhausted", "profile mode, no event left: 16 384 calls ahead of the device"),
        ("group", "group of 8, outside a sampled cycle"),
        ("group_sampled", "group of 8, inside a sampled cycle"),
    ):
        middle, least, most = over(name, "bare")
        print(f"  {what}: {middle:.0f} ns ({least:.0f} … {most:.0f})")
    own = over("sampled", "track")[0]
    driver = EVENTS * median("standin_record") + median("standin_capturing") + median("standin_context")
    print(
        f"a tracked call: a clock reading {median('clock'):.0f} ns, the stand-in's cuStreamIsCapturing "
        f"{median('standin_capturing'):.0f} ns; the append and the rest are split by benchmarks.shim.hook"
    )
    print(
        f"a sampled call adds {own:.0f} ns: the stand-in's driver calls {driver:.0f} ns (2 cuEventRecord, "
        f"cuStreamIsCapturing, cuCtxGetCurrent), ours {own - driver:.0f} ns (a pair of the pool, the calls' records)"
    )
    print(
        f"helper thread, of one core: {100 * median('helper', 'idle_share'):.2f} % with nothing to wait for, "
        f"{100 * median('helper', 'waiting_share'):.2f} % waiting for an event (2 000 polls a second), "
        f"{100 * median('helper', 'busy_share'):.2f} % with 512 events each 2 ms; "
        f"{median('helper', 'per_event_ns'):.0f} ns an event beyond the polls"
    )
    base = over("track", "bare")[0]
    print(f"\nsmallest N for ≤ {BOUND:.1%} of the iteration time; share at the shipped N = {SAMPLE_EVERY}")
    print(
        "| job (calls per iteration, its time) | every call, any N |"
        + "".join(f" {us:g} µs |" for us in arguments.event_us)
    )
    print("|---|---|" + "---|" * len(arguments.event_us))
    for job in JOBS:
        cells = []
        for event_us in arguments.event_us:
            cost = sampled_cost_ns(own, event_us)
            cells.append(f" {smallest_n(cost, job)}; {share(cost, job, SAMPLE_EVERY):.4%} |")
        print(f"| {job.name} ({job.calls}, {job.iteration_seconds:g} s) | {share(base, job, 1):.4%} |" + "".join(cells))


if __name__ == "__main__":
    main()
