"""Measure a killed rank of a job until the next step of all ranks, without and with standbys.

The job is that of ``fail_stop``: three pods of one rank each. Each kill comes when the one before is older
than the job's window, so that no back-off holds the restart, and when every rank has its standby if it is to have one.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from benchmarks.limits import Limit
from benchmarks.ready.parts import Parts
from dev.cluster import faults
from dev.install import prepare_cluster
from dev.kubectl import Json, Kubectl
from evaluation.harness import Table
from falcon_core.wire.launcher.launch import Standby
from tests.e2e.campaigns.failures import Kind, Planned
from tests.e2e.campaigns.measure.limited import limited
from tests.e2e.campaigns.outcome import suffer
from tests.e2e.campaigns.stage import COMMAND, RANKS, RECOVERY, WINDOW_SECONDS, Stage, namespace, shared_folder, stage
from tests.e2e.jobs import condition

PAUSE_SECONDS: Final = 0.02  # of a step: the first step after a restart counts
STANDBY_SECONDS: Final = 180.0  # until every rank has one, on a busy machine
ROUGH_RUNS: Final = 3
FULL_RUNS: Final = 20
# Median, from the kill to the next step of all ranks.
MOST_SECONDS: Final = {"None": 4.0, "Imports": 1.2, "Processes": 0.8}


def _rank_killed(long: Stage, _: random.Random, rank: int) -> float:
    member = long.job.member(rank)
    at = time.time()
    if not faults.send_signal(member["node"], COMMAND, signal.SIGKILL, member["podUid"], oldest=True):
        raise LookupError(f"rank {rank} does not run")
    return at


KILLED: Final = Kind(name="rank killed (SIGKILL)", inject=_rank_killed, diagnoses=frozenset({"ProcessKilled"}))


MEMORY: Final = "3Gi"  # a standby is made where 1.25 GiB are free


class Restarts(NamedTuple):
    """What came of the kills under one kind of standby."""

    standby: Standby
    seconds: list[float]  # from each kill to the first step of the last rank; infinite: never
    problems: list[str]


STANDBYS: Final[tuple[Standby, ...]] = ("None", "Imports", "Processes")


def runs_of(options: argparse.Namespace) -> int:
    """Return how many kills of each kind were asked for."""
    return int(options.runs or (FULL_RUNS if options.full else ROUGH_RUNS))


def make(options: argparse.Namespace) -> Table:
    """Return the times after a killed rank by the kind of standby, with their limits."""
    parts, runs = Parts(options.keep), runs_of(options)
    found = [
        parts.of(f"standby {standby}", Restarts, partial(measure, standby, runs))
        for standby in options.standby or STANDBYS
    ]
    rows = [spread_row(f"standby {each.standby}, {len(each.seconds)} kills", each.seconds) for each in found]
    return limited(spread(rows), limits(found), [problem for each in found for problem in each.problems])


def limits(found: Sequence[Restarts]) -> list[Limit]:
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


def spread(rows: Sequence[str]) -> str:
    """Return rows of medians and worst as a Markdown table."""
    return "\n".join(["| | median | worst |", "|---|---|---|", *rows, ""])


def spread_row(what: str, seconds: Sequence[float]) -> str:
    """Return the median beside the worst as a row."""
    return f"| {what} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s |"


def measure(standby: Standby, runs: int) -> Restarts:
    """Kill a rank so many times under a kind of standby."""
    with namespace(prepare_cluster()) as kubectl:
        return _measure(kubectl, standby, runs)


def _measure(kubectl: Kubectl, standby: Standby, runs: int) -> Restarts:
    def wait(long: Stage) -> None:
        if standby != "None":
            _wait_for_standbys(long)

    return Restarts(standby, *series(kubectl, KILLED, runs, {"standby": standby}, wait, f"standby {standby}"))


def series(
    kubectl: Kubectl, kind: Kind, runs: int, recovery: Json, wait: Callable[[Stage], None], what: str
) -> tuple[list[float], list[str]]:
    """Bring a fault about so many times, of a job of its own.

    Args:
        kubectl: of the namespace.
        kind: of the fault.
        runs: number of faults.
        recovery: of the job's spec, beside what lets every fault be met at once.
        wait: until the job is ready for the next fault.
        what: printed with each result.

    Returns:
        The seconds from each fault to the first step of the last rank (infinite: never), and what was not as expected.
    """
    seconds: list[float] = []
    problems: list[str] = []
    asked = {**RECOVERY, **recovery}
    with (
        shared_folder() as folder,
        stage(kubectl, folder, pause_seconds=PAUSE_SECONDS, recovery=asked, memory=MEMORY) as long,
    ):
        struck_at = time.time() - WINDOW_SECONDS
        for number in range(runs):
            time.sleep(max(0.0, struck_at + WINDOW_SECONDS + 1 - time.time()))
            long.wait_quiet(spare=not recovery.get("standbyReplicas"))
            wait(long)
            struck_at = time.time()
            outcome = suffer(long, Planned((kind,), (number % RANKS,)), random.Random(number))
            seconds.append(float("inf") if outcome.resumed is None else outcome.resumed)
            problems.extend(outcome.problems)
            print(f"{what}, {number + 1}/{runs}: {seconds[-1]:.2f} s", flush=True)
    return seconds, problems


def _wait_for_standbys(long: Stage) -> None:
    long.job.wait(
        "every rank has a standby",
        lambda status: condition(status, "StandbyReady").get("status") == "True",
        STANDBY_SECONDS,
    )
