"""Measure how long one look of the operator at a job takes, and what it stores.

    make venv && python -m benchmarks.decide            # a job of 1 250 pods of 8 ranks
    make venv && python -m benchmarks.decide --check    # exit code 1 where a limit is not kept
    make venv && python -m benchmarks.decide --full     # 3, 64, 1 250 and 4 096 pods; writes RESULTS.md

Each case runs in a process of its own. A time is CPU time, the median of 15 looks after two: the time on the wall
depends on what else computes. Of a story's looks the dearest counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.decide.cases import PROCS, cases, describe
from benchmarks.decide.timing import Report, Timing
from benchmarks.results import provenance, put

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = Path(__file__).with_name("RESULTS.md")
SIZES: Final = (3, 64, 1250, 4096)  # pods
CHECKED: Final = 1250
LIMITS_MS: Final = {"healthy": 60.0, "one straggler": 100.0, "1 000 slow ranks, or a tenth": 300.0, "stalled": 200.0}
REPETITIONS: Final = 15
CODE: Final = ("core/falcon_core", "operator/falcon_operator", "benchmarks/decide/*.py")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One case at one size."""

    pods: int
    case: str
    present: Report

    @property
    def limit_ms(self) -> float | None:
        return LIMITS_MS[self.case] if self.pods == CHECKED else None

    @property
    def kept(self) -> bool:
        return self.limit_ms is None or dearest(self.present).cpu_ms <= self.limit_ms


def dearest(report: Report) -> Timing:
    return max(report.looks, key=lambda look: look.cpu_ms)


def measured(folder: Path) -> Report:
    """Measure the case that the folder describes."""
    path = os.pathsep.join(map(str, (ROOT / "core", ROOT / "operator", ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.decide.present", str(folder), "--repetitions", str(REPETITIONS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        stdout=subprocess.PIPE,
    )
    return msgspec.json.decode(done.stdout, type=Report)


def rows(sizes: Iterable[int]) -> Iterable[Row]:
    """Measure every case at every size."""
    for pods in sizes:
        for case in cases(pods):
            with tempfile.TemporaryDirectory(prefix="falcon-decide-") as made:
                folder = Path(made)
                describe(case, folder)
                row = Row(pods=pods, case=case.name, present=measured(folder))
            print(f"{pods} pods, {case.name}: {dearest(row.present).cpu_ms:.0f} ms", file=sys.stderr, flush=True)
            yield row


# -- Markdown --------------------------------------------------------------------------------------------------------


def times_table(found: list[Row]) -> str:
    """Return the table of all looks."""
    lines = [
        "| pods × ranks | case | look | CPU ms | wall ms | limit | what the status says |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found:
        for look in row.present.looks:
            limit = f"{row.limit_ms:.0f}" if row.limit_ms is not None and look == dearest(row.present) else ""
            times = f"{_ms(look.cpu_ms)} | {_ms(look.wall_ms)} | {limit}"
            lines.append(f"| {row.pods} × {PROCS} | {row.case} | {look.what} | {times} | {look.summary} |")
    return "\n".join([*lines, ""])


def sizes_table(found: list[Row]) -> str:
    """Return the table of what is stored after each case's last look."""
    lines = ["| pods | case | status, bytes | TrainingRun, bytes |", "|---|---|---|---|"]
    for row in found:
        lines.append(f"| {row.pods} | {row.case} | {row.present.bytes['status']} | {row.present.bytes['run']} |")
    return "\n".join([*lines, ""])


def short_table(found: list[Row]) -> str:
    """Return the table of the cases that are not within their limit."""
    lines = ["| case | dearest look | CPU ms | limit |", "|---|---|---|---|"]
    for row in found:
        look = dearest(row.present)
        lines.append(f"| {row.case} | {look.what} | {_ms(look.cpu_ms)} | {row.limit_ms:.0f} |")
    return "\n".join([*lines, ""])


def _ms(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decide", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit is not kept")
    parser.add_argument("--full", action="store_true", help="all sizes; writes RESULTS.md")
    options = parser.parse_args()
    head = provenance(*CODE)
    found = list(rows(SIZES if options.full else (CHECKED,)))
    body = "\n".join([head, times_table(found), sizes_table(found)])
    print(body)
    if options.full:
        put(RESULTS, body)
    short = [row for row in found if not row.kept]
    if short:
        print("Falls short:\n\n" + short_table(short))
    return 1 if options.check and short else 0


if __name__ == "__main__":
    raise SystemExit(main())
