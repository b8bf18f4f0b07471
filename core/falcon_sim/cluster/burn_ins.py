"""Simulate the tests of nodes that the job has left: they run outside the job and end an exclusion.

A test finds whether the node computes slower at that moment, by the operator's own factor. It has no other access to
the truth. Core decides when it is repeated and when the job may use the node again (``recovery.history.left_nodes``).
"""

from __future__ import annotations

import math
from collections.abc import Collection

from falcon_core.recovery import Departure, RecoveryState
from falcon_core.recovery.views import left_nodes
from falcon_sim.cluster.machines import Machines

SLOWER = 1.5  # of the operator's fencing: a test slower than that fails, and fences the node
TEST_SECONDS = 60.0  # a pod starts, an image is there, some seconds of matrix products


class BurnIns:
    """All tests of a run, looked up later for the times at which they would have run."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def look(self, state: RecoveryState, busy: Collection[int], now: float) -> RecoveryState:
        """Record every test up to ``now``; nodes that are well again become spares. ``busy``: the job's nodes."""
        for departure in [departure for departure in state.departures if departure.back_at is None]:
            state = self._look_at(state, departure, busy, now)
        return state

    def _look_at(self, state: RecoveryState, departure: Departure, busy: Collection[int], now: float) -> RecoveryState:
        machines, name = self._machines, departure.node
        node = _number(name)
        if node not in machines.excluded:
            # repaired after a failure: as good as new
            return state if node in machines.broken else left_nodes.back(state, name, now)
        if node in machines.broken or node in busy:
            return state
        # Time jumps from look to look, so several tests may have become due since the last one.
        while (at := _tested_at(departure)) <= now:
            state = left_nodes.tested(state, name, at, passed=machines.slowdown(node, at) <= SLOWER)
            departure = left_nodes.find(state, name) or departure
        if not departure.passed:
            return state
        if node not in machines.spares:
            machines.spares.append(node)
        # A node that passed is a spare for others at once; this job waits for its probation.
        if left_nodes.returns_at(departure) <= now:
            machines.excluded.discard(node)
            state = left_nodes.back(state, name, left_nodes.returns_at(departure))
        return state

    def next_at(self, state: RecoveryState) -> float:
        """Return when a test or a probation ends next; infinity for never."""
        broken = self._machines.broken
        away = [left for left in state.departures if left.back_at is None and _number(left.node) not in broken]
        return min(
            (left_nodes.returns_at(left) if left.passed else _tested_at(left) for left in away), default=math.inf
        )

    def usable(self, state: RecoveryState, busy: Collection[int]) -> list[int]:
        """List the nodes that the job has left and could still run on: alive, and not fenced by a failed test."""
        machines = self._machines
        fenced = {_number(left.node) for left in state.departures if left.failed and left.back_at is None}
        return sorted(machines.excluded - machines.broken.keys() - fenced - set(busy))


def _tested_at(departure: Departure) -> float:
    if departure.passed:
        return math.inf
    return left_nodes.retest_at(departure) if departure.failed else departure.left_at + TEST_SECONDS


def _number(node: str) -> int:
    return int(node.removeprefix("node-"))
