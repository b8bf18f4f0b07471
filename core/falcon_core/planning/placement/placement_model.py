"""Model the iteration time of a placement of nodes, for strategy S3.

A *role* is a node's worth of ranks: the (lane, stage) cells of the pipelines that it computes, and its place in the
communicators. A *lane* is a set of pipelines that wait for each other in every micro-batch: one data-parallel replica
of a dense model, several where experts are spread over replicas, all of them in FALCON's model of a stage (§5.3).

- *compute* of a lane, 1F1B: Σ_s t_s + (m − 1) · max_s t_s with t_s = the stage's healthy time × the slowdown of the
  slowest node in the cell; the slowest lane counts.
- *communication*: communicators of one class run at the same time (the slowest counts), classes one after the other;
  a communicator takes as long as its slowest link: bytes over that link × healthy seconds per byte × the link's
  slowdown (the worse end's adapter, or the pair's own congestion if that is worse).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError
from falcon_core.topology.parallelism import Axis, Parallelism

Cell = tuple[int, int]
Undo = list[tuple[list[float], int, float]]  # a list, the place in it that was changed, and the value before


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """Roles in the order of their ring, or of their chain, and what one of its links carries in an iteration."""

    kind: str  # communicators of the same kind run at the same time
    roles: tuple[int, ...]
    bytes_per_link: float
    ring: bool = True  # the last is linked to the first


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """A job's roles: what is to be placed."""

    cells: tuple[tuple[Cell, ...], ...]  # of each role: (lane, stage), at least one
    stage_seconds: tuple[float, ...]  # healthy forward and backward of one micro-batch in each stage
    microbatches: tuple[int, ...]  # of each lane
    communicators: tuple[Communicator, ...] = ()
    ranks_per_role: int = 1


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The measured slowdowns of the nodes, by index, as factors: 1 is healthy."""

    compute_slowdown: tuple[float, ...]
    link_slowdown: tuple[float, ...]  # of a node's own adapter
    pair_slowdown: dict[tuple[int, int], float] = {}  # congestion between two nodes, lower index first, ≥ 1
    seconds_per_byte: float = 1 / 25e9  # of a healthy link


def check(roles: Roles, cluster: Cluster, current: Sequence[int]) -> None:
    """Refuse what has no meaning, by name. Raises InvalidInputError, InvalidSpeedError."""
    count = len(roles.cells)
    if count == 0 or not len(cluster.compute_slowdown) == len(cluster.link_slowdown) == count:
        raise InvalidInputError(f"{count} roles, {len(cluster.compute_slowdown)} nodes: as many nodes as roles")
    if sorted(current) != list(range(count)):
        raise InvalidInputError("the current placement is not a permutation of the nodes")
    _check_speeds(roles, cluster)
    for (low, high), value in cluster.pair_slowdown.items():
        if not (0 <= low < high < count) or not (1 <= value < math.inf):
            raise InvalidInputError(f"the pair {low}, {high} has slowdown {value}")
    _check_cells(roles)
    for communicator in roles.communicators:
        unknown = any(not 0 <= role < count for role in communicator.roles)
        if unknown or not (0 <= communicator.bytes_per_link < math.inf):
            raise InvalidInputError(f"a communicator of kind {communicator.kind} has unknown roles or negative bytes")


def _check_speeds(roles: Roles, cluster: Cluster) -> None:
    for name, values in (
        ("stage time", roles.stage_seconds),
        ("compute slowdown", cluster.compute_slowdown),
        ("link slowdown", cluster.link_slowdown),
        ("time per byte", (cluster.seconds_per_byte,)),
    ):
        for index, value in enumerate(values):
            if not (0 < value < math.inf):
                raise InvalidSpeedError(f"{name} {index} is {value}")


def _check_cells(roles: Roles) -> None:
    if any(count < 1 for count in roles.microbatches):
        raise InvalidInputError("a lane has no micro-batch")
    lanes, stages = len(roles.microbatches), len(roles.stage_seconds)
    if set(itertools.chain.from_iterable(roles.cells)) != set(itertools.product(range(lanes), range(stages))):
        raise InvalidInputError("the roles' cells are not exactly those of the lanes and stages")
    if not all(roles.cells):
        raise InvalidInputError("a role computes nothing")


def roles_of(
    layout: Parallelism,
    ranks_per_node: int,
    *,
    stage_seconds: Sequence[float],
    microbatches: int,
    bytes_per_link: dict[Axis, float],
    lockstep: bool = False,
) -> Roles:
    """Return the roles of a layout whose nodes hold ``ranks_per_node`` consecutive ranks.

    ``bytes_per_link`` [bytes an iteration] is what one link of one rank-level communicator of that axis carries;
    communicators that run along the same path of nodes add up, those within a node cost nothing. ``lockstep``: all
    replicas wait for each other in every micro-batch (FALCON's model); else those that share experts do.
    Raises InvalidInputError where nodes do not divide the world.
    """
    if ranks_per_node < 1 or layout.world % ranks_per_node:
        raise InvalidInputError(f"{layout.world} ranks do not fill nodes of {ranks_per_node}")
    if len(stage_seconds) != layout.pipeline:
        raise InvalidInputError(f"{len(stage_seconds)} stage times for {layout.pipeline} stages")
    cells: list[set[Cell]] = [set() for _ in range(layout.world // ranks_per_node)]
    for rank in range(layout.world):
        at = layout.coordinates(rank)
        cells[rank // ranks_per_node].add((0 if lockstep else at.expert_data, at.pipeline))
    return Roles(
        cells=tuple(tuple(sorted(own)) for own in cells),
        stage_seconds=tuple(stage_seconds),
        microbatches=(microbatches,) * (1 if lockstep else layout.expert_data),
        communicators=tuple(
            communicator
            for axis, volume in bytes_per_link.items()
            for communicator in _communicators(axis, layout, ranks_per_node, volume)
        ),
        ranks_per_role=ranks_per_node,
    )


def _communicators(axis: Axis, layout: Parallelism, ranks_per_node: int, volume: float) -> list[Communicator]:
    """List those of one axis that leave a node; what runs along the same path of nodes is added up."""
    ring, paths = axis is not Axis.PIPELINE, dict[tuple[int, ...], float]()
    for group in layout.groups(axis):
        path = _path([rank // ranks_per_node for rank in group], ring=ring)
        if len(path) > 1:
            paths[path] = paths.get(path, 0.0) + volume
    return [Communicator(kind=axis, roles=path, bytes_per_link=carried, ring=ring) for path, carried in paths.items()]


def _path(nodes: Sequence[int], *, ring: bool) -> tuple[int, ...]:
    """Leave out the steps that stay on a node, and from a ring its return to the first."""
    path = [node for node, _ in itertools.groupby(nodes)]
    if ring and len(path) > 1 and path[0] == path[-1]:
        path.pop()
    return tuple(path)


def links(communicator: Communicator) -> list[tuple[int, int]]:
    """Return the pairs of roles that exchange data; a ring of two has one link."""
    pairs = list(zip(communicator.roles, communicator.roles[1:], strict=False))
    if communicator.ring and len(communicator.roles) > 2:
        pairs.append((communicator.roles[-1], communicator.roles[0]))
    return pairs


def _put(values: list[float], index: int, value: float, undo: Undo | None) -> None:
    if undo is not None:
        undo.append((values, index, values[index]))
    values[index] = value


class Timing:
    """A placement and its predicted time, cheap to change by one swap. ``nodes[role]`` is the role's node."""

    def __init__(self, roles: Roles, cluster: Cluster, nodes: Sequence[int]) -> None:
        self.roles, self.cluster, self.nodes = roles, cluster, list(nodes)
        self.compute, self.adapter = list(cluster.compute_slowdown), list(cluster.link_slowdown)
        lanes, stages = len(roles.microbatches), len(roles.stage_seconds)
        self._members: list[list[list[int]]] = [[[] for _ in range(stages)] for _ in range(lanes)]
        for role, cells in enumerate(roles.cells):
            for lane, stage in cells:
                self._members[lane][stage].append(role)
        self._lanes_of = [sorted({lane for lane, _ in cells}) for cells in roles.cells]
        self._slowdown_of = [0.0] * len(roles.cells)  # of each role's node
        self._slowest = [[0.0] * stages for _ in range(lanes)]  # of each cell: the worst of its roles' nodes
        self._stage_times = [[0.0] * stages for _ in range(lanes)]
        self.lane_seconds = [0.0] * lanes
        self._index_links(roles)
        self._index_kinds(roles)
        self.refresh(range(len(self.nodes)))

    def _index_links(self, roles: Roles) -> None:
        """Note which links a communicator has, and of which links and communicators a role is an end."""
        self._links = [links(communicator) for communicator in roles.communicators]
        self._link_slowdowns = [[1.0] * len(pairs) for pairs in self._links]
        self._links_of: list[list[tuple[int, int]]] = [[] for _ in roles.cells]
        for index, pairs in enumerate(self._links):
            for place, pair in enumerate(pairs):
                for role in pair:
                    self._links_of[role].append((index, place))
        self._memberships = [sorted({index for index, _ in mine}) for mine in self._links_of]

    def _index_kinds(self, roles: Roles) -> None:
        """Give each communicator its place among those of its kind, which run at the same time."""
        kinds = list(dict.fromkeys(communicator.kind for communicator in roles.communicators))
        self._kind_of = [kinds.index(communicator.kind) for communicator in roles.communicators]
        self._place_of = [0] * len(self._links)
        self.kind_seconds: list[list[float]] = [[] for _ in kinds]  # of each kind, its communicators' times
        for index, kind in enumerate(self._kind_of):
            self._place_of[index] = len(self.kind_seconds[kind])
            self.kind_seconds[kind].append(0.0)

    @property
    def seconds(self) -> float:
        """Return the predicted iteration time."""
        return max(self.lane_seconds) + sum(map(max, self.kind_seconds))

    @property
    def spread(self) -> float:
        """Add up all lanes and communicators: this orders placements whose slowest parts are the same."""
        return sum(self.lane_seconds) + sum(map(sum, self.kind_seconds))

    def traffic(self, role: int) -> list[tuple[int, float]]:
        """Return the kinds and times of the communicators that the role is a member of."""
        return [
            (self._kind_of[index], self.kind_seconds[self._kind_of[index]][self._place_of[index]])
            for index in self._memberships[role]
        ]

    def work(self, role: int) -> list[tuple[float, float, float]]:
        """Return the stage's healthy time, the cell's and the lane's, of all cells of the role."""
        return [
            (self.roles.stage_seconds[stage], self._stage_times[lane][stage], self.lane_seconds[lane])
            for lane, stage in self.roles.cells[role]
        ]

    def swap(self, first: int, second: int) -> None:
        """Exchange the nodes of two roles; swapping again undoes it."""
        self.nodes[first], self.nodes[second] = self.nodes[second], self.nodes[first]
        self.refresh((first, second))

    def tried(self, first: int, second: int) -> tuple[float, float]:
        """Return ``seconds`` and ``spread`` as they would be after the swap."""
        undo: Undo = []
        self.nodes[first], self.nodes[second] = self.nodes[second], self.nodes[first]
        self.refresh((first, second), undo)
        found = self.seconds, self.spread
        self.nodes[first], self.nodes[second] = self.nodes[second], self.nodes[first]
        for values, index, value in reversed(undo):
            values[index] = value
        return found

    def refresh(self, roles: Sequence[int] | range, undo: Undo | None = None) -> None:
        """Compute again what depends on these roles' nodes; what was there before goes to ``undo``."""
        lanes, touched = set(), set()
        # Only what the changed nodes touch is computed again: the search tries thousands of swaps.
        for role in roles:
            self._refresh_cells(role, undo)
            lanes.update(self._lanes_of[role])
            for index, place in self._links_of[role]:
                _put(self._link_slowdowns[index], place, self._slowdown(*self._links[index][place]), undo)
                touched.add(index)
        for lane in lanes:
            times = self._stage_times[lane]
            _put(self.lane_seconds, lane, sum(times) + (self.roles.microbatches[lane] - 1) * max(times), undo)
        for index in touched:
            carried = self.roles.communicators[index].bytes_per_link * self.cluster.seconds_per_byte
            seconds = carried * max(self._link_slowdowns[index])
            _put(self.kind_seconds[self._kind_of[index]], self._place_of[index], seconds, undo)

    def _refresh_cells(self, role: int, undo: Undo | None) -> None:
        before, now = self._slowdown_of[role], self.compute[self.nodes[role]]
        _put(self._slowdown_of, role, now, undo)
        for lane, stage in self.roles.cells[role]:
            slowest = self._slowest[lane][stage]
            if now >= slowest:
                slowest = now
            elif before >= slowest:  # it was the worst: find the new one
                slowest = max([self._slowdown_of[member] for member in self._members[lane][stage]])
            _put(self._slowest[lane], stage, slowest, undo)
            _put(self._stage_times[lane], stage, slowest * self.roles.stage_seconds[stage], undo)

    def _slowdown(self, first: int, second: int) -> float:
        a, b = self.nodes[first], self.nodes[second]
        pair = self.cluster.pair_slowdown.get((a, b) if a < b else (b, a), 1.0) if self.cluster.pair_slowdown else 1.0
        return max(self.adapter[a], self.adapter[b], pair)


def predict(roles: Roles, cluster: Cluster, nodes: Sequence[int]) -> float:
    """Return the predicted iteration time [s], role i on node ``nodes[i]``.

    Raises InvalidInputError, InvalidSpeedError.
    """
    check(roles, cluster, nodes)
    return Timing(roles, cluster, nodes).seconds
