"""Find the ranks of each communicator: names in the job for numbers that each process gives by itself.

A rank knows a communicator's size and its own place in it, but not the other members. Two kinds are certain: those of
all ranks, where place and rank are the same number, and those along an axis that the job declares
(``spec.parallelism``), where size and place fit a single axis. Where several axes have the same size (tensor 8 and data
8), one rank's place may fit all of them. The ranks of a pipeline stage run the same program, so that the n-th
communicator of that size is along the same axis at all of them, and only one axis fits all their places. Any other
stays unnamed: a wrong member would blame a wrong rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.topology.parallelism import Axis, Parallelism

Ints = npt.NDArray[np.int64]
replace = msgspec.structs.replace


class Seat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A rank's place in a communicator, by its process's id."""

    rank: int
    comm: int
    size: int
    place: int


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator with its ``members`` in the order of their places."""

    name: str
    members: tuple[int, ...]


class Seats(msgspec.Struct, frozen=True, kw_only=True):
    """Many seats as columns: [n] each."""

    rank: Ints
    comm: Ints
    size: Ints
    place: Ints


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The communicators whose members are certain, and which of them each seat is in."""

    communicators: list[Communicator]
    of: Ints  # [n]: its place in ``communicators``; -1: none is certain


def name_communicators(
    seats: Sequence[Seat], world_size: int, layout: Parallelism | None = None
) -> dict[tuple[int, int], Communicator]:
    """Map (rank, communicator id) to the communicator, where its members are certain (``find_communicators``)."""
    columns = Seats(
        rank=np.array([seat.rank for seat in seats], dtype=np.int64),
        comm=np.array([seat.comm for seat in seats], dtype=np.int64),
        size=np.array([seat.size for seat in seats], dtype=np.int64),
        place=np.array([seat.place for seat in seats], dtype=np.int64),
    )
    found = find_communicators(columns, world_size, layout)
    return {
        (seat.rank, seat.comm): found.communicators[of]
        for seat, of in zip(seats, found.of.tolist(), strict=True)
        if of >= 0
    }


def find_communicators(seats: Seats, world_size: int, layout: Parallelism | None = None) -> Found:
    """Find the communicator of each seat, where its members are certain. O(n log n).

    Ids are given in the order of first use, which all members share, so that the n-th of a kind is the n-th at all of
    them. A communicator of all ranks may lack members: they have not used it yet. Along an axis every member has to
    report it.
    """
    groups, of = _groups_of(seats, _kinds(world_size, layout))
    known = np.flatnonzero(of >= 0)
    rows = known[np.lexsort((seats.comm[known], of[known], seats.rank[known]))]
    codes, code_of, counts = np.unique(
        _ordinals(seats.rank[rows], of[rows]) * max(1, len(groups)) + of[rows], return_inverse=True, return_counts=True
    )
    communicators: list[Communicator] = []
    places = []  # of each code among the communicators
    for code, reported in zip(codes.tolist(), counts.tolist(), strict=True):
        again, number = divmod(code, len(groups))
        group = groups[number]
        # Some member has not reported it, so the count of this id at the others may be of another communicator.
        if reported < len(group.members) < world_size:
            places.append(-1)
            continue
        places.append(len(communicators))
        communicators.append(group if not again else replace(group, name=f"{group.name}, {again + 1}"))
    of[rows] = np.array(places, dtype=np.int64)[code_of]
    return Found(communicators=communicators, of=of)


class _Kind(msgspec.Struct, frozen=True):
    """All communicators along an axis, or of all ranks; every rank is in one of them."""

    size: int
    communicators: list[Communicator]
    group_of: Ints  # [world]: the rank's, among ``communicators``
    place_of: Ints  # [world]: the rank's own in it


class _Kinds(msgspec.Struct, frozen=True):
    """The kinds by the size of their communicators, and the pipeline stage of each rank."""

    by_size: dict[int, list[_Kind]]
    stage_of: Ints  # [world]


