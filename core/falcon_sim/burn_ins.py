"""The tests of nodes that the job has left: as the operator's, which run outside the job and end a node's exclusion.

A test sees whether the node computes slower at that moment, by the operator's own factor, and nothing else of the
truth. When it is repeated and when the job may have the node back is core's to say (``recovery.departures``).
"""

from __future__ import annotations

import math
from collections.abc import Collection

from falcon_core.recovery import departures
from falcon_core.recovery.state import Departure, RecoveryState
from falcon_sim.machines import Machines

SLOWER = 1.5  # of the operator's fencing: a test slower than that fails, and fences the node
TEST_SECONDS = 60.0  # a pod starts, an image is there, some seconds of matrix products


class BurnIns:
    """All tests of one run. They are looked up when somebody asks, at the times at which they would have run."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def look(self, state: RecoveryState, busy: Collection[int], now: float) -> RecoveryState:
        """The state after every test until ``now``; nodes that are well again are spares again. ``busy``: the job's."""
        machines = self._machines
        for told in [one for one in state.departures if one.back_at is None]:
            node = _number(told.node)
            if node not in machines.excluded:
                if node not in machines.broken:  # repaired after a failure: as good as new
                    state = departures.back(state, told.node, now)
                continue
            if node in machines.broken or node in busy:
                continue
            departure = told
            while (at := _tested_at(departure)) <= now:
                passed = machines.slowdown(node, at) <= SLOWER
                state = departures.tested(state, told.node, at, passed=passed)
                departure = departures.find(state, told.node) or departure
            if departure.passed and node not in machines.spares:
                machines.spares.append(node)
            if departure.passed and departures.returns_at(departure) <= now:
                machines.excluded.discard(node)
                state = departures.back(state, told.node, departures.returns_at(departure))
        return state

    def next_at(self, state: RecoveryState) -> float:
        """When a test or a probation ends next; infinity for never."""
        away = [
            one for one in state.departures if one.back_at is None and _number(one.node) not in self._machines.broken
        ]
        return min((departures.returns_at(one) if one.passed else _tested_at(one) for one in away), default=math.inf)

    def usable(self, state: RecoveryState, busy: Collection[int]) -> list[int]:
        """Nodes that the job has left and could still run on: alive, and not fenced by a failed test."""
        machines = self._machines
        fenced = {_number(one.node) for one in state.departures if one.failed and one.back_at is None}
        return sorted(machines.excluded - machines.broken.keys() - fenced - set(busy))


def _tested_at(departure: Departure) -> float:
    if departure.passed:
        return math.inf
    return departures.retest_at(departure) if departure.failed else departure.left_at + TEST_SECONDS


def _number(node: str) -> int:
    return int(node.removeprefix("node-"))
