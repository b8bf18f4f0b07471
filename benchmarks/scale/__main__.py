"""What Falcon costs at scale, with real etcd, kube-apiserver, operator and gateway, and agents that are played.

make venv cluster-build && python -m benchmarks.scale --check       # the most important figures; ten minutes
make venv cluster-build && python -m benchmarks.scale --full        # all figures, into RESULTS.md; an hour
make venv cluster-build && python -m benchmarks.scale --only burst  # all figures of one part, into RESULTS.md

Each ends with exit code 1 where a limit is not kept.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.limits import Limit, table
from benchmarks.results import provenance, put
from benchmarks.scale import agents, limits, meter
from benchmarks.scale.parts import burst, idle, many_jobs, one_job, startup

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = Path(__file__).with_name("RESULTS.md")
GROWTH: Final = Path(__file__).with_name("growth.svg")
PARTS: Final = ("start", "idle", "one-job", "many-jobs", "burst")
CHECKED: Final = ("one-job", "many-jobs", "burst")
PODS: Final = 12_800
STEPS: Final = (10, 50, 100)  # jobs
SLOWER_STEPS: Final = (100, 200)
CHECKED_STEPS: Final = (50,)
SECONDS: Final = 120.0
STEP_SECONDS: Final = 60.0
CHECKED_SECONDS: Final = 40.0


class Part(NamedTuple):
    """What was measured: a table to read, and limits."""

    table: str
    limits: list[Limit]

    def body(self, head: str) -> str:
        """Return the part as it stands in ``RESULTS.md``."""
        return "\n".join([head, *[self.table] * bool(self.table), table(self.limits)])


def measure(part: str, programs: Path, *, full: bool) -> Part:
    """Measure one of ``PARTS``."""
    seconds = SECONDS if full else CHECKED_SECONDS
    match part:
        case "start":
            start = startup.measure(PODS)
            return Part(start.table(), limits.of_start(start))
        case "idle":
            waiting = idle.measure()
            return Part(waiting.table(), limits.of_idle(waiting))
        case "one-job":
            one = asyncio.run(one_job.measure(programs, one_job.PODS, seconds))
            return Part(_costs(one.costs), limits.of_one_job(one))
        case "many-jobs":
            steps = STEPS if full else CHECKED_STEPS
            costs = asyncio.run(many_jobs.measure(programs, steps, min(seconds, STEP_SECONDS)))
            if full:
                costs += asyncio.run(many_jobs.measure(programs, SLOWER_STEPS, STEP_SECONDS, slower=many_jobs.SLOWER))
                draw(costs, GROWTH)
            return Part(_costs(costs), limits.of_many_jobs(costs))
        case "burst":
            return Part("", limits.of_burst(asyncio.run(burst.measure(programs))))
        case _:
            raise ValueError(f"there is no part {part!r}, only {', '.join(PARTS)}")


def _costs(costs: Sequence[meter.Cost]) -> str:
    return "\n".join([meter.HEAD, *(cost.row() for cost in costs), ""])


def draw(costs: Sequence[meter.Cost], path: Path) -> None:
    """Draw the growth over the number of agents."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(9, 3), layout="constrained")
    cores, memory, requests = figure.subplots(1, 3)
    costs = [cost for cost in costs if cost.slower == 1 or cost is costs[-1]]
    jobs = [cost.agents // many_jobs.PODS for cost in costs]
    for name in meter.MEASURED:
        cores.plot(jobs, [cost.slower * cost.cpu[name] for cost in costs], marker="o", label=name)
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
    which.add_argument("--full", action="store_true", help="measure everything")
    which.add_argument("--only", choices=PARTS, help="measure one part")
    options = parser.parse_args()
    programs = agents.build()
    found = []
    for name in [options.only] if options.only else CHECKED if options.check else PARTS:
        head = provenance()
        part = measure(name, programs, full=not options.check)
        print(part.body(head))
        if not options.check:
            put(RESULTS, part.body(head), name)
        found += part.limits
    short = [limit for limit in found if not limit.kept]
    for limit in short:
        print(f"Falls short: {limit.what}: {limit.measured:.3g} {limit.unit}, at most {limit.most:.3g}")
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