def _groups_of(seats: Seats, kinds: _Kinds) -> tuple[list[Communicator], Ints]:
    """Return all groups, and which of them each seat fits by its size and place: [n], -1 for none."""
    groups: list[Communicator] = []
    of = np.full(len(seats.rank), -1, dtype=np.int64)
    for size, alike in kinds.by_size.items():
        rows = np.flatnonzero(seats.size == size)
        if len(alike) > 1:
            chosen = _axis_of(seats, rows, alike, kinds.stage_of)
        else:
            chosen = np.where(alike[0].place_of[seats.rank[rows]] == seats.place[rows], 0, -1)
        for number, kind in enumerate(alike):
            mine = rows[chosen == number]
            of[mine] = kind.group_of[seats.rank[mine]] + len(groups)
            groups += kind.communicators
    return groups, of


def _axis_of(seats: Seats, rows: Ints, kinds: Sequence[_Kind], stage_of: Ints) -> Ints:
    """Return along which of the axes of one size each of these seats is: [rows], -1 where that is not certain.

    Of a stage's ranks, those count that have used as many such communicators as any of them.
    """
    chosen = np.full(len(rows), -1, dtype=np.int64)
    order = np.lexsort((seats.comm[rows], seats.rank[rows]))
    ranks = seats.rank[rows[order]]
    numbers = _ordinals(ranks, np.zeros_like(ranks))
    used = np.bincount(ranks, minlength=len(stage_of))
    most = np.zeros(len(stage_of), dtype=np.int64)
    np.maximum.at(most, stage_of, used)
    # A rank that has used fewer of them may still lack one, and its order would mislead.
    whole = used[ranks] == most[stage_of[ranks]]
    fits = np.array([kind.place_of[ranks] == seats.place[rows[order]] for kind in kinds])
    ways = stage_of[ranks] * (1 + numbers.max(initial=0)) + numbers
    for way in np.unique(ways[whole]).tolist():
        these = whole & (ways == way)
        all_fit = np.flatnonzero(fits[:, these].all(axis=1))
        if len(all_fit) == 1:
            chosen[order[these]] = all_fit[0]
    return chosen


def _ordinals(ranks: Ints, groups: Ints) -> Ints:
    """Count the rows before each one that have its rank and group; such rows follow each other: [n]."""
    rows = np.arange(len(ranks))
    begins = np.ones(len(ranks), dtype=np.bool_)
    begins[1:] = (ranks[1:] != ranks[:-1]) | (groups[1:] != groups[:-1])
    return rows - np.maximum.accumulate(np.where(begins, rows, 0))


@lru_cache(maxsize=32)
def _kinds(world_size: int, layout: Parallelism | None) -> _Kinds:
    """Return the groups of all ranks, and those along the axes."""
    found = _Kinds({}, np.zeros(world_size, dtype=np.int64))
    if layout is not None and layout.world == world_size:
        stages = layout.group_table(Axis.PIPELINE)
        found.stage_of[stages] = np.arange(stages.shape[1])
        for kind in _axes(layout):
            found.by_size.setdefault(kind.size, []).append(kind)
    if world_size > 1:
        ranks = np.arange(world_size)
        everybody = Communicator(name="all ranks", members=tuple(range(world_size)))
        found.by_size[world_size] = [_Kind(world_size, [everybody], np.zeros(world_size, dtype=np.int64), ranks)]
    return found


def _axes(layout: Parallelism) -> list[_Kind]:
    kinds: list[_Kind] = []
    tables: list[Ints] = []
    for axis in Axis:
        table = layout.group_table(axis)
        count, size = table.shape
        # Axes of size one have no communicator, and equal groups cannot be distinguished.
        if not 1 < size < layout.world or any(np.array_equal(table, known) for known in tables):
            continue
        tables.append(table)
        group_of, place_of = np.empty(layout.world, dtype=np.int64), np.empty(layout.world, dtype=np.int64)
        group_of[table] = np.arange(count)[:, np.newaxis]
        place_of[table] = np.arange(size)
        name = axis.value.lower()
        groups = [Communicator(name=f"{name} group of rank {row[0]}", members=tuple(row)) for row in table.tolist()]
        kinds.append(_Kind(size, groups, group_of, place_of))
    return kinds
