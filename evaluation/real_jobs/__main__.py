"""Judge Falcon on jobs as people run them: who is blamed, who is taken, and after how long.

    make venv && python -m evaluation.real_jobs --check    # a subset; exit code 1 where a limit is missed
    make venv && python -m evaluation.real_jobs --full     # 32 patterns, 20 seeds at 16 ranks, both noise levels
    make venv && python -m evaluation.real_jobs --pattern "two at once" --seeds 3 [--world 128] [--level high]

``--full`` plays the patterns of ``FULL`` with 20 seeds at 16 ranks, and those of ``LARGE`` with 3 seeds at 128. With
``--keep FILE`` it can be ended and begun again: what the same code has played is not played again. With ``--seeds N``
it plays the first N seeds, so that its tables can be made before all are played.

``--check`` ends after ten minutes at the latest: what is not played by then is listed, and the exit code is 1. The 30
patterns of ``CHECKED`` take about three minutes of CPU time, in as many lanes as there are cores.

``--write`` puts the tables into RESULTS.md, those of ``--check`` into a place of their own.

The scenes know nothing of Falcon: ring records → a ``RankChain`` for each rank → reports → ``recovery.machine`` with
its default policy, a replacement's price of 60 s and two spares → actions, which change the nodes. What counts as an
incident is a slowdown that the user is shown: a rank or a link is named, or it lasts without a name
(``recovery.history.reporting_threshold``).
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.results import provenance, put
from evaluation.harness import finish
from evaluation.real_jobs.outcome import Case, Outcome
from evaluation.real_jobs.patterns import CHECKED, FULL, LARGE, PATTERNS
from evaluation.real_jobs.scene import PROCESSES, Level
from evaluation.real_jobs.show import Show
from evaluation.real_jobs.verdict import limits, pattern_table, pooled_table

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
CODE: Final = ("core/falcon_core", "core/falcon_sim", "agent/falcon_agent", "evaluation/real_jobs/*.py")
LEVELS: Final[tuple[Level, ...]] = ("low", "high")
SEEDS: Final = {16: 20, 128: 3}  # of --full, by the number of ranks
PLAYED: Final = {16: FULL, 128: LARGE}
MOST_MINUTES: Final = 10.0  # of --check


def cases(options: argparse.Namespace) -> list[Case]:
    """Return the cases that the command line asks for."""
    if options.full:
        return [
            Case(pattern=name, world=world, level=level, seed=seed)
            for world, seeds in SEEDS.items()
            for seed, name, level in itertools.product(range(min(seeds, options.seeds or seeds)), PLAYED[world], LEVELS)
        ]
    names = options.pattern or (PATTERNS if options.every else CHECKED)
    levels = [options.level] if options.level else []
    return [
        Case(pattern=name, world=options.world, level=level, seed=seed)
        for seed in range(options.seeds or 1)
        for number, name in enumerate(names)
        for level in levels or [LEVELS[(number + seed) % 2]]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.real_jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 where a limit is not kept")
    parser.add_argument("--full", action="store_true", help="20 seeds, both sizes and noise levels")
    parser.add_argument("--write", action="store_true", help="put the tables into RESULTS.md; --full does so, too")
    parser.add_argument("--pattern", action="append", choices=list(PATTERNS), metavar="NAME", help="of the patterns")
    parser.add_argument("--every", action="store_true", help="every pattern, not only those of --check")
    parser.add_argument("--seeds", type=int, help="at most; usually 1, and all of --full")
    parser.add_argument("--world", type=int, default=16, choices=list(PROCESSES), help="ranks")
    parser.add_argument("--level", choices=LEVELS, help="of noise; without it the patterns take turns")
    parser.add_argument("--lanes", type=int, default=os.cpu_count() or 1, help="cases that are played at a time")
    parser.add_argument("--minutes", type=float, help="at most; otherwise 10 of --check, and no end of the others")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="outcomes so far: a later run goes on from there")
    options = parser.parse_args()
    minutes = options.minutes or (MOST_MINUTES if options.check else None)
    asked = cases(options)
    worlds = sorted({case.world for case in asked})
    kinds = len({case.pattern for case in asked})
    size = ", ".join(f"{sum(case.world == world for case in asked)} of {world} ranks" for world in worlds)
    head = provenance(*CODE, note=f"; {kinds} of {len(PATTERNS)} patterns, {size}")
    show = Show(asked, options.keep)
    outcomes = show.play(options.lanes, None if minutes is None else 60 * minutes)
    late = late_line(show.unplayed, minutes)
    body = "\n".join([head, *late, *itertools.chain(*(_tables(world, outcomes) for world in worlds))])
    print(body)
    if options.write or options.full:
        put(RESULTS, body, "checked" if options.check else "measured")
    measures = [measure for world in worlds for measure in limits(_of(world, outcomes))]
    failed = finish(measures, fails=options.check or options.full)
    print(*late, sep="\n", end="")
    return 1 if late else failed


def late_line(unplayed: Sequence[Case], minutes: float | None) -> list[str]:
    """Return the line that names the cases without an outcome; none where all were played."""
    names = "; ".join(f"{case.pattern} ({case.world} ranks, {case.level} noise, seed {case.seed})" for case in unplayed)
    return [f"Not played in time ({minutes:g} minutes): {names}.\n"] if unplayed else []


def _of(world: int, outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.case.world == world]


def _tables(world: int, outcomes: Sequence[Outcome]) -> list[str]:
    """Return the tables of the jobs of that size."""
    played = _of(world, outcomes)
    return [
        f"### {world} ranks\n",
        pooled_table(played),
        *(pattern_table(played, healthy=healthy) for healthy in (True, False)),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
