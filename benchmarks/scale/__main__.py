"""What Falcon costs at scale, with real etcd, kube-apiserver, operator and gateway, and agents that are played.

make venv cluster-build && python -m benchmarks.scale --check       # the most important figures; ten minutes
make venv cluster-build && python -m benchmarks.scale --full        # all figures, into RESULTS.md; an hour
make venv cluster-build && python -m benchmarks.scale --only burst  # one part

Each ends with exit code 1 where a limit is not kept.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.results import provenance, put
from benchmarks.scale import agents, burst, idle, limits, many_jobs, meter, one_job, startup

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = Path(__file__).with_name("RESULTS.md")
GROWTH: Final = Path(__file__).with_name("growth.svg")
PARTS: Final = ("start", "idle", "one-job", "many-jobs", "burst")
CHECKED: Final = ("one-job", "many-jobs", "burst")
PODS: Final = 12_800
STEPS: Final = (10, 25, 50, 100, 200)  # jobs
CHECKED_STEPS: Final = (25,)
SECONDS: Final = 120.0
CHECKED_SECONDS: Final = 40.0


class Run:
    """The parts that were measured: tables to read, and limits."""

    def __init__(self, programs: Path, *, full: bool) -> None:
        self._programs = programs
        self._full = full
        self._seconds = SECONDS if full else CHECKED_SECONDS
        self.tables: list[str] = []
        self.limits: list[limits.Limit] = []

    def measure(self, part: str) -> None:
        """Measure one of ``PARTS``."""
        match part:
            case "start":
                start = startup.measure(PODS)
                self._found(start.table(), limits.of_start(start))
            case "idle":
                waiting = idle.measure()
                self._found(waiting.table(), limits.of_idle(waiting))
            case "one-job":
                one = asyncio.run(one_job.measure(self._programs, one_job.PODS, self._seconds))
                self._found(_costs(one.costs), limits.of_one_job(one))
            case "many-jobs":
                steps = STEPS if self._full else CHECKED_STEPS
                costs = asyncio.run(many_jobs.measure(self._programs, steps, self._seconds))
                self._found(_costs(costs), limits.of_many_jobs(costs))
                if self._full:
                    draw(costs, GROWTH)
                    self.tables.append(f"![growth over the number of jobs]({GROWTH.name})\n")
            case "burst":
                self._found("", limits.of_burst(asyncio.run(burst.measure(self._programs))))

    def _found(self, table: str, kept: list[limits.Limit]) -> None:
        self.tables += [table] * bool(table)
        self.limits += kept


def _costs(costs: Sequence[meter.Cost]) -> str:
    return "\n".join([meter.HEAD, *(cost.row() for cost in costs), ""])


def draw(costs: Sequence[meter.Cost], path: Path) -> None:
    """Draw the growth over the number of agents."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(9, 3), layout="constrained")
    cores, memory, requests = figure.subplots(1, 3)
    jobs = [cost.agents // many_jobs.PODS for cost in costs]
    for name in meter.MEASURED:
        cores.plot(jobs, [cost.cpu[name] for cost in costs], marker="o", label=name)
    cores.legend()
    cores.set_ylabel("cores")
    memory.plot(jobs, [cost.operator_mib for cost in costs], marker="o", label="operator")
    memory.plot(jobs, [cost.gateway_mib for cost in costs], marker="o", label="gateway")
    memory.legend()
    memory.set_ylabel("MiB")
    requests.plot(jobs, [cost.requests_per_second for cost in costs], marker="o")
    requests.set_ylabel("API requests a second")
    for axes in (cores, memory, requests):
        axes.set_xlabel(f"jobs of {many_jobs.PODS} pods × {many_jobs.RANKS} ranks")
        axes.set_ylim(bottom=0)
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--check", action="store_true", help=f"measure {', '.join(CHECKED)}, in small")
    which.add_argument("--full", action="store_true", help="measure everything and write RESULTS.md")
    which.add_argument("--only", choices=PARTS, help="measure one part whole")
    options = parser.parse_args()
    head = provenance()
    run = Run(agents.build(), full=not options.check)
    for part in [options.only] if options.only else CHECKED if options.check else PARTS:
        run.measure(part)
    body = "\n".join([head, *run.tables, limits.table(run.limits)])
    print(body)
    if options.full:
        put(RESULTS, body)
    short = [limit for limit in run.limits if not limit.kept]
    for limit in short:
        print(f"Falls short: {limit.what}: {limit.measured:.3g} {limit.unit}, at most {limit.most:.3g}")
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
