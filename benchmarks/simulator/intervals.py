"""Effective time against the interval between two checkpoints: all of Falcon beside its answer to failures alone.

The rule that decides about a restart is ski-rental: it acts when a slowdown has cost as much as the restart is going to
cost. So an action loses at most its own price, which happens where the slowdown ends with it. The price that counts is
the true one: the standstill and all that was trained since the last checkpoint, an interval at most, although the rule
has to guess it. ``python -m benchmarks.simulator intervals`` fails where the mean of a row loses by what else Falcon
does, or the worst seed loses more than that bound.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from falcon_sim.engine import Engine
from falcon_sim.scenario import Scenario, load

HERE = Path(__file__).parent
INTERVALS_SECONDS = (1, 10, 60, 300, 900, 1800, 3600)
SEEDS = range(1, 51)
PROCESSES = 2
replace = msgspec.structs.replace


class Outcome(NamedTuple):
    """One seed at one interval."""

    stops_alone: float  # effective time ratio, of 1
    everything: float
    replaced: int  # nodes that all of Falcon left because they were slow
    bound: float  # the most that these actions may have lost, of 1


def _run(plain: Scenario, seed: int, interval: int, falcon: Literal["FailStop", "All"]) -> tuple[Engine, float]:
    probe = Engine(replace(plain, seed=seed))
    every = max(1, round(interval / probe.healthy_seconds))
    scenario = replace(
        plain,
        seed=seed,
        job=replace(plain.job, checkpoint_every_iterations=every),
        mitigation=replace(plain.mitigation, falcon=falcon, checkpoint_interval_seconds=float(interval)),
    )
    engine = Engine(scenario)
    return engine, engine.run().goodput(scenario.job, engine.healthy_seconds).ettr


def outcome(interval: int, seed: int) -> Outcome:
    """Play one seed, with and without an answer to slowdowns."""
    plain = load(HERE / "intervals.yaml")
    alone, stops_alone = _run(plain, seed, interval, "FailStop")
    engine, everything = _run(plain, seed, interval, "All")
    replaced = max(0, engine.cluster.replaced - alone.cluster.replaced)
    times = plain.cluster
    standstill = times.stop_seconds + times.pod_seconds + times.start_seconds + times.restore_seconds
    bound = replaced * (standstill + interval) / (plain.run.seconds or 1.0)
    return Outcome(stops_alone, everything, replaced, bound)


def measured() -> dict[int, list[Outcome]]:
    """Return the outcomes of all seeds by interval, seconds."""
    cases = [(interval, seed) for interval in INTERVALS_SECONDS for seed in SEEDS]
    found: dict[int, list[Outcome]] = {interval: [] for interval in INTERVALS_SECONDS}
    with ProcessPoolExecutor(PROCESSES) as pool:
        for (interval, _), each in zip(cases, pool.map(outcome, *zip(*cases, strict=True)), strict=True):
            found[interval].append(each)
    return found


def table(found: dict[int, list[Outcome]]) -> list[str]:
    """Make Markdown rows by interval. Raises AssertionError where Falcon loses more than its rule may."""
    lines = [
        "| interval | fail-stop alone, mean | all of it, mean (worst seed) | nodes replaced"
        " | gain, points: mean (worst seed) | bound of that seed |",
        "|---|---|---|---|---|---|",
    ]
    wrong = []
    for interval, outcomes in found.items():
        alone, everything, replaced, bounds = np.array(outcomes).T
        gains = everything - alone
        worst = int(np.argmin(gains))
        if gains.mean() < 0 or np.any(gains < -bounds - 1e-3):
            least = (gains + bounds).min()
            wrong.append(f"{interval} s: gains {gains.mean():+.4f} in the mean, worst by bound {least:+.4f}")
        gained = f"{100 * gains.mean():+.1f} ({100 * gains[worst]:+.1f})"
        lines.append(
            f"| {interval} s | {alone.mean():.3f} | {everything.mean():.3f} ({everything.min():.3f})"
            f" | {replaced.mean():.1f} | {gained} | {-100 * bounds[worst]:.1f} |"
        )
    if wrong:
        raise AssertionError("\n".join([*lines, *wrong]))
    return lines
