"""Measure a killed node of a job until the next step of all ranks, with a pod that stands by and without.

The job is that of ``restarts``, with standbys of its imports beside its ranks. A warm spare is ready in both cases:
with no pod that stands by, the difference is what a new pod takes (containers, the agent's first connection) and what
its ranks import.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from benchmarks.limits import Limit
from benchmarks.ready.parts import Parts
from dev.install import prepare_cluster
from dev.kubectl import Json, Kubectl
from evaluation.harness import Table
from tests.e2e.campaigns.failures import NODE_KILLED
from tests.e2e.campaigns.measure.limited import limited
from tests.e2e.campaigns.measure.restarts import STANDBY_SECONDS, runs_of, series, spread, spread_row
from tests.e2e.campaigns.stage import Stage, namespace
from tests.e2e.jobs import condition

MOST_SECONDS: Final = 6.0  # median, with a pod that stands by
RUNS_A_NODE: Final = 2  # a killed node takes long to be a spare again: so many killed ranks for one node


class Lost(NamedTuple):
    """What came of the lost nodes with so many pods that stand by."""

    pods: int
    seconds: list[float]  # from each kill to the first step of the last rank; infinite: never
    problems: list[str]


def make(options: argparse.Namespace) -> Table:
    """Return the times after a lost node without and with a pod that stands by, with the limit of the latter."""
    parts, runs = Parts(options.keep), max(1, runs_of(options) // RUNS_A_NODE)
    found = [parts.of(f"{pods} pods stand by", Lost, partial(measure, pods, runs)) for pods in (0, 1)]
    rows = [spread_row(f"{each.pods} pods stand by, {len(each.seconds)} nodes lost", each.seconds) for each in found]
    return limited(spread(rows), limits(found), [problem for each in found for problem in each.problems])


def limits(found: Sequence[Lost]) -> list[Limit]:
    """Compare the median time after a lost node with its limit, where a pod stands by."""
    return [
        Limit(
            what=f"node lost, a pod stands by: all ranks train again, median of {len(each.seconds)}",
            measured=statistics.median(each.seconds),
            most=MOST_SECONDS,
            unit="s",
        )
        for each in found
        if each.pods
    ]


def measure(pods: int, runs: int) -> Lost:
    """Kill a node so many times with so many pods that stand by."""
    with namespace(prepare_cluster()) as kubectl:
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
