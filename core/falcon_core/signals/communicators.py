"""Which ranks are in a communicator: job-wide names for what each process numbers by itself.

A rank knows a communicator's size and its own place in it, and not who the other members are. Two kinds are certain:
those of all ranks, where place and rank are the same number, and those along an axis that the job declares
(``spec.parallelism``), where size and place fit a single axis. Any other stays unnamed: a wrong member would blame a
wrong rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from falcon_core.topology.parallelism import Axis, Parallelism


class Seat(msgspec.Struct, frozen=True, kw_only=True, order=True, gc=False):
    """A rank's place in a communicator, by its process's id."""

    rank: int
    comm: int
    size: int
    place: int


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """``members`` in the order of their places."""

    name: str
    members: tuple[int, ...]


def name_communicators(
    seats: Sequence[Seat], world_size: int, layout: Parallelism | None = None
) -> dict[tuple[int, int], Communicator]:
    """Map (rank, communicator id) to the communicator, where its members are certain. O(seats).

    Ids are given in the order of first use, which all members share, so that the n-th of a kind is the n-th at all of
    them. A communicator of all ranks may lack members: they have not used it yet. Along an axis every member has to
    report it.
    """
    groups = dict(_groups_by_size(layout)) if layout is not None and layout.world == world_size else {}
    if world_size > 1:
        everybody = Communicator(name="all ranks", members=tuple(range(world_size)))
        groups[world_size] = [everybody] * world_size
    found = _seated(seats, groups)
    groups_by_id = dict(zip(map(id, found.values()), found.values(), strict=True))  # one object a communicator
    reported = Counter(map(id, found.values()))  # by how many ranks
    partial = {key for key, group in groups_by_id.items() if reported[key] < len(group.members) < world_size}
    return {seat: group for seat, group in found.items() if id(group) not in partial} if partial else found


def _seated(seats: Sequence[Seat], groups: Mapping[int, Sequence[Communicator]]) -> dict[tuple[int, int], Communicator]:
    """Find the group of each seat, given each rank's group by size; the n-th of a kind at a rank is numbered n."""
    again: dict[tuple[str, int], Communicator] = {}
    found: dict[tuple[int, int], Communicator] = {}
    rank, used = -1, dict[str, int]()  # of this rank's communicators, by kind
    for seat in sorted(seats):
        if seat.rank != rank:
            rank, used = seat.rank, {}
        group = groups[seat.size][rank] if seat.size in groups else None
        if group is None or not 0 <= seat.place < seat.size or group.members[seat.place] != rank:
            continue
        count = used[group.name] = used.get(group.name, 0) + 1
        if count > 1:
            numbered = Communicator(name=f"{group.name}, {count}", members=group.members)
            group = again.setdefault((group.name, count), numbered)
        found[rank, seat.comm] = group
    return found


@lru_cache(maxsize=32)
def _groups_by_size(layout: Parallelism) -> dict[int, list[Communicator]]:
    """Return each rank's group by the group's size, for the sizes that a single axis has; neither one rank nor all."""
    axes: dict[int, list[Axis]] = defaultdict(list)
    tables = {axis: layout.group_table(axis) for axis in Axis}
    if layout.expert == 1:
        del tables[Axis.EXPERT_DATA]  # the same groups as DATA
    for axis, table in tables.items():
        axes[table.shape[1]].append(axis)
    groups: dict[int, list[Communicator]] = {}
    for size, alike in axes.items():
        if len(alike) > 1 or not 1 < size < layout.world:
            continue
        by_rank = dict[int, Communicator]()
        for row in tables[alike[0]].tolist():
            group = Communicator(name=f"{alike[0].value.lower()} group of rank {row[0]}", members=tuple(row))
            by_rank |= dict.fromkeys(row, group)
        groups[size] = [by_rank[rank] for rank in range(layout.world)]
    return groups
