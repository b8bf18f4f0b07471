"""Measure who is blamed for a slow job: ``python -m evaluation.culprits``. A few minutes.

Jobs of 64 ranks are tried ``--trials`` times; those of 256 and 1 024 ranks a quarter of that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from evaluation.culprits import confusion, cost, real_jobs
from evaluation.harness import Evaluation, Maker, Table, run


def _lines(make: Callable[[int], list[str]]) -> Maker:
    """Return the maker of a table that depends on the number of trials."""
    return lambda options: Table("\n".join(make(options.trials)))


def _few(trials: int) -> int:
    return max(1, trials // 4)


TABLES: Final[Mapping[str, Maker]] = {
    "production": _lines(lambda _: real_jobs.table()),
    "64": _lines(lambda trials: confusion.matrix("64", trials)),
    "64-noise": _lines(lambda trials: confusion.matrix("64", trials, noise=0.10)),
    "256": _lines(lambda trials: confusion.matrix("256", _few(trials))),
    "1024": _lines(lambda trials: confusion.matrix("1024", _few(trials))),
    "links-64": _lines(lambda trials: confusion.links("64", trials)),
    "links-256": _lines(lambda trials: confusion.links("256", _few(trials))),
    "sensitivity": _lines(lambda trials: confusion.sensitivity(max(1, trials // 2))),
    "unseen": _lines(confusion.unseen),
    "cost": _lines(lambda _: cost.table()),
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=12, help="of a job of 64 ranks (default 12)")


CULPRITS: Final = Evaluation(
    name="culprits",
    about=__doc__,
    code=("core/falcon_core", "core/falcon_sim", "evaluation/culprits/*.py"),
    tables=TABLES,
    options=_options,
)

if __name__ == "__main__":
    raise SystemExit(run(CULPRITS))
