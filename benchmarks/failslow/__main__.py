"""What is done about slow nodes, processes and links on the real cluster, with real faults.

    make cluster-up images && python -m benchmarks.failslow --check              # one of each kind
    make cluster-up images && python -m benchmarks.failslow --full               # five of each, into RESULTS.md
    make cluster-up images && python -m benchmarks.failslow --kind "a process"   # those whose name begins so

Each layout of a job takes its faults one after the other; between them all faults are undone and the job is well for a
hundred iterations. Times of iterations are the script's own. Ends with exit code 1 where anything was not as expected:
another component or cause was named, another action was taken, an innocent node was left, or less than half of a
slowdown was removed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.failslow.jobs import RANKS, manifest
from benchmarks.failslow.kinds import KINDS, Kind
from benchmarks.failslow.outcome import Outcome, median, suffer
from benchmarks.failstop.stage import namespace
from benchmarks.results import provenance, put
from tests.e2e.jobs import Job

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
CHECKED_RUNS: Final = 1
FULL_RUNS: Final = 5


def measure(kinds: Sequence[Kind], runs: int, keep: Path | None) -> list[Outcome]:
    """Bring each fault about so many times, a job for each layout. What ``keep`` has already is not done again."""
    found = _kept(keep)
    with namespace() as kubectl:
        for layout, together in groupby(sorted(kinds, key=lambda kind: kind.layout), key=lambda kind: kind.layout):
            missing = list(_missing(list(together), runs, found))
            if not missing:
                continue
            job = Job(kubectl, manifest(kubectl, layout))
            try:
                for number, kind in missing:
                    outcome = suffer(job, kind, _rank(kind, number))
                    found.append(outcome)
                    _keep(keep, outcome)
                    print(f"{time.strftime('%H:%M:%S')} {line(outcome)}", flush=True)
                    for problem in outcome.problems:
                        print(f"    {problem}", flush=True)
            finally:
                job.delete()
    names = [kind.name for kind in kinds]
    return sorted((each for each in found if each.kind in names), key=lambda each: names.index(each.kind))


def _missing(kinds: Sequence[Kind], runs: int, found: Sequence[Outcome]) -> Iterator[tuple[int, Kind]]:
    """Yield the faults that are left, each kind in its turn, with their numbers among those of their kind."""
    done = Counter(outcome.kind for outcome in found)
    for number in range(runs):
        for kind in kinds:
            if number >= done[kind.name]:
                yield number, kind


def _kept(keep: Path | None) -> list[Outcome]:
    if keep is None or not keep.exists():
        return []
    return [msgspec.json.decode(each, type=Outcome) for each in keep.read_bytes().splitlines()]


def _keep(keep: Path | None, outcome: Outcome) -> None:
    if keep is not None:
        with keep.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")


def _rank(kind: Kind, number: int) -> int:
    """Return who is slow: never the rank that writes the log, whose pod would take the log along."""
    first = 2 if kind.layout == "two a pod" else 1
    return first + number % (RANKS[kind.layout] - first)


def line(outcome: Outcome) -> str:
    """Return an outcome in a line."""
    times = " → ".join(_seconds(each) for each in (outcome.healthy, outcome.slow, outcome.after))
    named, acted = _seconds(outcome.named), _seconds(outcome.acted)
    done = ", ".join(outcome.actions) or "nothing"
    return f"{outcome.kind}: iteration {times}; named after {named}, acted after {acted} ({done})"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the medians by kind as a Markdown table."""
    lines = [
        "| fault | runs | as expected | named after | acted after | done | iteration: healthy, slow, after | of the"
        " slowdown removed | longest gap between steps |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, []).append(outcome)
    return "\n".join([*lines, *(_row(name, each) for name, each in by_kind.items()), ""])


def _row(name: str, each: Sequence[Outcome]) -> str:
    """Return the medians of a kind as a row."""
    named, acted, healthy, slow, after, removed, gap = (
        median([getattr(outcome, field) for outcome in each])
        for field in ("named", "acted", "healthy", "slow", "after", "removed", "standstill")
    )
    done = sorted({", ".join(outcome.actions) or "nothing" for outcome in each})
    times = ", ".join(_seconds(value) for value in (healthy, slow, after))
    right = sum(not outcome.problems for outcome in each)
    share = "–" if removed is None else f"{100 * removed:.0f} %"
    return (
        f"| {name} | {len(each)} | {right} | {_seconds(named)} | {_seconds(acted)} | {' or '.join(done)} | {times}"
        f" | {share} | {_seconds(gap)} |"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="one of each; nothing is written (default)")
    parser.add_argument("--full", action="store_true", help="five of each, into RESULTS.md")
    parser.add_argument("--runs", type=int, help="of each kind")
    parser.add_argument("--kind", action="append", default=[], help="only kinds whose name begins so")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="take what an ended run has kept there; keep there")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md, as --full does")
    parser.add_argument("--note", default="", help="for RESULTS.md: what else ran on the machine")
    return parser.parse_args()


def main() -> int:
    asked = parse_arguments()
    runs = asked.runs or (FULL_RUNS if asked.full else CHECKED_RUNS)
    kinds = [
        kind
        for kind in KINDS
        if (any(kind.name.startswith(name) for name in asked.kind) if asked.kind else kind.in_check or asked.full)
    ]
    outcomes = measure(kinds, runs, asked.keep)
    body = "\n".join(
        [table(outcomes), *(f"- {each.kind}: {problem}" for each in outcomes for problem in each.problems), ""]
    )
    print(body)
    if asked.full or asked.write:
        put(RESULTS, f"{body}\n{provenance(note=asked.note and f', {asked.note}')}")
    return 1 if any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
