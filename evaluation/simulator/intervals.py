"""Effective time against the interval between two checkpoints: all of Falcon beside its answer to failures alone.

The rule that decides about a restart is ski-rental: it acts when a slowdown has cost as much as the restart is going to
cost. So an action loses at most its own price, which happens where the slowdown ends with it: the standstill, and the
work that it redid, both as they were in that run. Besides that, a restart moves the checkpoints that follow, so that a
later failure redoes more or less than without it: that is chance, and stands in a column of its own.

Each seed is played three times: failures alone, all of Falcon with ranks that report their checkpoints, and with ranks
that report nothing, where the interval is declared and the rule has to guess half of it (long intervals alone: half of
a short one is nothing). ``python -m evaluation.simulator --check`` fails where a seed loses more than the bound, or the
mean of a row loses by what else Falcon does.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from evaluation.harness import Measure, Table
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import Scenario, load

HERE = Path(__file__).parent
INTERVALS_SECONDS = (1, 10, 60, 300, 900, 1800, 3600)
GUESSED_SECONDS = 300  # intervals from here on are played without reports as well
SEEDS = range(1, 51)
PROCESSES = 2
# Of the run. Stretches that are jumped over take the mean of 64 iterations, those that are played out their own times;
# with agents more is played out. So a seed in which nothing was done differs by some seconds in eight hours.
NOISE = 1e-3
MEAN_NOISE = 1e-4
replace = msgspec.structs.replace


class Played(NamedTuple):
    """One run. All figures but the count are shares of its time."""

    effective: float
    actions: int  # restarts for a slow node
    paid: float  # by these: the standstill and the work that was redone
    redone: float  # by all other restarts


class Outcome(NamedTuple):
    """One seed at one interval."""

    stops_alone: Played
    reported: Played  # all of Falcon, and the ranks say when they have saved
    unseen: Played | None  # all of Falcon, and they do not; None: not played


def _run(plain: Scenario, falcon: Literal["FailStop", "All"], *, reported: bool) -> Played:
    job = replace(plain.job, reports_checkpoints=reported)
    engine = Engine(replace(plain, job=job, mitigation=replace(plain.mitigation, falcon=falcon)))
    timeline = engine.run()
    times, whole = plain.cluster, plain.run.seconds or 1.0
    standstill = times.stop_seconds + times.start_seconds + times.restore_seconds
    redone = dict.fromkeys((True, False), 0.0)
    for restart in timeline.restarts:
        redone[restart.planned] += restart.redone_iterations * engine.healthy_seconds
    actions = sum(restart.planned for restart in timeline.restarts)
    return Played(
        timeline.goodput(job, engine.healthy_seconds).ettr,
        actions,
        (actions * standstill + redone[True]) / whole,
        redone[False] / whole,
    )


def outcome(interval: int, seed: int) -> Outcome:
    """Play one seed, with and without an answer to slowdowns."""
    plain = replace(load(HERE / "intervals.yaml"), seed=seed)
    every = max(1, round(interval / Engine(plain).healthy_seconds))
    scenario = replace(
        plain,
        job=replace(plain.job, checkpoint_every_iterations=every),
        mitigation=replace(plain.mitigation, checkpoint_interval_seconds=float(interval)),
    )
    return Outcome(
        _run(scenario, "FailStop", reported=False),
        _run(scenario, "All", reported=True),
        _run(scenario, "All", reported=False) if interval >= GUESSED_SECONDS else None,
    )


def measured() -> dict[int, list[Outcome]]:
    """Return the outcomes of all seeds by interval, seconds."""
    cases = [(interval, seed) for interval in INTERVALS_SECONDS for seed in SEEDS]
    found: dict[int, list[Outcome]] = {interval: [] for interval in INTERVALS_SECONDS}
    with ProcessPoolExecutor(PROCESSES) as pool:
        for (interval, _), each in zip(cases, pool.map(outcome, *zip(*cases, strict=True)), strict=True):
            found[interval].append(each)
    return found


def table(found: dict[int, list[Outcome]]) -> Table:
    """Make Markdown rows by interval, and the limits of what Falcon may lose."""
    lines = [
        "| checkpoints | interval | fail-stop alone | all of it, mean (worst seed) | actions, of all seeds"
        " | gain, points: mean (worst) | of it by chance, worst seed | bound of that seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    measures: list[Measure] = []
    names: tuple[Literal["reported", "unseen"], ...] = ("reported", "unseen")
    for name in names:
        for interval, outcomes in found.items():
            if any(getattr(each, name) is None for each in outcomes):
                continue
            row, limits = _row(name, interval, outcomes)
            lines.append(row)
            measures += limits
    return Table("\n".join(lines), measures)


def _row(name: Literal["reported", "unseen"], interval: int, outcomes: list[Outcome]) -> tuple[str, list[Measure]]:
    """Make a row, and the limits of its worst seed and of its mean."""
    alone = np.array([each.stops_alone for each in outcomes])  # [seeds, fields of Played]
    everything = np.array([getattr(each, name) for each in outcomes])
    gains = everything[:, 0] - alone[:, 0]
    chance = alone[:, 3] - everything[:, 3]  # what failures redid less
    left = gains - chance + everything[:, 2]
    worst = int(np.argmin(gains))
    seed = SEEDS[int(np.argmin(left))]
    where = f"{name}, {interval} s"
    measures = [
        Measure(f"{where}: what is left of the bound of seed {seed}", float(left.min()), -NOISE, form="+.4f"),
        Measure(f"{where}: gain in the mean", float(gains.mean()), -MEAN_NOISE, form="+.5f"),
    ]
    row = (
        f"| {name} | {interval} s | {alone[:, 0].mean():.3f}"
        f" | {everything[:, 0].mean():.3f} ({everything[:, 0].min():.3f}) | {everything[:, 1].sum():.0f}"
        f" | {100 * gains.mean():+.2f} ({100 * gains[worst]:+.1f})"
        f" | {100 * chance[worst]:+.1f} | {-100 * everything[worst, 2]:.1f} |"
    )
    return row, measures
