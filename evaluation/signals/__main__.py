"""Measure the signals: ``python -m evaluation.signals`` makes every table.

    python -m evaluation.signals                        # few seeds and short series: a minute; printed only
    python -m evaluation.signals --full                 # all of them, into RESULTS.md
    python -m evaluation.signals --full --only sick,cost

Each table of RESULTS.md stands between two comments with its name; the text around it is kept.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from evaluation.harness import Evaluation, Maker, Table, run
from evaluation.signals import cost
from evaluation.signals.changes import healthy_table, ramp_table, sick_table, small_table
from evaluation.signals.periods import period_table
from evaluation.signals.series import HEALTHY_LENGTHS
from evaluation.signals.starts import start_table
from evaluation.signals.tcpd import tcpd_table


def _costs(*, full: bool) -> str:
    return "\n".join(
        (
            cost.change_point_table(cost.LENGTHS if full else cost.QUICK_LENGTHS),
            cost.together_table(500),
            cost.poll_table(2_500 if full else 100),
            cost.memory_table(4000 if full else 100),
        )
    )


def _public(options: argparse.Namespace) -> Table:
    data: Path | None = options.data
    if data is None or not (data / "tcpd").is_dir():
        raise SystemExit(
            "the table tcpd needs --data FOLDER (or FALCON_DATA), a folder with tcpd/*.json as benchmarks/README.md "
            f"describes it; without it, make the other tables: --only {','.join(sorted({*TABLES} - {'tcpd'}))}"
        )
    return Table(tcpd_table(data / "tcpd"))


def _sized(rough: Callable[[], str], full: Callable[[], str]) -> Maker:
    """Return the maker of a table that is made with few seeds, or with all."""
    return lambda options: Table(full() if options.full else rough())


TABLES: Final[Mapping[str, Maker]] = {
    "healthy": _sized(lambda: healthy_table(2, 2, HEALTHY_LENGTHS[:1]), lambda: healthy_table(20, 5, HEALTHY_LENGTHS)),
    "sick": _sized(lambda: sick_table(3, 3), lambda: sick_table(100, 20)),
    "ramps": _sized(lambda: ramp_table(3), lambda: ramp_table(20)),
    "threshold": _sized(lambda: small_table(3, 50), lambda: small_table(100, 2000)),
    "starts": _sized(lambda: start_table(3), lambda: start_table(20)),
    "period": _sized(lambda: period_table(2), lambda: period_table(20)),
    "tcpd": _public,
    "cost": lambda options: Table(_costs(full=options.full)),
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        default=os.environ.get("FALCON_DATA"),
        help="folder with tcpd/, the public change-point series (benchmarks/README.md describes them); "
        "required for the table tcpd unless FALCON_DATA names it",
    )


SIGNALS: Final = Evaluation(
    name="signals",
    about=__doc__,
    code=("core/falcon_core/signals", "evaluation/signals/*.py"),
    tables=TABLES,
    kept=tuple(TABLES),
    options=_options,
)

if __name__ == "__main__":
    raise SystemExit(run(SIGNALS))
