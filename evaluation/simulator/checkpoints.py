"""What a replacement's price must hold: 64 ranks with a checkpoint every 30 minutes, by what Falcon knows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from falcon_sim.engine import Engine
from falcon_sim.job.scenario import Policy, Scenario, SlowFault, load

HERE = Path(__file__).parent
SEEDS = range(1, 21)
LASTING_SEEDS = range(1, 6)
INTERVAL_SECONDS = 1800.0
replace = msgspec.structs.replace


def _policies(plain: Policy) -> dict[str, Policy]:
    """Name what Falcon may do and what it knows of the price."""
    configured = tuple(
        replace(strategy, overhead_seconds=900.0) if strategy.type == "ReplaceNode" else strategy
        for strategy in plain.strategies
    )
    return {
        "fail-stop alone": replace(plain, falcon="FailStop"),
        "all, the standstill alone (before ADR 0040)": replace(plain, checkpoint_interval_seconds=1.0),
        "all, nothing declared": plain,
        "all, interval of 1800 s declared": replace(plain, checkpoint_interval_seconds=INTERVAL_SECONDS),
        "all, price of 900 s configured": replace(plain, strategies=configured),
    }


def _drawn(plain: Scenario, seed: int) -> Scenario:
    """Move the slowdowns together, by a random part of the interval."""
    shift = float(np.random.default_rng(seed).uniform(0, INTERVAL_SECONDS))
    slow = [replace(fault, at_seconds=fault.at_seconds + shift) for fault in plain.faults.slow]
    return replace(plain, seed=seed, faults=replace(plain.faults, slow=slow))


def _lasting(plain: Scenario) -> Scenario:
    """Put one severe slowdown that does not end in the place of the two."""
    first = plain.faults.slow[0]
    forever = SlowFault(at_seconds=first.at_seconds, duration_seconds=1e9, factor=2.5, node=first.node, proc=first.proc)
    return replace(plain, faults=replace(plain.faults, slow=[forever]))


def table() -> list[str]:
    """Make Markdown rows: effective time, replacements and redone work, means over the seeds."""
    plain = load(HERE / "checkpoints.yaml")
    lines = [
        "| slowdowns | Falcon | effective time, mean (range) | nodes replaced | redone |",
        "|---|---|---|---|---|",
    ]
    cases = (("two of 20 min, 1.3 ×", plain, SEEDS), ("one to the end, 2.5 ×", _lasting(plain), LASTING_SEEDS))
    for name, scenario, seeds in cases:
        for label, policy in _policies(plain.mitigation).items():
            rows = []
            for seed in seeds:
                engine = Engine(replace(_drawn(scenario, seed), mitigation=policy))
                goodput = engine.run().goodput(scenario.job, engine.healthy_seconds)
                redone_minutes = goodput.lost_iterations * engine.healthy_seconds / 60
                rows.append((goodput.ettr, engine.cluster.replaced, redone_minutes))
            ettr, replaced, redone = np.array(rows).T
            lines.append(
                f"| {name} | {label} | {ettr.mean():.3f} ({ettr.min():.3f}–{ettr.max():.3f})"
                f" | {replaced.mean():.1f} | {redone.mean():.0f} min |"
            )
    return lines
