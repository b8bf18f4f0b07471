"""Find which node takes which role, so that slow nodes and congested links delay the job least (strategy S3).

See FALCON §5.3. The model is that of ``placement_model``. Under it, a congested link belongs where the least traffic
runs, and stragglers share a cell, the stages with the least work, or lanes of their own: FALCON's two rules follow, and
need no code of their own. The plan minimises the cost of the iterations that the placement will be used for, plus the
move itself: a fixed part (pause, resume) and one for each rank that moves.

Up to ``EXACT_ROLES`` roles all permutations are tried. Beyond, local search by swaps of bad nodes from these starts:
today's placement, one where slow nodes are consolidated, one where bad nodes are put down one by one, the worst first,
and one where the heaviest communicators stay on one side of a congested border (``placement_sides``), if there is such
a border; then every move that does not pay for itself is taken back. The answer comes with a lower bound on the cost
(``placement_bound``), and so with its gap.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.planning.errors import InvalidInputError
from falcon_core.planning.placement.placement_bound import lower_bound_seconds
from falcon_core.planning.placement.placement_model import Cluster, Roles, Timing, check
from falcon_core.planning.placement.placement_sides import by_sides

EXACT_ROLES: Final = 6  # 720 permutations
NOISE: Final = 0.03  # slowdowns and times within this share of each other are the same to the search
_TRIALS: Final = 3_000  # swaps looked at in one local search: bounds the time, the same on every machine
_KINDS: Final = 64  # kinds of roles tried for a bad node, at least
_STALE: Final = 8  # bad nodes that the choice of roles to try serves for
_MOST_BAD: Final = 64  # bad nodes that are swapped about one by one, beyond consolidation
_CLOSE: Final = 1e-12  # relative: a gain below this is rounding


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The price of a move, and the number of iterations for which its gain is expected."""

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
        """Return the greatest possible excess of the cost over the optimum, as a share; 0 is proven optimal."""
        return self.cost_seconds / self.lower_bound_seconds - 1.0


def plan(roles: Roles, cluster: Cluster, current: Sequence[int] | None = None, *, cost: Cost) -> Placement:
    """Return the placement that costs least; staying is always among the candidates.

    ``current[role]`` is today's node; None: role i on node i. Raises InvalidInputError, InvalidSpeedError.
    """
    before = list(range(len(roles.cells))) if current is None else list(map(int, current))
    check(roles, cluster, before)
    if not (0 < cost.iterations < math.inf) or not (0 <= cost.move_seconds < math.inf):
        raise InvalidInputError("the iterations must be positive and finite, the cost of a move at least zero")
    if not (0 <= cost.seconds_per_rank < math.inf):
        raise InvalidInputError("the cost of moving a rank must be at least zero and finite")
    today = Timing(roles, cluster, before)
    # Few roles: all placements can be tried.
    if len(before) <= EXACT_ROLES:
        return _placement(Timing(roles, cluster, _exact(roles, cluster, before, cost)), today, cost, bound=None)
    # A search finds only a local optimum, so it begins at several different placements.
    starts = [Timing(roles, cluster, before), _consolidated(roles, cluster, before), _put_down(roles, cluster, before)]
    apart = by_sides(roles, cluster, before)
    starts += [] if apart is None else [Timing(roles, cluster, apart)]
    for start in starts:
        _search(start)
        # The search ignores what moves cost; undo those that are not worth it.
        _take_back(start, before, cost)
    best = min((today, *starts), key=lambda timing: _cost(timing.seconds, timing.nodes, before, roles, cost))
    # No placement can be cheaper than this. The distance to it says how good the result is.
    moving = lower_bound_seconds(roles, cluster) * cost.iterations + cost.move_seconds
    moving += 2 * roles.ranks_per_role * cost.seconds_per_rank  # a move involves two roles
    return _placement(best, today, cost, bound=min(today.seconds * cost.iterations, moving))


def _cost(seconds: float, nodes: Sequence[int], before: Sequence[int], roles: Roles, cost: Cost) -> float:
    moved = sum(map(int.__ne__, nodes, before))
    return (
        seconds * cost.iterations
        + (cost.move_seconds if moved else 0.0)
        + moved * roles.ranks_per_role * cost.seconds_per_rank
    )


