"""Every table of the signals: ``python -m evaluation.signals`` measures them and writes them into RESULTS.md.

A table stands there between two comments with its name, and says when and at which commit it was measured; the text
around it is kept. ``--only healthy,cost`` measures some of them, ``--quick`` prints a rough version and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.results import provenance, put
from evaluation.signals import cost
from evaluation.signals.changes import healthy_table, ramp_table, sick_table, small_table
from evaluation.signals.periods import period_table
from evaluation.signals.series import HEALTHY_LENGTHS
from evaluation.signals.starts import start_table
from evaluation.signals.tcpd import tcpd_table

_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = Path(__file__).with_name("RESULTS.md")
_CODE = ("core/falcon_core/signals", "evaluation/signals/*.py")


def _costs(quick: bool) -> str:
    return "\n".join(
        (
            cost.change_point_table(cost.QUICK_LENGTHS if quick else cost.LENGTHS),
            cost.together_table(500),
            cost.poll_table(100 if quick else 2_500),
            cost.memory_table(100 if quick else 4000),
        )
    )


def _tcpd(data: Path | None) -> str:
    assert data is not None  # main() has checked it
    return tcpd_table(data / "tcpd")


def _tables(quick: bool, data: Path | None) -> dict[str, Callable[[], str]]:
    """Return the tables by name; ``quick``: with few seeds and short series."""
    either: dict[str, Callable[[], str]] = {"tcpd": lambda: _tcpd(data), "cost": lambda: _costs(quick)}
    if quick:
        return {
            "healthy": lambda: healthy_table(2, 2, HEALTHY_LENGTHS[:1]),
            "sick": lambda: sick_table(3, 3),
            "ramps": lambda: ramp_table(3),
            "threshold": lambda: small_table(3, 50),
            "starts": lambda: start_table(3),
            "period": lambda: period_table(2),
            **either,
        }
    return {
        "healthy": lambda: healthy_table(20, 5, HEALTHY_LENGTHS),
        "sick": lambda: sick_table(100, 20),
        "ramps": lambda: ramp_table(20),
        "threshold": lambda: small_table(100, 2000),
        "starts": lambda: start_table(20),
        "period": lambda: period_table(20),
        **either,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evaluation.signals", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few seeds and short series: a minute; printed only")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        default=os.environ.get("FALCON_DATA"),
        help="folder with tcpd/, the public change-point series (benchmarks/README.md describes them); "
        "required for the table tcpd unless FALCON_DATA names it",
    )
    parser.add_argument("--only", default="", help="names of tables, separated by commas")
    options = parser.parse_args()
    quick: bool = options.quick
    data: Path | None = options.data
    tables = _tables(quick, data)
    names = options.only.split(",") if options.only else list(tables)
    if "tcpd" in names and (data is None or not (data / "tcpd").is_dir()):
        parser.error(
            "the table tcpd needs --data FOLDER (or FALCON_DATA), a folder with tcpd/*.json as benchmarks/README.md "
            f"describes it; without it, measure the other tables: --only {','.join(sorted({*tables} - {'tcpd'}))}"
        )
    for name in names:
        measured = provenance(*_CODE)
        begin = time.monotonic()
        body = f"{measured}\n{tables[name]()}"
        print(f"## {name}: {time.monotonic() - begin:.0f} s\n\n{body}", flush=True)
        if not quick:
            put(_RESULTS, body, name)


if __name__ == "__main__":
    main()
