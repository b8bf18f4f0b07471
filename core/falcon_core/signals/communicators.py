"""Which ranks are in a communicator: job-wide names for what each process numbers by itself.

A rank knows a communicator's size and its own place in it, and not who the others are. Two kinds can be told for
certain: those of all ranks, where place and rank are the same number, and those along an axis that the job declares
(``spec.parallelism``), where size and place fit one axis alone. Anything else stays unnamed: a wrong member would blame
a wrong rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from falcon_core.topology.parallelism import Axis, Parallelism


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place in one communicator, by its process's id."""

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
    """(rank, communicator id) → the communicator, for those that can be told.

    Ids are given in the order of first use, which all members share, so that the n-th of a kind is the n-th at all of
    them. One of all ranks may lack members: they have not used it yet. One along an axis has to be told by every
    member.
    """
    if layout is not None and layout.world != world_size:
        layout = None
    rows: _Rows = _rows(layout) if layout is not None else {}
    everybody = tuple(range(world_size))
    found: dict[tuple[int, int], Communicator] = {}
    told: dict[str, dict[int, int]] = defaultdict(dict)  # name → rank → its id
    groups: dict[str, tuple[int, ...]] = {}
    numbered: dict[tuple[int, str], int] = defaultdict(int)
    for seat in sorted(seats, key=lambda seat: (seat.rank, seat.comm)):
        kind, members = _kind(seat, everybody, rows)
        if not kind:
            continue
        numbered[seat.rank, kind] += 1
        name = kind if numbered[seat.rank, kind] == 1 else f"{kind}, {numbered[seat.rank, kind]}"
        told[name][seat.rank] = seat.comm
        groups[name] = members
    for name, ids in told.items():
        members = groups[name]
        if len(members) == world_size or ids.keys() == set(members):
            communicator = Communicator(name=name, members=members)
            found |= dict.fromkeys(ids.items(), communicator)
    return found


_Rows = dict[tuple[Axis, int], tuple[int, ...]]


def _rows(layout: Parallelism) -> _Rows:
    """(axis, rank) → the rank's group along the axis, for groups that are neither one rank nor all of them."""
    rows: _Rows = {}
    for axis in Axis:
        if axis is Axis.EXPERT_DATA and layout.expert == 1:
            continue  # the same groups as DATA
        for row in layout.group_table(axis).tolist():
            if 1 < len(row) < layout.world:
                rows |= {(axis, rank): tuple(row) for rank in row}
    return rows


def _kind(seat: Seat, everybody: tuple[int, ...], rows: _Rows) -> tuple[str, tuple[int, ...]]:
    """The kind's name and its members; "" where it cannot be told."""
    if seat.size == len(everybody) > 1:
        return ("all ranks", everybody) if seat.place == seat.rank else ("", ())
    alike = [(axis, row) for axis in Axis if (row := rows.get((axis, seat.rank))) is not None and len(row) == seat.size]
    if len(alike) != 1:
        return "", ()
    axis, row = alike[0]
    if not 0 <= seat.place < len(row) or row[seat.place] != seat.rank:
        return "", ()
    return f"{axis.value.lower()} group of rank {row[0]}", row