def _placement(chosen: Timing, today: Timing, cost: Cost, bound: float | None) -> Placement:
    moved = tuple(role for role, node in enumerate(chosen.nodes) if node != today.nodes[role])
    total = _cost(chosen.seconds, chosen.nodes, today.nodes, chosen.roles, cost)
    return Placement(
        nodes=tuple(chosen.nodes),
        seconds=chosen.seconds,
        current_seconds=today.seconds,
        moved_roles=moved,
        moved_ranks=len(moved) * chosen.roles.ranks_per_role,
        cost_seconds=total,
        lower_bound_seconds=total if bound is None else min(bound, total),
    )


def _exact(roles: Roles, cluster: Cluster, before: list[int], cost: Cost) -> list[int]:
    """Try all permutations; among equally good permutations, choose that which moves the fewest nodes."""
    timing, best, best_cost, fewest = Timing(roles, cluster, before), before, math.inf, 0
    everyone = range(len(before))
    for nodes in itertools.permutations(before):
        timing.nodes[:] = nodes
        timing.refresh(everyone)
        total = _cost(timing.seconds, nodes, before, roles, cost)
        moved = sum(map(int.__ne__, nodes, before))
        if total < best_cost * (1 - _CLOSE) or (total <= best_cost * (1 + _CLOSE) and moved < fewest):
            best, best_cost, fewest = list(nodes), total, moved
    return best


def _bad_nodes(cluster: Cluster) -> list[int]:
    """List the nodes that are worse than the usual node by more than noise, in anything.

    The worst come first, ``_MOST_BAD`` at most. The others stay where they are, because exchanging healthy nodes would
    chase noise.
    """
    compute, adapter = statistics.median(cluster.compute_slowdown), statistics.median(cluster.link_slowdown)
    badness = [
        max(0.0, c / compute - 1 - NOISE) + max(0.0, a / adapter - 1 - NOISE)
        for c, a in zip(cluster.compute_slowdown, cluster.link_slowdown, strict=True)
    ]
    for pair, slowdown in cluster.pair_slowdown.items():
        for node in pair:
            badness[node] += max(0.0, slowdown / adapter - 1 - NOISE)
    worst_first = sorted((node for node, much in enumerate(badness) if much > 0), key=lambda node: -badness[node])
    return worst_first[:_MOST_BAD]


def _consolidated(roles: Roles, cluster: Cluster, before: list[int]) -> Timing:
    """Put all slow nodes in the cells of the stages with the least work, cell by cell (FALCON §5.3), moving few."""
    usual = statistics.median(cluster.compute_slowdown) * (1 + NOISE)
    slow = {node for node, slowdown in enumerate(cluster.compute_slowdown) if slowdown > usual}
    by_work = sorted(
        range(len(before)),
        key=lambda role: sorted((roles.stage_seconds[at], at, lane) for lane, at in roles.cells[role]),
    )
    nodes, filled = list(before), by_work[: len(slow)]
    free = [role for role in filled if before[role] not in slow]
    chosen = set(filled)
    away = [role for role, node in enumerate(before) if node in slow and role not in chosen]
    for role, partner in zip(free, away, strict=True):
        nodes[role], nodes[partner] = nodes[partner], nodes[role]
    return Timing(roles, cluster, nodes)


def _put_down(roles: Roles, cluster: Cluster, before: list[int]) -> Timing:
    """Place the bad nodes one by one, each where it hurts least next to the nodes placed earlier.

    A bad node counts as a usual node until its turn comes.
    """
    timing, bad = Timing(roles, cluster, before), _bad_nodes(cluster)
    compute, adapter = statistics.median(cluster.compute_slowdown), statistics.median(cluster.link_slowdown)
    for node in bad:
        timing.compute[node], timing.adapter[node] = compute, adapter
    timing.refresh(range(len(before)))
    targets = _Targets(timing, len(bad))
    for node in bad:
        timing.compute[node], timing.adapter[node] = cluster.compute_slowdown[node], cluster.link_slowdown[node]
        role = timing.nodes.index(node)
        timing.refresh((role,))
        _best_swap(timing, role, targets.of(node))
    return timing


