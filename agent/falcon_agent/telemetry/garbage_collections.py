"""Add Python's garbage collections to the launcher's counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from falcon_core.wire.launcher.launch import LaunchCounters, RankCounters


class Collected(Protocol):
    """A source of how long a process has been stopped by its garbage collector, ns; None: not known."""

    def collected_ns(self, pid: int) -> int | None: ...


def with_collections(
    counters: LaunchCounters | None, processes: Mapping[int, int], collected: Collected, unix_ns: int
) -> LaunchCounters | None:
    """Return the counters with those of the processes, which are given by local rank."""
    if counters is None:
        return None
    known = {rank.local_rank: rank for rank in counters.ranks}
    for local_rank, pid in processes.items():
        rank = known.get(local_rank) or RankCounters(local_rank=local_rank)
        known[local_rank] = msgspec.structs.replace(rank, collected_ns=collected.collected_ns(pid))
    return msgspec.structs.replace(counters, ranks=list(known.values()), collected_unix_ns=unix_ns)
