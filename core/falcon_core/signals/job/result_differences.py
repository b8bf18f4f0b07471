"""Find the ranks whose result of an all-reduce differs from that of the other ranks.

An all-reduce gives every member the same bytes, so the digests of the same calls are equal. Where they are not, and
more than half of the members agree, the others are named; without such a majority it is not known who is right.

The digests are what training processes say of themselves. A wrong name is worse than none, so two ranks are compared
only where it is certain that they mean the same calls:

- The communicator has all ranks of the job, and no rank's process has ever had another one of all ranks. A rank whose
  process has had one reports nothing (``falcon_agent.rings.verification``), and then no rank is compared.
- All ranks report the same calls, of processes that began equally often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from falcon_core.wire.reporting.verification import RankResults


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """All-reduces of all ranks whose results are not the same everywhere."""

    ranks: tuple[int, ...] = ()  # that differ from a majority; empty: there is no such majority
    first: int  # number of the first call that is compared
    calls: int  # at least one of these differs
    turns: int  # of the sampling among which they are; 1: it is a single call


class _Calls(NamedTuple):
    """Which calls a digest is of, in terms that all ranks share, in the ``life``-th process of each rank."""

    life: int
    every: int
    width: int
    first: int
    calls: int
    numbers: int


def find_differences(reports: Sequence[RankResults], world_size: int) -> list[Difference]:
    """Return where results differ, the smallest number of calls first; empty where all that is compared is equal."""
    found: dict[_Calls, dict[int, int]] = {}
    for each in reports:
        if each.size != world_size or not 0 <= each.rank < world_size:
            continue
        for digest in each.digests:
            calls = _Calls(each.life, each.every, digest.width, digest.first, digest.calls, digest.numbers)
            found.setdefault(calls, {})[each.rank] = digest.value
    differences = [
        _difference(calls, values)
        for calls, values in found.items()
        if len(values) == world_size and len(set(values.values())) > 1
    ]
    return sorted(differences, key=lambda each: (each.turns, each.first))


def _difference(calls: _Calls, values: dict[int, int]) -> Difference:
    value, agreeing = Counter(values.values()).most_common(1)[0]
    differing = tuple(sorted(rank for rank, other in values.items() if other != value))
    return Difference(
        ranks=differing if 2 * agreeing > len(values) else (),
        first=calls.first,
        calls=calls.calls,
        turns=calls.width,
    )
