"""A killed rank of a job on the real cluster until the next step of all ranks, without and with standbys.

The job is that of ``benchmarks.failstop``: three pods of one rank each. Each kill comes when the one before is older
than the job's window, so that no back-off holds the restart, and when every rank has its standby if it is to have one.
"""

from __future__ import annotations

import random
import signal
import time
from typing import Final, NamedTuple

from benchmarks.failstop.kinds import Kind, Planned
from benchmarks.failstop.outcome import suffer
from benchmarks.failstop.stage import COMMAND, RANKS, RECOVERY, WINDOW_SECONDS, Stage, namespace, shared_folder, stage
from dev.cluster import faults
from dev.kubectl import Kubectl
from falcon_core.wire.launch import Standby
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


class Restarts(NamedTuple):
    """What came of the kills under one kind of standby."""

    standby: Standby
    seconds: list[float]  # from each kill to the first step of the last rank; infinite: never
    problems: list[str]


def measure(runs: int) -> list[Restarts]:
    """Kill a rank so many times under each kind of standby."""
    with namespace() as kubectl:
        return [_measure(kubectl, standby, runs) for standby in ("None", "Imports", "Processes")]


def _measure(kubectl: Kubectl, standby: Standby, runs: int) -> Restarts:
    recovery = {**RECOVERY, "standby": standby}
    found = Restarts(standby, [], [])
    with shared_folder() as folder, stage(kubectl, folder, pause_seconds=PAUSE_SECONDS, recovery=recovery) as long:
        killed_at = time.time() - WINDOW_SECONDS
        for number in range(runs):
            time.sleep(max(0.0, killed_at + WINDOW_SECONDS + 1 - time.time()))
            long.wait_quiet()
            if standby != "None":
                _wait_for_standbys(long)
            killed_at = time.time()
            outcome = suffer(long, Planned((KILLED,), (number % RANKS,)), random.Random(number))
            found.seconds.append(float("inf") if outcome.resumed is None else outcome.resumed)
            found.problems.extend(outcome.problems)
            print(f"standby {standby}, {number + 1}/{runs}: {found.seconds[-1]:.2f} s", flush=True)
    return found


def _wait_for_standbys(long: Stage) -> None:
    long.job.wait(
        "every rank has a standby",
        lambda status: condition(status, "StandbyReady").get("status") == "True",
        STANDBY_SECONDS,
    )
