"""Count how often noise gives a healthy rank's name while a job is slow: from 2 ranks to 10,000.

python -m evaluation.names --check     # a part of the looks: a minute or two
python -m evaluation.names --full      # all of them: ten minutes
"""

from __future__ import annotations

import argparse
import itertools
import math
from typing import Final

import numpy as np

from evaluation.harness import Evaluation, Measure, Table, run
from evaluation.names.looks import LOOKS, SLOW_RANK, looks
from falcon_core.judgement import JUDGEMENT

JOBS: Final = {2: 48, 4: 48, 8: 48, 16: 48, 64: 48, 256: 24, 1000: 12, 10_000: 4}  # by ranks, for each kind of noise
CORRELATIONS: Final = (0.0, 0.5, 0.9, 0.95)
DEVIATIONS: Final = (0.04, 0.06, 0.08, 0.12)
CHECKED_SHARE: Final = 8  # a check makes one job of so many
BY_CHANCE: Final = 0.001  # that a rate which is held gives so many names
LOOK_SECONDS: Final = 6.0  # a look's report covers about so long: looks closer to each other say the same
DAY: Final = 86_400.0
SLOW: Final = ((0.01, 1.3), (0.02, 1.3), (0.04, 1.5), (0.08, 1.5), (0.08, 2.0), (0.12, 3.0))  # noise, slowdown


def false_names(options: argparse.Namespace) -> Table:
    """Make the table of looks at which a healthy rank is named, and hold each row against the stated rate."""
    columns = " | ".join(f"correlation {each}" for each in CORRELATIONS)
    rows = [f"| ranks | looks | {columns} | a day of slowdown |", "|---" * (3 + len(CORRELATIONS)) + "|"]
    measures = []
    for ranks, jobs in JOBS.items():
        jobs = jobs if options.full else max(1, jobs // CHECKED_SHARE)
        found = [_count(ranks, correlation, jobs) for correlation in CORRELATIONS]
        made, named = jobs * LOOKS * len(CORRELATIONS) * len(DEVIATIONS), sum(found)
        a_day = named / made * DAY / LOOK_SECONDS
        cells = " | ".join(str(each) for each in found)
        rows.append(f"| {ranks:,} | {made:,} | {cells} | {a_day:.1f} |")
        limit = most_by_chance(JUDGEMENT.noise_chance * made)
        measures.append(Measure(f"{ranks} ranks: looks with a false name", named, limit, most=True, form=".0f"))
    return Table("\n".join(rows), measures)


def _count(ranks: int, correlation: float, jobs: int) -> int:
    """Return at how many looks a healthy rank is named, over all sizes of noise."""
    rng = np.random.default_rng([ranks, round(100 * correlation)])
    drawn = (looks(rng, ranks, deviation, correlation) for deviation in DEVIATIONS for _ in range(jobs))
    return sum(bool(named) for named in itertools.chain.from_iterable(drawn))


def most_by_chance(mean: float) -> int:
    """Return the greatest number of rare events that is not yet a sign of more than ``mean`` of them (Poisson)."""
    count, left = 0, 1 - math.exp(-mean)  # left: the chance of more than ``count``
    term = math.exp(-mean)
    while left > BY_CHANCE:
        count += 1
        term *= mean / count
        left -= term
    return count


def slow_names(options: argparse.Namespace) -> Table:
    """Make the table of looks at which a rank that is slow is named."""
    columns = " | ".join(f"{slowdown}x at {deviation:.0%}" for deviation, slowdown in SLOW)
    rows = [f"| ranks | correlation | {columns} |", "|---" * (2 + len(SLOW)) + "|"]
    for ranks in (2, 4, 8, 16, 64, 256):
        jobs = max(1, JOBS[ranks] // (CHECKED_SHARE if options.full else 2 * CHECKED_SHARE))
        for correlation in (0.0, 0.9):
            cells = " | ".join(f"{_share(ranks, correlation, jobs, *each):.0%}" for each in SLOW)
            rows.append(f"| {ranks} | {correlation} | {cells} |")
    return Table("\n".join(rows))


def _share(ranks: int, correlation: float, jobs: int, deviation: float, slowdown: float) -> float:
    rng = np.random.default_rng([ranks, round(100 * correlation), round(100 * slowdown)])
    seen = [
        SLOW_RANK in named
        for _ in range(jobs)
        for number, named in enumerate(looks(rng, ranks, deviation, correlation, slowdown=slowdown))
        if number > 2  # the report holds iterations of before the slowdown until then
    ]
    return sum(seen) / len(seen)


NAMES: Final = Evaluation(
    name="names",
    about=__doc__,
    code=("core/falcon_core", "evaluation/names/*.py"),
    tables={"false": false_names, "slow": slow_names},
    checked=("false",),
    kept=("false", "slow"),
)

if __name__ == "__main__":
    raise SystemExit(run(NAMES))
