"""What handling of fail-stop does on the real cluster: how soon a fault is known, and whether a long job survives all.

make cluster-up images && python -m benchmarks.failstop --check    # three of each measured fault, ten of the campaign
make cluster-up images && python -m benchmarks.failstop --full     # twenty and a hundred, into RESULTS.md; hours

One job takes all faults, one after the other, then ends; its loss is compared with that of the same job without faults,
step by step and bit by bit. Ends with exit code 1 where a limit is not kept or anything was not as expected.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.failstop import kinds, present
from benchmarks.failstop.losses import compare, undisturbed
from benchmarks.failstop.outcome import Outcome, suffer
from benchmarks.failstop.stage import RANKS, Stage, left_behind, namespace, shared_folder, stage
from benchmarks.limits import table
from benchmarks.results import provenance, put
from dev.kubectl import WaitTimeoutError

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
FINISH_STEPS: Final = 50  # ahead: every rank has read the order by then
WELL: Final = "The job ended well, every loss is that of the job without faults, and nothing is left behind."


class Size(NamedTuple):
    """How many faults there are: of each kind whose detection has a limit, and of the campaign."""

    repeats: int
    campaign: int


CHECKED: Final = Size(repeats=3, campaign=10)
FULL: Final = Size(repeats=20, campaign=100)


class Run(NamedTuple):
    """What came of the faults, and what else was not as expected."""

    measured: list[Outcome]
    campaign: list[Outcome]
    problems: list[str]


def take(stage: Stage, planned: list[kinds.Planned], draw: random.Random) -> tuple[list[Outcome], list[str]]:
    """Bring the faults about, one after the other; return what came of them, and why there were no more."""
    outcomes: list[Outcome] = []
    for number, fault in enumerate(planned, start=1):
        try:
            stage.wait_quiet()
            outcome = suffer(stage, fault, draw)
        except WaitTimeoutError as error:
            return outcomes, [f"no further fault after {len(outcomes)} of {len(planned)}: {error}"]
        outcomes.append(outcome)
        say(f"{number}/{len(planned)} {present.line(outcome)}")
        for problem in outcome.problems:
            say(f"    {problem}")
        if outcome.problems:
            say(json.dumps(outcome.evidence, indent=1))
    return outcomes, []


def finish(stage: Stage) -> tuple[int, list[str]]:
    """Let training end; return its last step, and what is left of the job when it has been deleted."""
    stage.wait_quiet()
    last = stage.progress.newest() + FINISH_STEPS
    (stage.folder / "finish").write_text(str(last))
    stage.job.wait("the job has succeeded", lambda s: s.get("state") == "Succeeded", 120)
    uid = stage.job.get()["metadata"]["uid"]
    stage.job.delete()
    return last, left_behind(stage, uid)


def run(size: Size, seed: int, *, hangs: bool) -> Run:
    """Let a job take the measured faults, then the campaign, and end; then run it without faults.

    ``hangs``: the campaign has those too that take minutes each.
    """
    draw = random.Random(seed)
    measured = kinds.measured(size.repeats, RANKS)
    campaign = kinds.campaign(draw, size.campaign, RANKS, hangs=hangs)
    with namespace() as kubectl, shared_folder() as folder, shared_folder() as other:
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


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="few of each; nothing is written (the default)")
    parser.add_argument("--full", action="store_true", help="all of them, into RESULTS.md")
    parser.add_argument("--repeats", type=int, help="of each fault whose detection has a limit")
    parser.add_argument("--campaign", type=int, help="faults of the campaign")
    parser.add_argument("--seed", type=int, default=1, help="of the campaign")
    parser.add_argument("--note", default="", help="for RESULTS.md: what else ran on the machine")
    return parser.parse_args()


def main() -> int:
    asked = parse_arguments()
    size = FULL if asked.full else CHECKED
    if asked.repeats is not None:
        size = size._replace(repeats=asked.repeats)
    if asked.campaign is not None:
        size = size._replace(campaign=asked.campaign)
    done = run(size, asked.seed, hangs=asked.full)
    outcomes = [*done.measured, *done.campaign]
    kept = present.limits(outcomes)
    figures = "\n".join([table(kept), present.summary(outcomes, (*kinds.KINDS, *kinds.CUT_SHORT))])
    faults = present.faults(done.campaign)
    end = "\n".join(done.problems) or WELL
    print("\n".join(["", figures, faults, end]))
    if asked.full:
        note = f", seed {asked.seed}{asked.note and ', ' + asked.note}"
        put(RESULTS, f"{figures}\n{provenance(note=note)}", "figures")
        put(RESULTS, f"{faults}\n{end}\n\n{provenance(note=note)}", "campaign")
    well = not done.problems and not any(outcome.problems for outcome in outcomes)
    return 0 if well and all(limit.kept for limit in kept) else 1


if __name__ == "__main__":
    sys.exit(main())
