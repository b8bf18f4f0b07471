"""The simulator's own wall time, CPU time and memory against ranks and iterations, each run in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from falcon_sim.engine import Engine
from falcon_sim.job.scenario import Degrees, Faults, Run, Scenario, SlowFault, checked, load

replace = msgspec.structs.replace
HERE = Path(__file__).parent
RANKS = (64, 256, 1024)
ITERATIONS = (300, 1000, 3000)


class Measured(NamedTuple):
    """One run."""

    ranks: int
    iterations: int
    sentinels: int  # 0: all rings are read all the time
    wall_seconds: float
    cpu_seconds: float
    peak_mebibytes: float
    records: int


def scaled(ranks: int, iterations: int, sentinels: int) -> Scenario:
    """Return speed1024.yaml with other numbers: 8TP × 8PP, the rest data-parallel; one fault in the first half."""
    plain = load(HERE / "speed1024.yaml")
    degrees = Degrees(tensor=8, pipeline=8, data=ranks // 64)
    nodes = ranks // plain.job.procs_per_node
    slow = SlowFault(at_seconds=0.3 * iterations * 4.0, duration_seconds=1e9, factor=2.0, node=nodes // 2, proc=3)
    return checked(
        replace(
            plain,
            run=Run(iterations=iterations),
            job=replace(plain.job, parallelism=degrees),
            detection=replace(plain.detection, sentinels=sentinels),
            faults=Faults(slow=[slow]),
        )
    )


def run(ranks: int, iterations: int, sentinels: int) -> Measured:
    """Run once in this process; the run's peak memory is the process's."""
    scenario = scaled(ranks, iterations, sentinels)
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    engine = Engine(scenario)
    engine.run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Measured(
        ranks,
        iterations,
        sentinels,
        time.perf_counter() - begun,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        after.ru_maxrss / 1024,
        engine.agents.records if engine.agents is not None else 0,
    )


def _apart(*sizes: int) -> Measured:
    """Run once in a process of its own."""
    command = [sys.executable, "-m", "evaluation.simulator.growth", *map(str, sizes)]
    finished = subprocess.run(command, check=True, capture_output=True)
    return msgspec.json.decode(finished.stdout, type=Measured)


def measured() -> list[Measured]:
    """Measure all sizes, one after the other."""
    runs = [(ranks, 1000, 4) for ranks in RANKS]
    runs += [(1024, iterations, 4) for iterations in ITERATIONS if iterations != 1000]
    runs += [(ranks, 300, 0) for ranks in RANKS[:2]]
    return [_apart(*sizes) for sizes in runs]


def table(found: Sequence[Measured]) -> list[str]:
    """Return Markdown rows."""
    lines = [
        "| ranks | iterations | rings read all the time | wall s | CPU s | peak MiB | records |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in found:
        rings = run.sentinels or "all"
        lines.append(
            f"| {run.ranks} | {run.iterations} | {rings} | {run.wall_seconds:.1f} | {run.cpu_seconds:.1f}"
            f" | {run.peak_mebibytes:.0f} | {run.records:,} |"
        )
    return lines


def _curves(found: Sequence[Measured]) -> dict[str, list[Measured]]:
    few, every = [run for run in found if run.sentinels], [run for run in found if not run.sentinels]
    return {
        "growing ranks, 1 000 iterations": [run for run in few if run.iterations == 1000],
        "growing iterations, 1 024 ranks": [run for run in few if run.ranks == 1024],
        "all rings read, 300 iterations": every,
    }


def draw(figure: Any, found: Sequence[Measured]) -> None:
    """Draw wall time and memory over ranks × iterations, on a matplotlib figure."""
    left, right = figure.subplots(1, 2)
    for label, chosen in _curves(found).items():
        chosen.sort(key=lambda run: run.ranks * run.iterations)
        work = [run.ranks * run.iterations for run in chosen]
        left.loglog(work, [run.wall_seconds for run in chosen], marker="o", label=label)
        right.loglog(work, [run.peak_mebibytes for run in chosen], marker="o", label=label)
    left.set(xlabel="ranks × iterations", ylabel="wall [s]", title="The simulator: time")
    right.set(xlabel="ranks × iterations", ylabel="peak memory [MiB]", title="and memory")
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.3, which="both")
    left.legend()


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(run(*map(int, sys.argv[1:]))))