def _search(timing: Timing) -> None:
    """Swap bad nodes while the iteration, or at equal iterations the sum of all lanes and links, gets shorter."""
    bad, trials, improved = _bad_nodes(timing.cluster), 0, True
    targets = _Targets(timing, len(bad))
    while improved and trials < _TRIALS:
        improved = False
        for node in bad:
            chosen = targets.of(node)
            trials += len(chosen)
            improved |= _best_swap(timing, timing.nodes.index(node), chosen)
            if trials >= _TRIALS:
                return


def _best_swap(timing: Timing, role: int, targets: Sequence[int]) -> bool:
    """Make the best swap of ``role`` with one of the targets, if a swap is better than none."""
    start = timing.seconds, timing.spread
    best, best_role = start, role
    for partner in targets:
        if partner == role:
            continue
        found = timing.tried(role, partner)
        if _better(found, best):
            best, best_role = found, partner
    if best_role != role:
        timing.swap(role, best_role)
    return best_role != role


def _better(found: tuple[float, float], best: tuple[float, float]) -> bool:
    if abs(found[0] - best[0]) > _CLOSE * best[0]:
        return found[0] < best[0]
    return found[1] < best[1] * (1 - _CLOSE)


class _Targets:
    """Roles worth trying for a bad node: all of them, or one of each kind where that is too many.

    For a slow node roles are alike if their stages, the times of their cells and lanes, and their present node's speed
    are; for a congested one if their communicators' times and their present node's adapter are; all up to noise. What
    is alike changes with every swap, slowly: a choice serves for a few nodes.
    """

    def __init__(self, timing: Timing, bad: int) -> None:
        self._timing, self._most = timing, max(_KINDS, _TRIALS // max(1, 2 * bad))
        self._compute, self._adapter = statistics.median(timing.compute), statistics.median(timing.adapter)
        self._chosen: dict[bool, list[int]] = {}
        self._uses = 0

    def of(self, node: int) -> Sequence[int]:
        """Choose the roles for this node, wherever it is."""
        timing = self._timing
        if len(timing.nodes) <= self._most:
            return range(len(timing.nodes))
        if self._uses % _STALE == 0:
            self._chosen = {}
        self._uses += 1
        slow = timing.compute[node] > self._compute * (1 + NOISE)
        congested = not slow or timing.adapter[node] > self._adapter * (1 + NOISE)
        return [role for aspect, wanted in ((True, slow), (False, congested)) if wanted for role in self._alike(aspect)]

    def _alike(self, compute: bool) -> list[int]:
        if compute not in self._chosen:
            timing, alike = self._timing, dict[object, int]()
            for role in range(len(timing.nodes) - 1, -1, -1):  # the lowest of each kind stays
                node = timing.nodes[role]
                if compute:
                    work = timing.work(role)
                    alike[tuple([tuple(map(_coarse, cell)) for cell in work]), _coarse(timing.compute[node])] = role
                else:
                    traffic = tuple([(kind, _coarse(seconds)) for kind, seconds in timing.traffic(role)])
                    alike[traffic, _coarse(timing.adapter[node])] = role
            kinds = sorted(alike.values())
            self._chosen[compute] = kinds[:: -(-len(kinds) // self._most)]
        return self._chosen[compute]


def _coarse(value: float) -> int:
    """Return the value's logarithmic step, of the size of noise."""
    return round(math.log(value) / NOISE) if value > 0 else -(1 << 62)


def _take_back(timing: Timing, before: Sequence[int], cost: Cost) -> None:
    """Return nodes to their roles of today wherever the move does not pay for itself."""
    roles, improved = timing.roles, True
    while improved:
        improved = False
        for role, node in enumerate(before):
            if timing.nodes[role] == node:
                continue
            here = _cost(timing.seconds, timing.nodes, before, roles, cost)
            partner = timing.nodes.index(node)
            timing.swap(role, partner)
            back = _cost(timing.seconds, timing.nodes, before, roles, cost)
            if back <= here * (1 + _CLOSE):
                improved = True  # each swap puts one node more into its place: this ends
            else:
                timing.swap(role, partner)
