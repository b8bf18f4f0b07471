"""Measure how soon a failure is known, and whether a long job survives all failures.

One job takes them one after the other, then ends; its loss is compared with that of the same job without failures, step
by step and bit by bit. At the rough size it takes three of each failure whose detection has a limit and ten of the
campaign, at the full size twenty and a hundred, which takes hours.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Final, NamedTuple

from dev.install import prepare_cluster
from dev.kubectl import WaitTimeoutError
from evaluation.harness import Table
from tests.e2e.campaigns import failures
from tests.e2e.campaigns.measure import fail_stop_tables as tables
from tests.e2e.campaigns.measure.limited import limited
from tests.e2e.campaigns.measure.losses import compare, undisturbed
from tests.e2e.campaigns.outcome import Outcome, suffer
from tests.e2e.campaigns.stage import RANKS, Stage, finish, namespace, shared_folder, stage

WELL: Final = "The job ended well, every loss is that of the job without faults, and nothing is left behind."


class Size(NamedTuple):
    """How many faults there are: of each kind whose detection has a limit, and of the campaign."""

    repeats: int
    campaign: int


ROUGH: Final = Size(repeats=3, campaign=10)
FULL: Final = Size(repeats=20, campaign=100)


class Run(NamedTuple):
    """What came of the faults, and what else was not as expected."""

    measured: list[Outcome]
    campaign: list[Outcome]
    problems: list[str]


def take(stage: Stage, planned: list[failures.Planned], draw: random.Random) -> tuple[list[Outcome], list[str]]:
    """Bring the faults about, one after the other; return what came of them, and why there were no more."""
    outcomes: list[Outcome] = []
    for number, fault in enumerate(planned, start=1):
        try:
            stage.wait_quiet()
            outcome = suffer(stage, fault, draw)
        except WaitTimeoutError as error:
            return outcomes, [f"no further fault after {len(outcomes)} of {len(planned)}: {error}"]
        outcomes.append(outcome)
        say(f"{number}/{len(planned)} {tables.line(outcome)}")
        for problem in outcome.problems:
            say(f"    {problem}")
        if outcome.problems:
            say(json.dumps(outcome.evidence, indent=1))
    return outcomes, []


def run(size: Size, seed: int, *, hangs: bool) -> Run:
    """Let a job take the measured faults, then the campaign, and end; then run it without faults.

    ``hangs``: the campaign has those too that take minutes each.
    """
    draw = random.Random(seed)
    measured = failures.measured(size.repeats, RANKS)
    campaign = failures.campaign(draw, size.campaign, RANKS, hangs=hangs)
    with namespace(prepare_cluster()) as kubectl, shared_folder() as folder, shared_folder() as other:
        with stage(kubectl, folder) as long:
            outcomes, problems = take(long, [*measured, *campaign], draw)
            last, left = finish(long) if not problems else (0, [])
        if not problems:
            problems = [f"left behind: {what}" for what in left]
            say(f"the same {last} steps without faults")
            problems += compare(long.progress, undisturbed(kubectl, other, last), last)
    return Run(outcomes[: len(measured)], outcomes[len(measured) :], problems)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def size_of(options: argparse.Namespace) -> Size:
    """Return how many faults were asked for."""
    size = FULL if options.full else ROUGH
    if options.repeats is not None:
        size = size._replace(repeats=options.repeats)
    return size if options.campaign is None else size._replace(campaign=options.campaign)


def make(options: argparse.Namespace) -> Table:
    """Return the figures beside their limits, and a line for each fault of the campaign."""
    return report(run(size_of(options), options.seed, hangs=options.full), options.seed)


def report(done: Run, seed: int) -> Table:
    """Return the tables of a run. ``seed``: of its campaign."""
    outcomes = [*done.measured, *done.campaign]
    figures = tables.summary(outcomes, (*failures.KINDS, *failures.CUT_SHORT))
    campaign = f"### The campaign, seed {seed}\n\n{tables.faults(done.campaign)}"
    wrong = [f"{outcome.name}: {problem}" for outcome in outcomes for problem in outcome.problems]
    end = () if done.problems else (WELL, "")
    return limited("\n".join([figures, campaign, *end]), tables.limits(outcomes), [*done.problems, *wrong])
