"""A killed rank of a job on the real cluster until the next step of all ranks, without and with standbys.

The job is that of ``benchmarks.failstop``: three pods of one rank each. Each kill comes when the one before is older
than the job's window, so that no back-off holds the restart, and when every rank has its standby if it is to have one.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks.failstop.kinds import Kind, Planned
from benchmarks.failstop.outcome import suffer
from benchmarks.failstop.stage import COMMAND, RANKS, RECOVERY, WINDOW_SECONDS, Stage, namespace, shared_folder, stage
from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from falcon_core.wire.launcher.launch import Standby
from tests.e2e.jobs import condition

PAUSE_SECONDS: Final = 0.02  # of a step: the first step after a restart counts
STANDBY_SECONDS: Final = 180.0  # until every rank has one, on a busy machine


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


def measure(standby: Standby, runs: int) -> Restarts:
    """Kill a rank so many times under a kind of standby."""
    with namespace() as kubectl:
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
