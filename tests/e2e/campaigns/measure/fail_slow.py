"""Measure what is done about slow nodes, processes and links, with real faults.

Each layout of a job takes its faults one after the other; between them all faults are undone and the job is well for a
hundred iterations. Times of iterations are the script's own. Not as expected is that another component or cause was
named, that another action was taken, that an innocent node was left, or that less than half of a slowdown was removed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from benchmarks.ready.parts import Parts
from dev.install import prepare_cluster
from evaluation.harness import Table
from tests.e2e.campaigns.measure.limited import limited
from tests.e2e.campaigns.slow_faults import KINDS, Kind
from tests.e2e.campaigns.slow_outcome import Outcome, median, suffer
from tests.e2e.campaigns.stage import LAYOUT_RANKS, namespace, slow_manifest
from tests.e2e.jobs import Job

ROUGH_RUNS: Final = 1
FULL_RUNS: Final = 5


def make(options: argparse.Namespace) -> Table:
    """Return the medians of each kind of fault, and what was not as expected."""
    outcomes = measure(
        chosen(options), options.runs or (FULL_RUNS if options.full else ROUGH_RUNS), Parts(options.keep)
    )
    problems = [f"{each.kind}: {problem}" for each in outcomes for problem in each.problems]
    return limited(table(outcomes), [], problems)


def chosen(options: argparse.Namespace) -> list[Kind]:
    """Return the kinds whose names begin as was asked, else all; without ``full`` those that are quick."""
    if options.kind:
        return [kind for kind in KINDS if kind.name.startswith(tuple(options.kind))]
    return [kind for kind in KINDS if kind.in_check or options.full]


def measure(kinds: Sequence[Kind], runs: int, parts: Parts) -> list[Outcome]:
    """Bring each fault about so many times, a job for each layout. What ``parts`` has already is not done again."""
    with namespace(prepare_cluster()) as kubectl:
        for layout, together in groupby(sorted(kinds, key=lambda kind: kind.layout), key=lambda kind: kind.layout):
            missing = [each for each in _planned(list(together), runs) if _name(*each) not in parts]
            if not missing:
                continue
            job = Job(kubectl, slow_manifest(kubectl, layout))
            try:
                for kind, number in missing:
                    say(parts.of(_name(kind, number), Outcome, partial(suffer, job, kind, _rank(kind, number))))
            finally:
                job.delete()
    return [parts.kept(_name(kind, number), Outcome) for kind in kinds for number in range(runs)]


def _planned(kinds: Sequence[Kind], runs: int) -> Iterator[tuple[Kind, int]]:
    """Yield the faults, each kind in its turn, with their numbers among those of their kind."""
    for number in range(runs):
        for kind in kinds:
            yield kind, number


def _name(kind: Kind, number: int) -> str:
    return f"{kind.name}, {number}"


def _rank(kind: Kind, number: int) -> int:
    """Return who is slow: never the rank that writes the log, whose pod would take the log along."""
    first = 2 if kind.layout == "two a pod" else 1
    return first + number % (LAYOUT_RANKS[kind.layout] - first)


def say(outcome: Outcome) -> None:
    """Print an outcome, and what was not as expected of it."""
    print(f"{time.strftime('%H:%M:%S')} {line(outcome)}", flush=True)
    for problem in outcome.problems:
        print(f"    {problem}", flush=True)


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
