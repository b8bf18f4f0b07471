"""How soon a job trains again with what is ready before a failure, beside the promised limits.

    make cluster-up images gateway torch-venv && python -m benchmarks.ready --check   # ten minutes
    make cluster-up images gateway torch-venv shim && python -m benchmarks.ready --full   # over an hour

``--check`` kills a rank of a job on the cluster three times with each kind of standby and none, and a node with and
without a pod that stands by, lets thirty spares be claimed at once, and checks machines, and the links between them,
three times each way. ``--full`` takes twenty of each (ten nodes), and adds restarts on one machine beside torchrun's
own, and what standbys cost. Ends with exit code 1 where a limit is not kept or anything was not as expected.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.limits import Limit, table
from benchmarks.ready import claims, executor, links, lost, restarts, standby
from benchmarks.ready.parts import Parts
from benchmarks.results import provenance, put

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
# Median, from the kill to the next step of all ranks.
MOST_SECONDS: Final = {"None": 4.0, "Imports": 1.2, "Processes": 0.8}
CHECKED_RUNS: Final = 3
FULL_RUNS: Final = 20
LOCAL_RUNS: Final = 10
RUNS_A_NODE: Final = 2  # a killed node takes long to be a spare again: so many other kills for one
LOCAL_RANKS: Final = (2, 3)


def restart_limits(found: Sequence[restarts.Restarts]) -> list[Limit]:
    """Compare the median of each kind of restart with its limit."""
    return [
        Limit(
            what=f"rank killed, standby {each.standby}: all ranks train again, median of {len(each.seconds)}",
            measured=statistics.median(each.seconds),
            most=MOST_SECONDS[each.standby],
            unit="s",
        )
        for each in found
    ]


def lost_limits(found: Sequence[lost.Lost]) -> list[Limit]:
    """Compare the median time after a lost node with its limit, where a pod stands by."""
    return [
        Limit(
            what=f"node lost, a pod stands by: all ranks train again, median of {len(each.seconds)}",
            measured=statistics.median(each.seconds),
            most=lost.MOST_SECONDS,
            unit="s",
        )
        for each in found
        if each.pods
    ]


def claim_limits(row: claims.Row) -> list[Limit]:
    """Compare the time until every lost replica has a spare with its limit."""
    return [Limit(what=row.what, measured=row.claims_seconds, most=claims.LIMIT_SECONDS, unit="s")]


def spread(found: Sequence[restarts.Restarts], nodes: Sequence[lost.Lost], row: claims.Row) -> str:
    """Return the worst beside the medians, as a Markdown table."""
    lines = ["| | median | worst |", "|---|---|---|"]
    for each in found:
        median, worst = statistics.median(each.seconds), max(each.seconds)
        lines.append(f"| standby {each.standby}, {len(each.seconds)} kills | {median:.2f} s | {worst:.2f} s |")
    for gone in nodes:
        median, worst = statistics.median(gone.seconds), max(gone.seconds)
        lines.append(f"| {gone.pods} pods stand by, {len(gone.seconds)} nodes lost | {median:.2f} s | {worst:.2f} s |")
    lines.append(f"| every claimed spare has its pod | {row.pods_seconds:.2f} s | – |")
    return "\n".join([*lines, ""])


def local(rows: Sequence[standby.Row]) -> str:
    """Return the restarts on one machine, and the costs, as a Markdown table."""
    lines = ["| | ranks | runs | median | worst |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.what} | {row.ranks} | {row.runs} | {row.median:.2f} {row.unit} | {row.worst:.2f} {row.unit} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="three kills of each kind; nothing is written (default)")
    parser.add_argument("--full", action="store_true", help="all of it, into RESULTS.md")
    parser.add_argument("--runs", type=int, help="kills of each kind")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results so far: a later run goes on from there")
    parser.add_argument("--note", default="", help="for RESULTS.md: what else ran on the machine")
    return parser.parse_args()


def main() -> int:
    asked = parse_arguments()
    runs = asked.runs or (FULL_RUNS if asked.full else CHECKED_RUNS)
    parts = Parts(asked.keep)
    claimed = parts.of("claims", claims.Row, claims.measure_once)
    found = [
        parts.of(f"standby {standby}", restarts.Restarts, lambda standby=standby: restarts.measure(standby, runs))  # type: ignore[misc]
        for standby in restarts.STANDBYS
    ]
    few = max(1, runs // RUNS_A_NODE)
    nodes = [
        parts.of(f"{pods} pods stand by", lost.Lost, lambda pods=pods: lost.measure(pods, few))  # type: ignore[misc]
        for pods in (0, 1)
    ]
    checked = parts.of("machines", list[executor.Row], lambda: executor.measure(runs))
    linked = parts.of("links", list[links.Row], lambda: links.measure(runs))
    kept = [
        *restart_limits(found),
        *lost_limits(nodes),
        *claim_limits(claimed),
        *executor.limits(checked),
        *links.limits(linked),
    ]
    problems = [*claimed.problems, *(problem for each in (*found, *nodes) for problem in each.problems)]
    figures = "\n".join(
        [
            table(kept),
            spread(found, nodes, claimed),
            executor.table(checked),
            executor.own_line(parts.of("own", float, executor.own_spread)),
            links.table(linked),
            *(f"- {problem}" for problem in problems),
            "",
        ]
    )
    print(figures)
    if asked.full:
        note = asked.note and f", {asked.note}"
        put(RESULTS, f"{figures}\n{provenance(note=note)}", "figures")
        rows = [
            row
            for ranks in LOCAL_RANKS
            for row in parts.of(
                f"{ranks} ranks here",
                list[standby.Row],
                lambda ranks=ranks: asyncio.run(standby.rows(ranks, min(runs, LOCAL_RUNS))),  # type: ignore[misc]
            )
        ]
        put(RESULTS, f"{local(rows)}\n{provenance(note=note)}", "local")
        print(local(rows))
    return 0 if not problems and all(limit.kept for limit in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
