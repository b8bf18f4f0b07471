"""``python -m falcon_sim scenario.yaml [--json out.json] [--plot out.png] [--falcon All|FailStop|None] [--seed n]``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import msgspec

from falcon_sim.engine import Engine
from falcon_sim.report import plot, report, table
from falcon_sim.scenario import ScenarioError, load

_PROGRESS_SECONDS = 2.0  # between two lines on stderr


class _Progress:
    """Says on stderr how far a long run is."""

    def __init__(self) -> None:
        self._begun = self._told = time.monotonic()

    def __call__(self, done: float) -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            print(f"{min(done, 1.0):6.1%} after {now - self._begun:.0f} s", file=sys.stderr)


def _unwritable(json: Path | None, plot: Path | None) -> str | None:
    """What would keep the results of a long run from being written; asked before it."""
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            return f"{option} {path}: there is no folder {path.parent}: make it, or name another"
    if plot is not None and plot.suffix not in (".png", ".svg"):
        return f"--plot {plot}: neither .png nor .svg: name it so"
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        return "--plot needs matplotlib: pip install 'falcon-training[plot]'"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run one scenario; 2 where it is refused."""
    parser = argparse.ArgumentParser(prog="python -m falcon_sim", description="Simulate a training job under faults.")
    parser.add_argument("scenario", type=Path, help="the scenario, as YAML")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--plot", type=Path, help="draw the timeline here (.png or .svg; needs matplotlib)")
    parser.add_argument("--falcon", choices=("All", "FailStop", "None"), help="instead of the scenario's own")
    parser.add_argument("--seed", type=int, help="instead of the scenario's own")
    given = parser.parse_args(arguments)
    if refused := _unwritable(given.json, given.plot):
        print(refused, file=sys.stderr)
        return 2
    try:
        scenario = load(given.scenario)
    except (ScenarioError, OSError) as error:
        print(f"{given.scenario}: {error}", file=sys.stderr)
        return 2
    if given.falcon is not None:
        mitigation = msgspec.structs.replace(scenario.mitigation, falcon=given.falcon)
        scenario = msgspec.structs.replace(scenario, mitigation=mitigation)
    if given.seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=given.seed)
    engine = Engine(scenario, _Progress())
    engine.run()
    told = report(engine)
    print(table(told))
    if given.json is not None:
        given.json.write_bytes(told.json())
    if given.plot is not None:
        plot(engine, given.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
