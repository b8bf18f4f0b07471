"""Goodput against detection delay, size of the warm pool, and what Falcon may do: medians over seeds and ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_sim.engine import Engine
from falcon_sim.job.scenario import Scenario, load

HERE = Path(__file__).parent
DELAYS_SECONDS = (0.0, 60.0, 600.0, 1800.0)
POOLS = (0, 4, 8, 16)
COMPARED_POOLS = (0, 4, 6, 8, 12, 16)
MODES: dict[Literal["None", "FailStop", "All"], str] = {
    "None": "no Falcon",
    "FailStop": "fail-stop alone",
    "All": "all of it",
}
SEEDS = range(1, 4)
replace = msgspec.structs.replace
Grid = npt.NDArray[np.float64]  # [delays, pools, seeds]


def _ettr(scenario: Scenario) -> float:
    engine = Engine(scenario)
    return engine.run().goodput(scenario.job, engine.healthy_seconds).ettr


def measured() -> Grid:
    """Return effective training time ratios. A seed draws other faults for a cluster with other spares."""
    plain = load(HERE / "sensitivity.yaml")
    found = np.empty((len(DELAYS_SECONDS), len(POOLS), len(SEEDS)))
    for (delay, pool, seed), _ in np.ndenumerate(found):
        found[delay, pool, seed] = _ettr(
            replace(
                plain,
                seed=SEEDS[seed],
                cluster=replace(plain.cluster, spares=POOLS[pool]),
                detection=replace(plain.detection, delay_seconds=DELAYS_SECONDS[delay]),
            )
        )
    return found


def modes() -> list[str]:
    """Return Markdown rows by pool: the same weeks without Falcon, with its answer to failures, with all of it."""
    plain = load(HERE / "sensitivity.yaml")
    lines = [
        "| spares | " + " | ".join(MODES.values()) + " | all − fail-stop alone, by seed, points |",
        "|---" * (len(MODES) + 2) + "|",
    ]
    for pool in COMPARED_POOLS:
        cluster = replace(plain.cluster, spares=pool)
        ratios = {}
        for mode in MODES:
            scenario = replace(plain, cluster=cluster, mitigation=replace(plain.mitigation, falcon=mode))
            ratios[mode] = np.array([_ettr(replace(scenario, seed=seed)) for seed in SEEDS])
        gains = ", ".join(f"{100 * gain:+.1f}" for gain in ratios["All"] - ratios["FailStop"])
        lines.append(f"| {pool} | " + " | ".join(_cell(values) for values in ratios.values()) + f" | {gains} |")
    return lines


def _cell(values: npt.NDArray[np.float64]) -> str:
    return f"{np.median(values):.1%} ({values.min():.1%}–{values.max():.1%})"


def table(found: Grid) -> list[str]:
    """Return Markdown rows by delay, columns by pool."""
    lines = [
        "| detection delay | " + " | ".join(f"{pool} spares" for pool in POOLS) + " |",
        "|---" * (len(POOLS) + 1) + "|",
    ]
    for delay, row in zip(DELAYS_SECONDS, found, strict=True):
        lines.append(f"| {delay:g} s | " + " | ".join(_cell(cell) for cell in row) + " |")
    return lines


def draw(figure: Any, found: Grid) -> None:
    """Draw medians with bars from the least to the most, one line a pool, on a matplotlib figure."""
    axes = figure.add_subplot()
    for place, pool in enumerate(POOLS):
        cells = found[:, place]
        middle = np.median(cells, axis=1)
        bars = np.abs(np.stack((cells.min(axis=1), cells.max(axis=1))) - middle)
        at = np.array(DELAYS_SECONDS) * (1 + 0.03 * place) + place  # so that bars do not cover each other
        axes.errorbar(at, middle, yerr=bars, marker="o", capsize=2, label=f"{pool} spares")
    axes.set_xscale("symlog", linthresh=30)
    axes.set_xticks(DELAYS_SECONDS, [f"{delay:g}" for delay in DELAYS_SECONDS])
    axes.set(
        xlabel="detection delay [s]",
        ylabel=f"goodput (ETTR): median and range of {len(SEEDS)} seeds",
        ylim=(0, 1),
        title="64 nodes for a week, a failure each four to five hours",
    )
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
