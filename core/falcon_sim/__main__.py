"""Run the simulator from the command line: ``falcon-sim scenario.yaml``, or ``python -m falcon_sim``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from falcon_core.command_line import missing_package, parser

PROGRAM = "falcon-sim"
DESCRIPTION = """\
Simulate a training job under faults, and let Falcon's own code decide (needs falcon-training[sim]).
Prints a table and the story; a scenario file is described in docs/simulator.md.
"""
EXIT_REFUSED = 2
_PROGRESS_SECONDS = 2.0  # between two lines on stderr


class _Progress:
    """The progress of a long run, printed to stderr."""

    def __init__(self) -> None:
        self._begun = self._printed = time.monotonic()

    def __call__(self, done: float) -> None:
        now = time.monotonic()
        if now - self._printed >= _PROGRESS_SECONDS:
            self._printed = now
            print(f"{min(done, 1.0):6.1%} of the run simulated after {now - self._begun:.0f} s", file=sys.stderr)


def _unwritable(json: Path | None, plot: Path | None) -> str | None:
    """Return the reason why the results of a long run could not be written; checked before the run."""
    for option, path in (("--json", json), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            return f"{option} {path}: the folder {path.parent} does not exist; create it, or choose another"
    if plot is not None and plot.suffix not in (".png", ".svg"):
        return f"--plot {plot}: the name must end in .png or .svg"
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        return missing_package(f"{PROGRAM} --plot", "plot", ModuleNotFoundError(name="matplotlib"))
    return None


def _parser() -> argparse.ArgumentParser:
    made = parser(PROGRAM, DESCRIPTION)
    made.add_argument("scenario", type=Path, help="the scenario, as YAML")
    made.add_argument("--json", type=Path, help="write the report here")
    made.add_argument("--plot", type=Path, help="draw the timeline here, .png or .svg (needs falcon-training[plot])")
    made.add_argument("--falcon", choices=("All", "FailStop", "None"), help="instead of the scenario's own")
    made.add_argument("--seed", type=int, help="instead of the scenario's own")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one scenario; 2 where it is refused or a package is missing."""
    options = _parser().parse_args(arguments)
    if refused := _unwritable(options.json, options.plot):
        print(refused, file=sys.stderr)
        return EXIT_REFUSED
    try:
        return _simulate(options)
    except ModuleNotFoundError as error:
        print(missing_package(PROGRAM, "sim", error), file=sys.stderr)
        return EXIT_REFUSED


def _simulate(options: argparse.Namespace) -> int:
    from falcon_sim.engine import Engine
    from falcon_sim.job.scenario import ScenarioError, load
    from falcon_sim.report import plot, report, table

    try:
        scenario = load(options.scenario)
    except (ScenarioError, OSError) as error:
        print(f"{options.scenario}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    if options.falcon is not None:
        mitigation = msgspec.structs.replace(scenario.mitigation, falcon=options.falcon)
        scenario = msgspec.structs.replace(scenario, mitigation=mitigation)
    if options.seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=options.seed)
    engine = Engine(scenario, _Progress())
    engine.run()
    result = report(engine)
    print(table(result))
    if options.json is not None:
        options.json.write_bytes(result.json())
    if options.plot is not None:
        plot(engine, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
