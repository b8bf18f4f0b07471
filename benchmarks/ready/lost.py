"""A killed node of a job on the real cluster until the next step of all ranks, with a pod that stands by and without.

The job is that of ``restarts``, with standbys of its imports beside its ranks. A warm spare is ready in both cases:
with no pod that stands by, the difference is what a new pod takes (containers, the agent's first connection) and what
its ranks import.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.failstop.kinds import NODE_KILLED
from benchmarks.failstop.stage import Stage, namespace
from benchmarks.ready.restarts import STANDBY_SECONDS, series
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import condition

MOST_SECONDS: Final = 6.0  # median, with a pod that stands by


class Lost(NamedTuple):
    """What came of the lost nodes with so many pods that stand by."""

    pods: int
    seconds: list[float]  # from each kill to the first step of the last rank; infinite: never
    problems: list[str]


def measure(pods: int, runs: int) -> Lost:
    """Kill a node so many times with so many pods that stand by."""
    with namespace() as kubectl:
        return _measure(kubectl, pods, runs)


def _measure(kubectl: Kubectl, pods: int, runs: int) -> Lost:
    recovery = {"standby": "Imports", "standbyReplicas": pods}
    what = f"{pods} pods stand by, a node lost"
    return Lost(pods, *series(kubectl, NODE_KILLED, runs, recovery, lambda long: _wait_for_standbys(long, pods), what))


def _wait_for_standbys(long: Stage, pods: int) -> None:
    def ready(status: Json) -> bool:
        found = condition(status, "StandbyReady")
        return found.get("status") == "True" and (not pods or f", {pods} with all imports" in found["message"])

    long.job.wait("every rank and every pod that stands by is ready", ready, STANDBY_SECONDS)
