"""Measure what Falcon removes of a slowdown: ``python -m evaluation.simulator [--plots FOLDER] [--only TABLE,…]``.

Without names all tables are made, in this order; those from ``falcon64`` on play out whole jobs and take minutes.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from evaluation.harness import Evaluation, Maker, Table, run
from evaluation.simulator import (
    calls,
    checkpoints,
    clusters,
    compound,
    falcon,
    fidelity,
    growth,
    intervals,
    policies,
    sensitivity,
    strategies,
)
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import Scenario, load
from falcon_sim.report import Report, report

HERE = Path(__file__).parent


def _run(scenario: Scenario, falcon: str) -> Report:
    mitigation = msgspec.structs.replace(scenario.mitigation, falcon=falcon)
    engine = Engine(msgspec.structs.replace(scenario, mitigation=mitigation))
    engine.run()
    return report(engine)


def sensitivity_table(plots: Path | None) -> list[str]:
    """Return goodput against delay and pool; draw the picture where one was asked for."""
    found = sensitivity.measured()
    _plot(plots, "sensitivity.svg", lambda figure: sensitivity.draw(figure, found))
    return sensitivity.table(found)


def growth_table(plots: Path | None) -> list[str]:
    """Return the cost of the simulator itself; draw the picture where one was asked for."""
    found = growth.measured()
    _plot(plots, "growth.svg", lambda figure: growth.draw(figure, found))
    return growth.table(found)


def _plot(folder: Path | None, name: str, draw: Callable[[Any], None]) -> None:
    """Draw ``name`` into the folder, if there is one. Raises ImportError without matplotlib."""
    if folder is None:
        return
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(9, 5), layout="constrained")
    draw(figure)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "falcon"}):  # text as text, the same file each time
        figure.savefig(folder / name, metadata={"Date": None})


def llama3() -> list[str]:
    """Return the effective training time ratio of the published run's failures."""
    scenario = load(HERE / "llama3.yaml")
    lines = ["| Llama 3, 16,384 GPUs, 54 days | ETTR | redone iterations | nodes replaced |", "|---|---|---|---|"]
    for mode in ("None", "FailStop"):
        result = _run(scenario, mode)
        lost = result.goodput.lost_iterations
        lines.append(f"| Falcon: {mode} | {result.goodput.ettr:.1%} | {lost:,.0f} | {result.replaced_nodes} |")
    return lines


def speed() -> list[str]:
    """Measure 1 024 ranks × 10 000 iterations."""
    scenario, load_before = load(HERE / "speed1024.yaml"), os.getloadavg()[0]
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = _run(scenario, "All")
    wall, load_after = time.perf_counter() - begun, os.getloadavg()[0]
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [
        "| 1 024 ranks × 10 000 iterations | wall | CPU | load | ring records read |",
        "|---|---|---|---|---|",
        f"| {result.read_ranks} rings all the time | {wall:.0f} s | {cpu:.0f} s | {load_before:.1f}, {load_after:.1f}"
        f" | {result.records:,} |",
    ]


TABLES: Final[Mapping[str, Callable[[Path | None], list[str] | Table]]] = {
    "fidelity": lambda _: fidelity.table(),
    "strategies": lambda _: strategies.tables(),
    "clusters": lambda _: [*clusters.cases(), "", *clusters.traces(), "", *clusters.spot_table()],
    "falcon64": lambda _: falcon.table(
        "falcon64", [(1, None), *((times, policies.OWN_SECONDS) for times in (1, 2, 4))], range(1, 2)
    ),
    "policies": lambda _: policies.few(),
    "falcon17": lambda _: compound.table(),
    "falcon256": lambda _: falcon.table("falcon256", [(1, None), (1, policies.OWN_SECONDS)], range(1, 2)),
    "calls": lambda _: calls.table(),
    "sensitivity": sensitivity_table,
    "pools": lambda _: sensitivity.modes(),
    "checkpoints": lambda _: checkpoints.table(),
    "intervals": lambda _: intervals.table(intervals.measured()),
    "llama3": lambda _: llama3(),
    "speed": lambda _: speed(),
    "growth": growth_table,
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw pictures here (needs matplotlib)")


def _table(make: Callable[[Path | None], list[str] | Table]) -> Maker:
    def made(options: argparse.Namespace) -> Table:
        if options.plots is not None:
            options.plots.mkdir(parents=True, exist_ok=True)
        found = make(options.plots)
        return found if isinstance(found, Table) else Table("\n".join(found))

    return made


SIMULATOR: Final = Evaluation(
    name="simulator",
    about=__doc__,
    code=("core/falcon_core", "core/falcon_sim", "evaluation/simulator/*.py"),
    tables={name: _table(make) for name, make in TABLES.items()},
    checked=("intervals",),
    options=_options,
)

if __name__ == "__main__":
    raise SystemExit(run(SIMULATOR))
