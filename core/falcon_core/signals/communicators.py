"""Which ranks are in a communicator: job-wide names for what each process numbers by itself.

A rank knows a communicator's size and its own place in it, and not who the other members are. Two kinds are certain:
those of all ranks, where place and rank are the same number, and those along an axis that the job declares
(``spec.parallelism``), where size and place fit a single axis. Any other stays unnamed: a wrong member would blame a
wrong rank.
"""

from __future__ import annotations

from collections import Counter
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
        if reported < len(group.members) < world_size:
            places.append(-1)
            continue
        places.append(len(communicators))
        communicators.append(group if not again else replace(group, name=f"{group.name}, {again + 1}"))
    of[rows] = np.array(places, dtype=np.int64)[code_of]
    return Found(communicators=communicators, of=of)


class _Kind(msgspec.Struct, frozen=True):
    """All communicators of one size, which every rank is in one of."""

    size: int
    communicators: list[Communicator]
    group_of: Ints  # [world]: the rank's, among ``communicators``
    place_of: Ints  # [world]: the rank's own in it


def _groups_of(seats: Seats, kinds: Sequence[_Kind]) -> tuple[list[Communicator], Ints]:
    """Return all groups, and which of them each seat fits by its size and place: [n], -1 for none."""
    groups: list[Communicator] = []
    of = np.full(len(seats.rank), -1, dtype=np.int64)
    for kind in kinds:
        rows = np.flatnonzero(seats.size == kind.size)
        rows = rows[kind.place_of[seats.rank[rows]] == seats.place[rows]]
        of[rows] = kind.group_of[seats.rank[rows]] + len(groups)
        groups += kind.communicators
    return groups, of


def _ordinals(ranks: Ints, groups: Ints) -> Ints:
    """Count the rows before each one that have its rank and group; such rows follow each other: [n]."""
    rows = np.arange(len(ranks))
    begins = np.ones(len(ranks), dtype=np.bool_)
    begins[1:] = (ranks[1:] != ranks[:-1]) | (groups[1:] != groups[:-1])
    return rows - np.maximum.accumulate(np.where(begins, rows, 0))


@lru_cache(maxsize=32)
def _kinds(world_size: int, layout: Parallelism | None) -> list[_Kind]:
    """Return the groups of all ranks, and those along an axis whose size no other axis has."""
    kinds = _axes(layout) if layout is not None and layout.world == world_size else []
    if world_size > 1:
        ranks = np.arange(world_size)
        everybody = Communicator(name="all ranks", members=tuple(range(world_size)))
        kinds.append(_Kind(world_size, [everybody], np.zeros(world_size, dtype=np.int64), ranks))
    return kinds


def _axes(layout: Parallelism) -> list[_Kind]:
    tables = {axis: layout.group_table(axis) for axis in Axis}
    if layout.expert == 1:
        del tables[Axis.EXPERT_DATA]  # the same groups as DATA
    sizes = Counter(table.shape[1] for table in tables.values())
    kinds = []
    for axis, table in tables.items():
        count, size = table.shape
        if sizes[size] > 1 or not 1 < size < layout.world:
            continue
        group_of, place_of = np.empty(layout.world, dtype=np.int64), np.empty(layout.world, dtype=np.int64)
        group_of[table] = np.arange(count)[:, np.newaxis]
        place_of[table] = np.arange(size)
        name = axis.value.lower()
        groups = [Communicator(name=f"{name} group of rank {row[0]}", members=tuple(row)) for row in table.tolist()]
        kinds.append(_Kind(size, groups, group_of, place_of))
    return kinds
