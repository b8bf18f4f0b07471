"""Assign whole communicators to the sides of a congested border between groups of nodes (racks, switches).

Every pair across the border is slow. So no single swap of two nodes makes anything faster, and a search by swaps ends
where it began. Nodes are on one side if links that are not congested join them. The communicators are dealt out to the
sides, the heaviest first. Each goes to the side where it has most of its nodes already, as long as there is room. The
rest crosses the border, and that is the lightest traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from falcon_core.planning.placement.placement_model import Cluster, Roles


def by_sides(roles: Roles, cluster: Cluster, before: Sequence[int]) -> list[int] | None:
    """Return the node of each role, where as much traffic as is easily found stays on one side; None without sides.

    ``before``: the node of each role today.
    """
    side_of = sides(len(before), list(cluster.pair_slowdown))
    if len(set(side_of)) < 2:
        return None
    wanted = _dealt(roles, side_of, before)
    free: dict[int, list[int]] = {side: [] for side in set(side_of)}
    for role, node in enumerate(before):  # a role that need not move stays
        if wanted[role] != side_of[node]:
            free[side_of[node]].append(node)
    return [node if wanted[role] == side_of[node] else free[wanted[role]].pop(0) for role, node in enumerate(before)]


def sides(count: int, congested: Sequence[tuple[int, int]]) -> list[int]:
    """Number the sides: [nodes]. Two nodes are on one side if a path of pairs that are not congested joins them."""
    slow: list[set[int]] = [set() for _ in range(count)]
    for first, second in congested:
        slow[first].add(second)
        slow[second].add(first)
    side_of, unseen, side = [-1] * count, set(range(count)), 0
    while unseen:
        reached = [unseen.pop()]
        while reached:
            node = reached.pop()
            side_of[node] = side
            # Sets instead of a graph: nearly all pairs are well, and only the congested ones are listed.
            near = unseen - slow[node]
            unseen -= near
            reached += near
        side += 1
    return side_of


def _dealt(roles: Roles, side_of: Sequence[int], before: Sequence[int]) -> list[int]:
    """Return the side of each role: as many on each as it has nodes."""
    deal = _Deal([side_of[node] for node in before])
    for communicator in sorted(roles.communicators, key=lambda each: -each.bytes_per_link):
        deal.together(communicator.roles)
    return deal.rest()


class _Deal:
    """Roles that get their sides one after the other. ``today``: the side of each role's node."""

    def __init__(self, today: Sequence[int]) -> None:
        self._today = today
        self._room = Counter(today)
        self._wanted: dict[int, int] = {}

    def together(self, roles: Sequence[int]) -> None:
        """Put those that have no side yet on one side, if any has the room: where most of the others are."""
        undecided = [role for role in dict.fromkeys(roles) if role not in self._wanted]
        fitting = [side for side, room in self._room.items() if room >= len(undecided)]
        if not undecided or not fitting:
            return
        decided = Counter(self._wanted[role] for role in roles if role in self._wanted)
        today = Counter(self._today[role] for role in undecided)
        # Ties go to where most of them are today, since each move costs; then to the first side, so that the plan is
        # the same each time.
        side = max(fitting, key=lambda side: (decided[side], today[side], -side))
        for role in undecided:
            self._put(role, side)

    def rest(self) -> list[int]:
        """Let all others stay where there is room, and return the side of each role."""
        for role, side in enumerate(self._today):
            if role not in self._wanted:
                self._put(role, side if self._room[side] else max(self._room, key=lambda at: (self._room[at], -at)))
        return [self._wanted[role] for role in range(len(self._today))]

    def _put(self, role: int, side: int) -> None:
        self._wanted[role] = side
        self._room[side] -= 1
