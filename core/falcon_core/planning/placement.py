"""Strategy S3: which node plays which role, so that slow nodes and congested links hurt least (FALCON §5.3).

The model is that of ``placement_model``. Under it, a congested link belongs where the least traffic runs, and
stragglers share a cell, the stages with the least work, or lanes of their own: FALCON's two rules follow, and are not
rules beside it. What is minimised is the cost of the iterations that the placement will be used for, plus the move
itself: a fixed part (pause, resume) and one for each rank that moves.

Up to ``EXACT_ROLES`` roles all permutations are tried. Beyond, local search by swaps of bad nodes, from today's
placement and from one where the bad nodes are put down one by one, the worst first; then every move that does not pay
for itself is taken back. The answer comes with a lower bound on the cost (``placement_bound``), and so with its gap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.planning.errors import InvalidInputError
from falcon_core.planning.placement_bound import lower_bound_seconds
from falcon_core.planning.placement_model import Cluster, Roles, Timing, check

EXACT_ROLES: Final = 6  # 720 permutations
_TRIALS: Final = 12_000  # swaps looked at in one local search: bounds the time, the same on every machine
_ALIKE: Final = 2  # roles tried of those that are alike, where trying all would be too many
_CLOSE: Final = 1e-12  # relative: a gain below this is rounding


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a move costs, and for how many iterations its gain is expected."""

    iterations: float
    move_seconds: float = 0.0  # pausing and resuming, whatever moves
    seconds_per_rank: float = 0.0  # dumping and exchanging one rank's state


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The node of each role, and what it is predicted to bring."""

    nodes: tuple[int, ...]
    seconds: float  # predicted iteration time
    current_seconds: float  # of today's placement
    moved_roles: tuple[int, ...]  # roles that get another node
    moved_ranks: int
    cost_seconds: float  # seconds × iterations, plus the move
    lower_bound_seconds: float  # no placement costs less

    @property
    def gap(self) -> float:
        """How far above the optimum the cost may be, as a share; 0 is proven optimal."""
        return self.cost_seconds / self.lower_bound_seconds - 1.0


def plan(roles: Roles, cluster: Cluster, current: Sequence[int] | None = None, *, cost: Cost) -> Placement:
    """The placement that costs least; staying is always among the candidates.

    ``current[role]`` is today's node; None: role i on node i. Raises InvalidInputError, InvalidSpeedError.
    """
    before = list(range(len(roles.cells))) if current is None else list(current)
    check(roles, cluster, before)
    if not (0 < cost.iterations < math.inf) or not (0 <= cost.move_seconds < math.inf):
        raise InvalidInputError("the iterations must be positive and finite, the cost of a move at least zero")
    if not (0 <= cost.seconds_per_rank < math.inf):
        raise InvalidInputError("the cost of moving a rank must be at least zero and finite")
    now = Timing(roles, cluster, before).seconds
    if len(before) <= EXACT_ROLES:
        best = _exact(roles, cluster, before, cost)
        return _placement(best, roles, cluster, before, now, cost, bound=None)
    candidates = [before]
    for start in (Timing(roles, cluster, before), _put_down(roles, cluster, before)):
        _search(start)
        _take_back(start, before, cost)
        candidates.append(list(start.nodes))
    best = min(candidates, key=lambda nodes: _cost(Timing(roles, cluster, nodes).seconds, nodes, before, roles, cost))
    moving = lower_bound_seconds(roles, cluster) * cost.iterations + cost.move_seconds
    moving += 2 * roles.ranks_per_role * cost.seconds_per_rank  # nobody moves alone
    return _placement(best, roles, cluster, before, now, cost, bound=min(now * cost.iterations, moving))


def _cost(seconds: float, nodes: Sequence[int], before: Sequence[int], roles: Roles, cost: Cost) -> float:
    moved = sum(map(int.__ne__, nodes, before))
    return (
        seconds * cost.iterations
        + (cost.move_seconds if moved else 0.0)
        + moved * roles.ranks_per_role * cost.seconds_per_rank
    )


def _placement(
    nodes: Sequence[int],
    roles: Roles,
    cluster: Cluster,
    before: Sequence[int],
    now: float,
    cost: Cost,
    bound: float | None,
) -> Placement:
    seconds = Timing(roles, cluster, nodes).seconds
    moved = tuple(role for role, node in enumerate(nodes) if node != before[role])
    total = _cost(seconds, nodes, before, roles, cost)
    return Placement(
        nodes=tuple(nodes),
        seconds=seconds,
        current_seconds=now,
        moved_roles=moved,
        moved_ranks=len(moved) * roles.ranks_per_role,
        cost_seconds=total,
        lower_bound_seconds=total if bound is None else min(bound, total),
    )


def _exact(roles: Roles, cluster: Cluster, before: list[int], cost: Cost) -> list[int]:
    """All permutations; ties to the one that moves fewer."""
    timing, best, best_cost = Timing(roles, cluster, before), before, math.inf
    everyone = range(len(before))
    for nodes in itertools.permutations(before):
        timing.nodes[:] = nodes
        timing.refresh(everyone)
        total = _cost(timing.seconds, nodes, before, roles, cost)
        if total < best_cost * (1 - _CLOSE):
            best, best_cost = list(nodes), total
    return best


def _bad_nodes(cluster: Cluster) -> list[int]:
    """Nodes worse than the best in anything, the worst first."""
    compute, adapter = min(cluster.compute_slowdown), min(cluster.link_slowdown)
    badness = [
        c / compute + a / adapter - 2 for c, a in zip(cluster.compute_slowdown, cluster.link_slowdown, strict=True)
    ]
    for pair, slowdown in cluster.pair_slowdown.items():
        for node in pair:
            badness[node] += slowdown - 1
    return sorted((node for node, much in enumerate(badness) if much > 0), key=lambda node: -badness[node])


def _put_down(roles: Roles, cluster: Cluster, before: list[int]) -> Timing:
    """Bad nodes count as good until it is their turn; each is then put where it hurts least beside those before it."""
    timing, bad = Timing(roles, cluster, before), _bad_nodes(cluster)
    for node in bad:
        timing.compute[node], timing.adapter[node] = min(cluster.compute_slowdown), min(cluster.link_slowdown)
    timing.refresh(range(len(before)))
    for node in bad:
        timing.compute[node], timing.adapter[node] = cluster.compute_slowdown[node], cluster.link_slowdown[node]
        role = timing.nodes.index(node)
        timing.refresh((role,))
        _best_swap(timing, role, _targets(timing, role, len(bad)))
    return timing


def _search(timing: Timing) -> None:
    """Swap bad nodes while the iteration, or at equal iterations the sum of all lanes and links, gets shorter."""
    bad, trials, improved = _bad_nodes(timing.cluster), 0, True
    while improved and trials < _TRIALS:
        improved = False
        for node in bad:
            role = timing.nodes.index(node)
            targets = _targets(timing, role, len(bad))
            trials += len(targets)
            improved |= _best_swap(timing, role, targets)
            if trials >= _TRIALS:
                return


def _best_swap(timing: Timing, role: int, targets: Sequence[int]) -> bool:
    """Make the best swap of ``role`` with one of the targets, if any is better than none."""
    start = timing.seconds, timing.spread
    best, best_role = start, role
    for other in targets:
        timing.swap(role, other)
        found = timing.seconds, timing.spread
        timing.swap(role, other)
        if _better(found, best):
            best, best_role = found, other
    if best_role != role:
        timing.swap(role, best_role)
    return best_role != role


def _better(one: tuple[float, float], other: tuple[float, float]) -> bool:
    if abs(one[0] - other[0]) > _CLOSE * other[0]:
        return one[0] < other[0]
    return one[1] < other[1] * (1 - _CLOSE)


def _targets(timing: Timing, role: int, bad: int) -> list[int]:
    """Roles worth trying for the node of ``role``: all of them, or a few of each kind where that is too many.

    Roles are alike if their stages, their lanes' times, their node's slowdowns and their communicators' times are.
    """
    everyone = [other for other in range(len(timing.nodes)) if other != role]
    if len(everyone) * bad <= _TRIALS // 8:
        return everyone
    alike: dict[tuple[object, ...], int] = {}
    chosen = []
    for other in everyone:
        node = timing.nodes[other]
        look = (
            tuple((stage, timing.lane_seconds[lane]) for lane, stage in timing.roles.cells[other]),
            timing.compute[node],
            timing.adapter[node],
            timing.traffic(other),
        )
        alike[look] = alike.get(look, 0) + 1
        if alike[look] <= _ALIKE:
            chosen.append(other)
    return chosen


def _take_back(timing: Timing, before: Sequence[int], cost: Cost) -> None:
    """Return nodes to their roles of today wherever the move does not pay for itself."""
    roles, improved = timing.roles, True
    while improved:
        improved = False
        for role, node in enumerate(before):
            if timing.nodes[role] == node:
                continue
            here = _cost(timing.seconds, timing.nodes, before, roles, cost)
            other = timing.nodes.index(node)
            timing.swap(role, other)
            back = _cost(timing.seconds, timing.nodes, before, roles, cost)
            if back <= here * (1 + _CLOSE):
                improved = True  # each swap puts one node more into its place: this ends
            else:
                timing.swap(role, other)
