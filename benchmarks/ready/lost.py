"""A killed node of a job on the real cluster until the next step of all ranks, with a pod that stands by and without.

The job is that of ``restarts``, with standbys of its imports beside its ranks. A warm spare is ready in both cases:
with no pod that stands by, the difference is what a new pod takes (containers, the agent's first connection) and what
its ranks import.
"""

from __future__ import annotations

import random
import time
from typing import Final, NamedTuple

from benchmarks.failstop.kinds import NODE_KILLED, Planned
from benchmarks.failstop.outcome import suffer
from benchmarks.failstop.stage import RANKS, RECOVERY, WINDOW_SECONDS, Stage, namespace, shared_folder, stage
from benchmarks.ready.restarts import PAUSE_SECONDS, STANDBY_SECONDS
from dev.kubectl import Kubectl
from tests.e2e.jobs import condition

MOST_SECONDS: Final = 6.0  # median, with a pod that stands by


class Lost(NamedTuple):
    """What came of the lost nodes with so many pods that stand by."""

    pods: int
    seconds: list[float]  # from each kill to the first step of the last rank; infinite: never
    problems: list[str]


def measure(runs: int) -> list[Lost]:
    """Kill a node so many times without and with a pod that stands by."""
    with namespace() as kubectl:
        return [_measure(kubectl, pods, runs) for pods in (0, 1)]


def _measure(kubectl: Kubectl, pods: int, runs: int) -> Lost:
    recovery = {**RECOVERY, "standby": "Imports", "standbyReplicas": pods}
    found = Lost(pods, [], [])
    with shared_folder() as folder, stage(kubectl, folder, pause_seconds=PAUSE_SECONDS, recovery=recovery) as long:
        killed_at = time.time() - WINDOW_SECONDS
        for number in range(runs):
            time.sleep(max(0.0, killed_at + WINDOW_SECONDS + 1 - time.time()))
            long.wait_quiet()
            _wait_for_standbys(long, pods)
            killed_at = time.time()
            outcome = suffer(long, Planned((NODE_KILLED,), (number % RANKS,)), random.Random(number))
            found.seconds.append(float("inf") if outcome.resumed is None else outcome.resumed)
            found.problems.extend(outcome.problems)
            print(f"{pods} pods stand by, node lost {number + 1}/{runs}: {found.seconds[-1]:.2f} s", flush=True)
    return found


def _wait_for_standbys(long: Stage, pods: int) -> None:
    def ready(status: dict[str, object]) -> bool:
        found = condition(status, "StandbyReady")
        return found.get("status") == "True" and (not pods or f", {pods} with all imports" in found["message"])

    long.job.wait("every rank and every pod that stands by is ready", ready, STANDBY_SECONDS)
