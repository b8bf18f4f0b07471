"""Watch what the container and its ranks use of resources that have a limit, and forecast what runs out.

The launcher reads the counters, in a folder where training processes may write anything: numbers and names are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from falcon_core.anomalies.forecast import Forecast, Watch
from falcon_core.text import clean, clip
from falcon_core.wire.launcher.launch import CgroupCounters, LaunchCounters
from falcon_core.wire.reporting.anomalies import MAX_METRIC, Anomaly, Kind

MOST_VOLUMES: Final = 8
MOST_RANKS: Final = 64  # of a pod, whose open files are watched
MOST_WATCHES: Final = 96  # of a pod: names in the launcher's file may change with each reading
MOST: Final = 1 << 60  # of bytes: a limit beyond it says that there is none
UNTRACKED_SECONDS: Final = 600.0  # after which a program that makes no calls that Falcon sees counts as training
_MOST_SECONDS: Final = 1 << 32


class _Reading(NamedTuple):
    kind: Kind
    local_rank: int  # -1: of the container
    metric: str
    used: int
    limit: int | None


class Resources:
    """The resources of one pod. Times are seconds on one monotonic clock."""

    def __init__(self) -> None:
        self._watches: dict[tuple[Kind, int, str], Watch] = {}
        self._generation = 0
        self._began = 0.0
        self._read_unix_ns = 0

    def feed(self, counters: LaunchCounters | None, generation: int, *, trains: bool, now: float) -> bool:
        """Take the launcher's newest counters. Return whether a resource began to run out, or does so no longer.

        Args:
            generation: whose processes run; each begins with a history of its own.
            trains: its ranks do iterations. What a program takes while it loads is no growth.
        """
        if generation != self._generation:
            self._generation, self._began, self._watches = generation, now, {}
        # The same reading counted twice would look like a resource that has stopped growing.
        if counters is None or counters.unix_ns == self._read_unix_ns:
            return False
        self._read_unix_ns = counters.unix_ns
        if not generation or not (trains or self._watches or now - self._began >= UNTRACKED_SECONDS):
            return False
        before = self._running_out()
        for reading in _readings(counters):
            key = (reading.kind, reading.local_rank, reading.metric)
            # Names may change with each reading: ever new ones must not take the agent's memory.
            if key not in self._watches and len(self._watches) >= MOST_WATCHES:
                continue
            watch = self._watches.setdefault(key, Watch())
            watch.add(now, float(reading.used), None if reading.limit is None else float(reading.limit))
        return self._running_out() != before

    def anomalies(self, generation: int, ranks: Mapping[int, int], now: float) -> list[Anomaly]:
        """Return what runs out in a generation, the earliest first. ``ranks``: their numbers, by local rank."""
        if generation != self._generation:
            return []
        found = [
            (forecast.at, _anomaly(kind, ranks.get(local_rank, -1), metric, forecast, now))
            for (kind, local_rank, metric), watch in self._watches.items()
            if (forecast := watch.forecast) is not None
        ]
        return [anomaly for _, anomaly in sorted(found, key=lambda each: each[0])]

    def _running_out(self) -> set[tuple[Kind, int, str]]:
        return {key for key, watch in self._watches.items() if watch.forecast is not None}


def held_bytes(cgroup: CgroupCounters) -> int | None:
    """Return a container's memory [bytes] that the kernel cannot give back; None where it is not known.

    That leaves out what the kernel gives back before it kills. The kubelet leaves out only a part of that.
    """
    if cgroup.memory_bytes is None:
        return None
    return max(0, cgroup.memory_bytes - (cgroup.memory_cache_bytes or 0))


def _anomaly(kind: Kind, rank: int, metric: str, forecast: Forecast, now: float) -> Anomaly:
    def seconds(value: float) -> int:
        return round(min(max(0.0, value), _MOST_SECONDS))

    return Anomaly(
        kind=kind,
        rank=rank,
        metric=metric,
        lasted=seconds(now - forecast.since),
        used=round(max(0.0, forecast.used)),
        limit=round(forecast.limit),
        left=seconds(forecast.at - now),
        earliest=seconds(forecast.earliest - now),
        latest=seconds(forecast.latest - now),
    )


def _readings(counters: LaunchCounters) -> Iterator[_Reading]:
    cgroup = counters.cgroup
    if (held := held_bytes(cgroup)) is not None:
        yield _reading("Memory", -1, "", held, cgroup.memory_limit_bytes)
    if cgroup.pids is not None:
        yield _reading("Processes", -1, "", cgroup.pids, cgroup.pids_limit)
    for rank in counters.ranks[:MOST_RANKS]:
        if rank.open_files is not None:
            yield _reading("OpenFiles", rank.local_rank, "", rank.open_files, rank.open_files_limit)
    for volume in counters.volumes[:MOST_VOLUMES]:
        path = clip(clean(volume.path), MAX_METRIC)
        yield _reading("Disk", -1, path, volume.bytes, volume.limit_bytes)
        yield _reading("Inodes", -1, path, volume.files, volume.limit_files)


def _reading(kind: Kind, local_rank: int, metric: str, used: int, limit: int | None) -> _Reading:
    known = limit is not None and 0 < limit < MOST
    return _Reading(kind, local_rank, metric, min(max(0, used), MOST), limit if known else None)
