"""Compute a lower bound on the time of any placement, to judge strategy S3's answer.

Two relaxations of the model in ``placement_model``; each is a true bound, the larger one counts.

- *One node alone*: every other node is taken to be as fast as the fastest, the bad one sits in the role where it hurts
  least; computation and communication are bounded together.
- *Pigeonholes*: with j nodes at least f times slower and at most c roles in a cell, ⌈j/c⌉ cells are slow, so one of L
  lanes has ⌈⌈j/c⌉/L⌉ slow stages; at best those with the least work (FALCON §5.3's count of straggling stages).
"""

from __future__ import annotations

import itertools
from collections import Counter

from falcon_core.planning.placement.placement_model import Cluster, Roles, links


def lower_bound_seconds(roles: Roles, cluster: Cluster) -> float:
    """Return a time [s] that no permutation of the nodes goes below; the input has been checked."""
    base = _Base(roles, cluster)
    bound = base.seconds
    suspects = {int(node) for node in _worst(cluster.compute_slowdown) + _worst(cluster.link_slowdown)}
    for node in suspects:
        compute, adapter = cluster.compute_slowdown[node], cluster.link_slowdown[node]
        bound = max(bound, min(base.with_one(kind, compute, adapter) for kind in base.role_kinds))
    return max(bound, _pigeonholes(roles, cluster, base) + base.communication)


def _worst(slowdowns: tuple[float, ...], most: int = 8) -> list[int]:
    return sorted(range(len(slowdowns)), key=lambda node: -slowdowns[node])[:most]


class _Base:
    """The job on nodes that are all as good as the best."""

    def __init__(self, roles: Roles, cluster: Cluster) -> None:
        self.roles, self.cluster = roles, cluster
        self.fastest, adapter = min(cluster.compute_slowdown), min(cluster.link_slowdown)
        stages = [self.fastest * seconds for seconds in roles.stage_seconds]
        self.lane_seconds = [sum(stages) + (count - 1) * max(stages) for count in roles.microbatches]
        self.by_kind: dict[str, float] = {}
        carried: list[dict[str, float]] = [{} for _ in roles.cells]
        for communicator in roles.communicators:
            kind, seconds = communicator.kind, communicator.bytes_per_link * cluster.seconds_per_byte
            linked = set(itertools.chain.from_iterable(links(communicator)))
            if linked:
                # no link is better than the best adapter, and at least 1: a pair's own congestion is never below 1
                self.by_kind[kind] = max(self.by_kind.get(kind, 0.0), seconds * max(adapter, 1.0))
            for role in linked:
                carried[role][kind] = max(carried[role].get(kind, 0.0), seconds)
        self.communication = sum(self.by_kind.values())
        self.seconds = max(self.lane_seconds) + self.communication
        self.role_kinds = {  # roles that are alike are tried once
            (frozenset((stage, roles.microbatches[lane], lane) for lane, stage in cells), frozenset(kinds.items()))
            for cells, kinds in zip(_without_lane_names(roles), carried, strict=True)
        }

    def with_one(
        self, kind: tuple[frozenset[tuple[int, int, int]], frozenset[tuple[str, float]]], compute: float, adapter: float
    ) -> float:
        cells, carried = kind
        # Assume the best for all else: only the stages of this role are computed by the given node.
        slowest = max(self.lane_seconds)
        for lane in {lane for _, _, lane in cells}:
            slow = {stage for stage, _, of in cells if of == lane}
            [count] = {count for _, count, of in cells if of == lane}
            times = [
                seconds * (max(compute, self.fastest) if stage in slow else self.fastest)
                for stage, seconds in enumerate(self.roles.stage_seconds)
            ]
            slowest = max(slowest, sum(times) + (count - 1) * max(times))
        touched = dict(carried)
        communication = sum(
            max(seconds, touched.get(name, 0.0) * max(adapter, 1.0)) for name, seconds in self.by_kind.items()
        )
        return slowest + communication


def _without_lane_names(roles: Roles) -> list[tuple[tuple[int, int], ...]]:
    """Call lanes with the same number of micro-batches, which are alike, by the first of them."""
    if any(len({lane for lane, _ in cells}) > 1 for cells in roles.cells):
        return list(roles.cells)
    first = {count: lane for lane, count in reversed(list(enumerate(roles.microbatches)))}
    return [tuple((first[roles.microbatches[lane]], stage) for lane, stage in cells) for cells in roles.cells]


def _pigeonholes(roles: Roles, cluster: Cluster, base: _Base) -> float:
    in_cell = max(Counter(cell for cells in roles.cells for cell in cells).values())
    lanes, fewest = len(roles.microbatches), min(roles.microbatches)
    stages, bound = sorted(roles.stage_seconds), 0.0
    least, longest = base.fastest * sum(stages), base.fastest * stages[-1]
    for index, slowdown in enumerate(sorted(cluster.compute_slowdown, reverse=True)):
        cells = -(-(index + 1) // in_cell)
        slow = min(-(-cells // lanes), len(stages))
        total = least + (slowdown - base.fastest) * sum(stages[:slow])
        bound = max(bound, total + (fewest - 1) * max(longest, slowdown * stages[slow - 1]))
    return bound
