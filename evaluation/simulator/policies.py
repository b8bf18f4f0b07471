"""FALCON's published policy beside ours, and beside what hindsight would reach, on the very same faults.

    python -m evaluation.simulator --only policies               # five seeds of falcon64, minutes
    python -m evaluation.simulator.policies --seeds 50 [--times 1 2 4] [--keep FILE]      # hours

Each seed draws the moments, depths, lengths and places of the faults of ``falcon64.yaml``, as many of each kind and as
long in the mean. The published policy is ``falcon_sim.policies.published`` at FALCON's prices: S2 1 s, S3 45 s ("under
a minute"), S4 20 min, and a pause of 3 s to validate each event. Ours is run at the same prices, and at the price that
an exchange has here (``OWN_SECONDS``). *Closed* is how much of the way from the published policy to hindsight at our
prices ours goes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from evaluation.simulator.falcon import hindsight, per_minute, priced, stretched
from falcon_core.planning.goodput import removed_slowdown
from falcon_sim.job.scenario import Faults, Published, Scenario, SlowFault, load

HERE: Final = Path(__file__).parent
# A restart without a standby (2.1 s, tests/e2e/campaigns/measure), and 52 GB a GPU (13 billion parameters in four
# stages, 16 bytes each) at 6.5 GB/s, which is assumed.
OWN_SECONDS: Final = 10.0
LEAST_SECONDS: Final = 20.0  # of a fault
FACTORS: Final = {"Computation": (1.2, 1.8), "Communication": (3.0, 9.0)}
replace = msgspec.structs.replace


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One seed: iterations a minute."""

    times: float
    seed: int
    healthy: float
    slow: float
    published: float
    ours_same_prices: float
    ours: float
    hindsight: float  # at our prices


def drawn(plain: Scenario, seed: int) -> Scenario:
    """Return the scenario with other faults, as many of each kind and as long in the mean."""
    rng = np.random.default_rng([seed, 64])
    assert plain.run.seconds is not None
    slow: list[SlowFault] = []
    for kind, factors in FACTORS.items():
        given = [fault for fault in plain.faults.slow if fault.kind == kind]
        mean = float(np.mean([fault.duration_seconds for fault in given]))
        for _ in given:
            lasts = max(LEAST_SECONDS, float(rng.exponential(mean)))
            fault = SlowFault(
                at_seconds=float(rng.uniform(0.03, 0.95)) * plain.run.seconds,
                duration_seconds=lasts,
                factor=float(rng.uniform(*factors)),
                node=int(rng.integers(plain.nodes)),
                kind=kind,  # type: ignore[arg-type]
            )
            if kind == "Computation":
                fault = replace(fault, proc=int(rng.integers(plain.job.procs_per_node)))
            else:  # between the two nodes of a stage
                fault = replace(fault, node=fault.node - fault.node % 2, peer=fault.node - fault.node % 2 + 1)
            slow.append(fault)
    return replace(plain, seed=seed, faults=Faults(slow=sorted(slow, key=lambda fault: fault.at_seconds)))


def measure(times: float, seed: int) -> Row:
    """Run a seed under each policy."""
    scenario = stretched(drawn(load(HERE / "falcon64.yaml"), seed), times)
    own = priced(scenario, OWN_SECONDS)
    published = replace(scenario, mitigation=replace(scenario.mitigation, published=Published()))
    return Row(
        times=times,
        seed=seed,
        healthy=per_minute(replace(scenario, faults=Faults()), "FailStop"),
        slow=per_minute(scenario, "FailStop"),
        published=per_minute(published, "All"),
        ours_same_prices=per_minute(scenario, "All"),
        ours=per_minute(own, "All"),
        hindsight=hindsight(own),
    )


def table(rows: Iterable[Row]) -> list[str]:
    """Return the means over the seeds by times as Markdown rows."""
    lines = [
        "| times × | seeds | healthy | slow | published policy | ours, same prices | ours | in hindsight | removed:"
        " published, ours | closed, of the means | ours below the published | worst seed |",
        "|---" * 12 + "|",
    ]
    by_times: dict[float, list[Row]] = {}
    for row in rows:
        by_times.setdefault(row.times, []).append(row)
    return [*lines, *(_line(times, each) for times, each in sorted(by_times.items()))]


def _line(times: float, rows: Sequence[Row]) -> str:
    fields = ("healthy", "slow", "published", "ours_same_prices", "ours", "hindsight")
    healthy, slow, published, same, ours, best = (
        float(np.mean([getattr(row, field) for row in rows])) for field in fields
    )
    speeds = " | ".join(f"{speed:.2f}" for speed in (healthy, slow, published, same, ours, best))
    removed = ", ".join(f"{removed_slowdown(healthy, slow, speed):.0%}" for speed in (published, ours))
    worst = min(row.ours / row.published for row in rows)
    below = sum(row.ours < row.published for row in rows)
    closed = (ours - published) / (best - published)
    compared = f"{removed} | {closed:.0%} | {below} of {len(rows)} | {worst - 1:+.1%}"
    return f"| {times:g} | {len(rows)} | {speeds} | {compared} |"


def few() -> list[str]:
    """Return the table of five seeds."""
    return table([measure(1.0, seed) for seed in range(1, 6)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--times", type=float, nargs="+", default=[1.0])
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results so far: a later run goes on from there")
    asked = parser.parse_args()
    keep = asked.keep
    rows = msgspec.json.decode(keep.read_bytes(), type=list[Row]) if keep is not None and keep.exists() else []
    known = {(row.times, row.seed) for row in rows}
    for times in asked.times:
        for seed in range(1, asked.seeds + 1):
            if (times, seed) in known:
                continue
            rows.append(measure(times, seed))
            if keep is not None:
                keep.write_bytes(msgspec.json.encode(rows))
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
