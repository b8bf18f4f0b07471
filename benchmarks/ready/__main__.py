"""Measure how soon spares are claimed, and what the checks of machines and links before a start find and cost.

    make cluster-build torch-venv && python -m benchmarks.ready --check   # as root; some minutes
    make cluster-build torch-venv && python -m benchmarks.ready --full

``--check`` lets thirty spares be claimed at once, and checks machines, and the links between them, three times each
way. ``--full`` checks twenty times. Ends with exit code 1 where a limit is not kept or anything was not as expected.
What a failure itself leads to, with standbys and without, is measured by ``tests.e2e.campaigns.measure``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from benchmarks.limits import Limit, table
from benchmarks.ready import claims, executor, links
from benchmarks.ready.parts import Parts
from benchmarks.results import provenance, put

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
CHECKED_RUNS: Final = 3
FULL_RUNS: Final = 20


def claim_limits(row: claims.Row) -> list[Limit]:
    """Compare the time until every lost replica has a spare with its limit."""
    return [Limit(what=row.what, measured=row.claims_seconds, most=claims.LIMIT_SECONDS, unit="s")]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="three rounds each way; nothing is written (default)")
    parser.add_argument("--full", action="store_true", help="twenty rounds each way, into RESULTS.md")
    parser.add_argument("--runs", type=int, help="rounds each way")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results so far: a later run goes on from there")
    parser.add_argument("--note", default="", help="for RESULTS.md: what else ran on the machine")
    return parser.parse_args()


def main() -> int:
    asked = parse_arguments()
    runs = asked.runs or (FULL_RUNS if asked.full else CHECKED_RUNS)
    parts = Parts(asked.keep)
    claimed = parts.of("claims", claims.Row, claims.measure_once)
    checked = parts.of("machines", list[executor.Row], lambda: executor.measure(runs))
    linked = parts.of("links", list[links.Row], lambda: links.measure(runs))
    kept = [*claim_limits(claimed), *executor.limits(checked), *links.limits(linked)]
    figures = "\n".join(
        [
            table(kept),
            f"Every claimed spare has its pod after {claimed.pods_seconds:.2f} s.\n",
            executor.table(checked),
            executor.own_line(parts.of("own", float, executor.own_spread)),
            links.table(linked),
            *(f"- {problem}" for problem in claimed.problems),
            "",
        ]
    )
    print(figures)
    if asked.full:
        put(RESULTS, f"{figures}\n{provenance(note=asked.note and f', {asked.note}')}", "figures")
    return 0 if not claimed.problems and all(limit.kept for limit in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
