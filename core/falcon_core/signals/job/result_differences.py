"""Find the ranks whose result of an all-reduce differs from that of the other members of its communicator.

An all-reduce gives every member the same bytes, so the digests of the same calls are equal. Where they are not, and
more than half of the members agree, the others are named; without such a majority it is not known who is right.

The digests are what training processes say of themselves. A wrong name is worse than none, so two ranks are compared
only where it is certain that they mean the same call:

- A communicator is one of all ranks, or along an axis that the job declares (``communicators``).
- It is the n-th of its kind at each member. Members that use two of a kind from several threads may meet them in
  another order. So results of its calls must be equal at all members in the same reports; or it has all ranks, and no
  member has another one like it.
- All members report the same calls, of the same processes, and as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from falcon_core.signals.job.communicators import Seat, name_communicators
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.verification import CommResults, RankResults


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """All-reduces of one communicator whose results are not the same on all members."""

    comm: str  # job-wide name
    members: tuple[int, ...]
    ranks: tuple[int, ...] = ()  # that differ from a majority of the members; empty: there is no such majority
    first: int  # number of the first call that is compared
    calls: int  # at least one of these differs
    turns: int  # of the sampling among which they are; 1: it is a single call


class _Calls(NamedTuple):
    """Which calls a digest is of, in words that all members share."""

    every: int
    width: int
    first: int
    calls: int


class _Key(NamedTuple):
    """The same communicator at all of its members; their processes are the ``life``-th of their ranks."""

    name: str
    nth: int  # of those of all ranks; 0: the name has the number
    life: int


class _Group(msgspec.Struct):
    """What members of a communicator report: digests by rank, and whether a member has no other one like it."""

    members: tuple[int, ...]
    values: dict[_Calls, dict[int, int]] = {}
    sole: set[int] = set()


def find_differences(
    reports: Sequence[RankResults], world_size: int, layout: Parallelism | None = None
) -> list[Difference]:
    """Return where results differ, the smallest number of calls first; empty where all that is compared is equal."""
    found: list[Difference] = []
    for key, group in _groups(reports, world_size, layout).items():
        members = set(group.members)
        whole = {calls: values for calls, values in group.values.items() if values.keys() == members}
        unequal = {calls: values for calls, values in whole.items() if len(set(values.values())) > 1}
        certain = len(members) == world_size and group.sole == members
        if len(unequal) < len(whole) or certain:
            found += [_difference(key.name, group.members, *each) for each in unequal.items()]
    return sorted(found, key=lambda each: (each.turns, each.comm, each.first))


def _groups(reports: Sequence[RankResults], world_size: int, layout: Parallelism | None) -> dict[_Key, _Group]:
    found: dict[_Key, _Group] = {}
    for key, members, rank, every, comm in _located(reports, world_size, layout):
        group = found.get(key)
        if group is None:
            group = found[key] = _Group(members)
        if comm.sole:
            group.sole.add(rank)
        for digest in comm.digests:
            calls = _Calls(every, digest.width, digest.first, digest.calls)
            group.values.setdefault(calls, {})[rank] = digest.value
    return found


def _located(
    reports: Sequence[RankResults], world_size: int, layout: Parallelism | None
) -> Iterator[tuple[_Key, tuple[int, ...], int, int, CommResults]]:
    """Yield each rank's communicators, where their members are certain, with these, the rank and its sampling."""
    known = [each for each in reports if 0 <= each.rank < world_size]
    seats = [
        Seat(rank=each.rank, comm=comm.comm, size=comm.size, place=comm.place)
        for each in known
        for comm in each.comms
        if 1 < comm.size < world_size
    ]
    named = name_communicators(seats, world_size, layout)
    everyone = tuple(range(world_size))
    for each in known:
        for comm in each.comms:
            if comm.size == world_size > 1 and comm.place == each.rank:
                yield _Key("all ranks", comm.nth, each.life), everyone, each.rank, each.every, comm
            elif (communicator := named.get((each.rank, comm.comm))) is not None:
                yield _Key(communicator.name, 0, each.life), communicator.members, each.rank, each.every, comm


def _difference(name: str, members: tuple[int, ...], calls: _Calls, values: dict[int, int]) -> Difference:
    value, agreeing = Counter(values.values()).most_common(1)[0]
    differing = tuple(sorted(rank for rank, other in values.items() if other != value))
    return Difference(
        comm=name,
        members=members,
        ranks=differing if 2 * agreeing > len(values) else (),
        first=calls.first,
        calls=calls.calls,
        turns=calls.width,
    )
