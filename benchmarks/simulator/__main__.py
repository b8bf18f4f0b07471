"""``python -m benchmarks.simulator [fidelity strategies clusters falcon64 falcon256 llama3 speed]``: Markdown tables.

Without arguments all of them, in this order; the last four play out whole jobs and take minutes.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.simulator import clusters, fidelity, strategies
from falcon_core.planning.goodput import removed_slowdown
from falcon_sim.engine import Engine
from falcon_sim.report import Report, report
from falcon_sim.scenario import Faults, Scenario, load

HERE = Path(__file__).parent


def _run(scenario: Scenario, falcon: str) -> Report:
    mitigation = msgspec.structs.replace(scenario.mitigation, falcon=falcon)
    engine = Engine(msgspec.structs.replace(scenario, mitigation=mitigation))
    engine.run()
    return report(engine)


def fail_slow(name: str) -> list[str]:
    """Healthy, with the faults, and with the faults and Falcon: iterations a minute."""
    scenario = load(HERE / f"{name}.yaml")
    healthy = _run(msgspec.structs.replace(scenario, faults=Faults()), "FailStop").iterations_per_minute
    slow = _run(scenario, "FailStop").iterations_per_minute
    mitigated = _run(scenario, "All").iterations_per_minute
    by_time = removed_slowdown(1 / healthy, 1 / slow, 1 / mitigated)
    return [
        f"| {name} | healthy | slow | with Falcon | ÷ slow | removed, by throughput | removed, by time |",
        "|---|---|---|---|---|---|---|",
        f"| iterations a minute | {healthy:.1f} | {slow:.1f} | {mitigated:.1f} | {mitigated / slow:.2f} ×"
        f" | {removed_slowdown(healthy, slow, mitigated):.1%} | {by_time:.1%} |",
    ]


def llama3() -> list[str]:
    """Effective training time ratio of the published run's failures."""
    scenario = load(HERE / "llama3.yaml")
    lines = ["| Llama 3, 16,384 GPUs, 54 days | ETTR | redone iterations | nodes replaced |", "|---|---|---|---|"]
    for falcon in ("None", "FailStop"):
        told = _run(scenario, falcon)
        lost = told.goodput.lost_iterations
        lines.append(f"| Falcon: {falcon} | {told.goodput.ettr:.1%} | {lost:,.0f} | {told.replaced_nodes} |")
    return lines


def speed() -> list[str]:
    """1 024 ranks × 10 000 iterations."""
    scenario = load(HERE / "speed1024.yaml")
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime, time.perf_counter()
    told = _run(scenario, "All")
    wall = time.perf_counter() - begun
    cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    return [
        "| 1 024 ranks × 10 000 iterations | wall | CPU | ring records read |",
        "|---|---|---|---|",
        f"| {told.read_ranks} rings all the time | {wall:.0f} s | {cpu:.0f} s | {told.records:,} |",
    ]


TABLES: dict[str, Callable[[], list[str]]] = {
    "fidelity": fidelity.table,
    "strategies": strategies.tables,
    "clusters": lambda: [*clusters.cases(), "", *clusters.traces(), "", *clusters.spot_table()],
    "falcon64": lambda: fail_slow("falcon64"),
    "falcon256": lambda: fail_slow("falcon256"),
    "llama3": llama3,
    "speed": speed,
}

if __name__ == "__main__":
    for asked in sys.argv[1:] or TABLES:
        print("\n".join(TABLES[asked]()), end="\n\n", flush=True)
