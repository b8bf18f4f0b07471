"""Keep the truth about the machines under a job: which are slow, dead or spare at which time.

The rest of the simulation sees only its effects.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from falcon_sim.job.model import Conditions
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.scenario import Scenario, SlowFault, StopFault

replace = msgspec.structs.replace


def draw_faults(scenario: Scenario, horizon_seconds: float) -> tuple[list[SlowFault], list[StopFault]]:
    """Return the faults of the trace and those drawn, in the order of their times.

    The same seed gives the same faults.
    """
    # A generator of its own: drawing other faults must not change the noise of the iterations.
    rng = np.random.default_rng([scenario.seed, 1])
    nodes = scenario.nodes + (scenario.cluster.spares if scenario.faults.strike == "Nodes" else 0)
    slow, stop = list(scenario.faults.slow), list(scenario.faults.stop)
    for drawn in scenario.faults.random_slow:
        for at in _poisson(rng, drawn.node_hours_between, nodes, horizon_seconds):
            node = int(rng.integers(nodes))
            proc = None if drawn.whole_node else int(rng.integers(scenario.job.procs_per_node))
            slow.append(
                SlowFault(
                    at_seconds=at,
                    duration_seconds=max(1.0, drawn.duration_seconds.draw(rng)),
                    factor=max(1.0, drawn.factor.draw(rng)),
                    kind=drawn.kind,
                    node=node,
                    proc=proc if drawn.kind == "Computation" else None,
                )
            )
    for failing in scenario.faults.random_stop:
        stop += [
            StopFault(
                at_seconds=at,
                severity=failing.severity,
                node=int(rng.integers(nodes)),
                repair_seconds=failing.repair_seconds.draw(rng),
            )
            for at in _poisson(rng, failing.node_hours_between, nodes, horizon_seconds)
        ]
    return sorted(slow, key=lambda fault: fault.at_seconds), sorted(stop, key=lambda fault: fault.at_seconds)


def _poisson(rng: np.random.Generator, node_hours: float, nodes: int, horizon_seconds: float) -> list[float]:
    rate = nodes / (node_hours * 3600.0)
    times, at = [], float(rng.exponential(1 / rate))
    while at < horizon_seconds:
        times.append(at)
        at += float(rng.exponential(1 / rate))
    return times


class Machines:
    """Nodes by number: 0 … nodes − 1 begin in the job, the rest are spares. ``roles[i]`` is the node of replica i."""

    def __init__(self, scenario: Scenario, slow: list[SlowFault]) -> None:
        self.roles: list[int] = list(range(scenario.nodes))
        self.spares = list(range(scenario.nodes, scenario.nodes + scenario.cluster.spares))
        self.broken: dict[int, float] = {}  # node → repaired at
        self.excluded: set[int] = set()  # by the job
        self._slow = list(slow)
        self._by_role = scenario.faults.strike == "Roles"
        self._begun = 0  # of the slow faults: they strike a node, and stay with it
        self._procs = scenario.job.procs_per_node
        self._changes = sorted(
            {at for fault in slow for at in (fault.at_seconds, fault.at_seconds + fault.duration_seconds)}
        )

    def active(self, now: float) -> list[SlowFault]:
        """List the slow faults of the job's own nodes."""
        self._begin(now)
        used = set(self.roles)
        return [
            fault
            for fault in self._slow
            if fault.at_seconds <= now < fault.at_seconds + fault.duration_seconds
            and fault.factor > 1
            and fault.node in used
            and (fault.peer is None or fault.peer in used)
        ]

    def slowdown(self, node: int, at: float) -> float:
        """Return a node's compute time ÷ a healthy node's at that time, by its slowest process."""
        self._begin(at)
        return max(
            (
                fault.factor
                for fault in self._slow
                if fault.node == node
                and fault.kind == "Computation"
                and fault.at_seconds <= at < fault.at_seconds + fault.duration_seconds
            ),
            default=1.0,
        )

    def _begin(self, now: float) -> None:
        """Let the slow faults strike whose time has come."""
        while self._begun < len(self._slow) and self._slow[self._begun].at_seconds <= now:
            if self._by_role:
                fault = self._slow[self._begun]
                peer = None if fault.peer is None else self.roles[fault.peer]
                self._slow[self._begun] = replace(fault, node=self.roles[fault.node], peer=peer)
            self._begun += 1

    def placed(self, fault: StopFault) -> StopFault:
        """Return a fail-stop that happens now, with the node that it strikes."""
        return replace(fault, node=self.roles[fault.node]) if self._by_role else fault

    def next_change(self, now: float) -> float:
        """Return when a slow fault begins or ends next; infinity for never."""
        place = int(np.searchsorted(self._changes, now, side="right"))
        return self._changes[place] if place < len(self._changes) else math.inf

    def conditions(self, now: float, counts: tuple[int, ...]) -> Conditions:
        """Return the present state of the job's ranks and links, by role."""
        # Faults strike nodes; the job's model works with roles.
        role_of = {node: role for role, node in enumerate(self.roles)}
        compute = np.ones(len(self.roles) * self._procs)
        links = np.ones((len(self.roles), len(self.roles)))
        for fault in self.active(now):
            role = role_of[fault.node]
            if fault.kind == "Computation":
                first = role * self._procs + (fault.proc or 0)
                last = first + (self._procs if fault.proc is None else 1)
                compute[first:last] = np.maximum(compute[first:last], fault.factor)
            elif fault.peer is None:
                links[role, :] = np.maximum(links[role, :], fault.factor)
                links[:, role] = np.maximum(links[:, role], fault.factor)
            else:
                pair = (role, role_of[fault.peer])
                links[pair] = links[pair[::-1]] = max(links[pair], fault.factor)
        return Conditions(compute, links, counts)

    def take_spare(self) -> int | None:
        """Take a spare for the job; None where there is none."""
        usable = [node for node in self.spares if node not in self.excluded]
        if not usable:
            return None
        self.spares.remove(usable[0])
        return usable[0]

    def fail(self, node: int, repaired_at: float) -> None:
        """Take the node away until it is repaired."""
        self.broken[node] = repaired_at
        if node in self.spares:
            self.spares.remove(node)

    def leave(self, node: int) -> None:
        """Stop using the node. A slow node is not given back to the job; a broken node returns when repaired."""
        if node not in self.broken:
            self.excluded.add(node)

    def take_back(self, node: int) -> None:
        """Let the job use the node again, as the first of the spares."""
        self.excluded.discard(node)
        if node in self.spares:
            self.spares.remove(node)
        self.spares.insert(0, node)

    def repair(self, now: float, used: set[int]) -> None:
        """Make spares of broken nodes whose time has come, as good as new; ``used``: the job's own nodes."""
        for node, at in list(self.broken.items()):
            if at <= now:
                del self.broken[node]
                self.excluded.discard(node)
                if node not in used:
                    self.spares.append(node)


def probe(links: Floats, role: int, peer: int, rng: np.random.Generator) -> float:
    """Return the result of a peer-to-peer test between two nodes: its time over a healthy link's, with noise."""
    return float(links[role, peer] * math.exp(0.02 * rng.standard_normal()))
