"""Measure how well error lines are judged: of a healthy job, of part one and part two, and failures of several ranks.

    python -m evaluation.errors                  # all tables; for part two no line's text
    python -m evaluation.errors --only one       # the lines that rules were written from
    python -m evaluation.errors --check          # exit code 1 where a limit is missed
    python -m evaluation.errors --text           # with the texts: a line that was looked at moves to part one

Part one is ``tests/data/errors``, part two ``evaluation/errors/held_out``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.errors.healthy import lines as healthy_lines
from evaluation.errors import cases
from evaluation.errors.judged import Judged, alarms, judged
from evaluation.errors.lines import BENIGN, LINES, PART_TWO, Labelled, part_one, part_two
from evaluation.errors.shares import Share, shares
from evaluation.errors.steps import Step, is_right, step_of
from evaluation.harness import Evaluation, Maker, Table, run

HEALTHY: Final = 20_000  # lines of healthy output that are made for that measure
_MOST_SHOWN: Final = 200


def measures(found: Sequence[Judged]) -> list[Share]:
    """Return the measures of one part."""
    grave = [each for each in found if each.line.is_grave]
    evicted = [each for each in found if step_of(each.known) is Step.EVICT]
    users = [each for each in found if each.line.step is Step.FAIL]
    healthy = [each for each in found if each.line.error_class == BENIGN]
    return [
        Share("classes right", sum(map(is_class_right, found)), len(found), 0.95),
        Share("steps right", sum(is_right(each.line.step, each.known) for each in found), len(found), 0.95),
        Share("SEV1 found", sum(step_of(each.known) is Step.EVICT for each in grave), len(grave), 0.98),
        Share("evictions that are right", sum(map(_may_evict, evicted)), len(evicted), 0.98),
        Share("user bugs failed at once", sum(step_of(each.known) is Step.FAIL for each in users), len(users), 0.90),
        Share("alarms in lines that sound bad", sum(each.alarms for each in healthy), len(healthy), 0.05, most=True),
    ]


def is_class_right(each: Judged) -> bool:
    """Check whether a line got its class, or another that is right as well."""
    return each.name == each.line.error_class or each.name in each.line.also


def _may_evict(each: Judged) -> bool:
    return each.line.step is Step.EVICT or each.name in each.line.also


def healthy_alarms() -> Share:
    """Return the share of healthy lines of output that a living rank's agent would report."""
    return Share("alarms in healthy lines", sum(map(alarms, healthy_lines(HEALTHY))), HEALTHY, 1e-4, most=True)


def _part(name: str, lines: Sequence[Labelled], *, texts: bool) -> Table:
    """Measure one part; what was judged wrongly is printed, and stands in no page."""
    found = [judged(line) for line in lines]
    wrong = [each for each in found if not (is_class_right(each) and is_right(each.line.step, each.known))]
    for each in wrong[:_MOST_SHOWN]:
        words = f"  {each.line.text[:160]!r}" if texts else ""
        print(f"    {each.line.id}: {each.name}, wanted {each.line.error_class} ({each.line.step}){words}")
    # Without a line nothing shows how unknown lines are judged, so that no limit counts as kept.
    missing = [] if lines else [Share(f"lines of part {name} ({PART_TWO / LINES} is missing or empty)", 0, 1, 1.0)]
    return shares([*missing, *measures(found)], f"{len(lines)} lines.")


TABLES: Final[Mapping[str, Maker]] = {
    "healthy": lambda _: shares([healthy_alarms()]),
    "one": lambda _: _part("one", part_one(), texts=True),
    "two": lambda options: _part("two", part_two(), texts=options.text),
    "cases": lambda _: cases.table(),
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", action="store_true", help="print the texts of part two as well")


ERRORS: Final = Evaluation(
    name="errors",
    about=__doc__,
    code=(
        "core/falcon_core",
        "agent/falcon_agent",
        "evaluation/errors/*.py",
        "evaluation/errors/held_out",
        "tests/data/errors",
    ),
    tables=TABLES,
    checked=tuple(TABLES),
    kept=tuple(TABLES),
    options=_options,
)

if __name__ == "__main__":
    raise SystemExit(run(ERRORS))
