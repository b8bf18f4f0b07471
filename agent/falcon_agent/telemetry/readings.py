"""Turn two readings of the launcher's counters into the quantities of which series are kept.

Training processes may write the launcher's folder: counters may be any numbers, and volumes have any names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from falcon_agent.telemetry.network import Traffic
from falcon_agent.telemetry.resources import MOST, MOST_RANKS, MOST_VOLUMES, held_bytes
from falcon_core.wire.launcher.launch import LaunchCounters, RankCounters, VolumeCounters
from falcon_core.wire.series import CONTAINER, metric_name


class Reading(NamedTuple):
    """One quantity now; ``local_rank`` is CONTAINER for the pod's own."""

    local_rank: int
    metric: str
    value: float


class CounterReadings:
    """The quantities of one pod. The names are those that ``falcon_anomaly`` knows."""

    def __init__(self) -> None:
        self._before: LaunchCounters | None = None
        self._traffic: Traffic | None = None

    def forget(self) -> None:
        """Forget the counters: the next ones have nothing before them."""
        self._before = self._traffic = None

    def feed(self, counters: LaunchCounters | None, traffic: Traffic | None) -> list[Reading]:
        """Take the newest counters, and the bytes of the pod's network. Return nothing where they are not new."""
        before, bytes_before = self._before, self._traffic
        if counters is None or (before is not None and counters.unix_ns <= before.unix_ns):
            return []
        self._before, self._traffic = counters, traffic
        found = [*_levels(counters), *_of_volumes(counters.volumes)]
        if before is not None:
            seconds = (counters.unix_ns - before.unix_ns) / 1e9
            found += _rates(before, counters, seconds)
            found += _of_ranks(before, counters)
            if traffic is not None and bytes_before is not None:
                found += _rate(CONTAINER, "network_in", bytes_before.received, traffic.received, seconds)
                found += _rate(CONTAINER, "network_out", bytes_before.sent, traffic.sent, seconds)
        return found


def _levels(counters: LaunchCounters) -> Iterator[Reading]:
    cgroup = counters.cgroup
    if (held := held_bytes(cgroup)) is not None:
        yield Reading(CONTAINER, "memory", float(held))
    if cgroup.memory_limit_bytes is not None and 0 < cgroup.memory_limit_bytes < MOST:
        yield Reading(CONTAINER, "memory_limit", float(cgroup.memory_limit_bytes))
    if cgroup.pids is not None:
        yield Reading(CONTAINER, "threads", float(cgroup.pids))
    for rank in counters.ranks[:MOST_RANKS]:
        if rank.open_files is not None:
            yield Reading(rank.local_rank, "open_files", float(rank.open_files))


def _of_volumes(volumes: list[VolumeCounters]) -> Iterator[Reading]:
    for volume in volumes[:MOST_VOLUMES]:
        for kind, used, limit in (
            ("disk", volume.bytes, volume.limit_bytes),
            ("inodes", volume.files, volume.limit_files),
        ):
            if 0 < limit < MOST and used >= 0:
                yield Reading(CONTAINER, metric_name(f"{kind}:{volume.path}"), min(1.0, used / limit))


def _rates(before: LaunchCounters, after: LaunchCounters, seconds: float) -> Iterator[Reading]:
    old, new = before.cgroup, after.cgroup
    yield from _rate(CONTAINER, "cpu", old.cpu_usage_ns, new.cpu_usage_ns, 1e9 * seconds)
    yield from _rate(CONTAINER, "cpu_throttled", old.throttled_ns, new.throttled_ns, 1e9 * seconds)
    yield from _rate(CONTAINER, "cpu_pressure", old.cpu_pressure_some_us, new.cpu_pressure_some_us, 1e6 * seconds)
    if before.network is not None and after.network is not None:
        yield from _rate(CONTAINER, "retransmits", before.network.again, after.network.again, seconds)
        yield from _rate(CONTAINER, "nic_errors", before.network.faulty, after.network.faulty, seconds)
        yield from _rate(CONTAINER, "nic_congestion", before.network.congested, after.network.congested, seconds)


def _of_ranks(before: LaunchCounters, after: LaunchCounters) -> Iterator[Reading]:
    """Yield the ranks' own rates; the launcher reads them more seldom than the cgroup's."""
    began, ended = (each.ranks_unix_ns or each.unix_ns for each in (before, after))
    collected = [each.collected_unix_ns or each.unix_ns for each in (before, after)]
    known: dict[int, RankCounters] = {rank.local_rank: rank for rank in before.ranks[:MOST_RANKS]}
    for rank in after.ranks[:MOST_RANKS]:
        old = known.get(rank.local_rank)
        if old is None:
            continue
        if ended > began:
            yield from _rate(rank.local_rank, "cpu", old.cpu_ns, rank.cpu_ns, ended - began)
            yield from _rate(rank.local_rank, "run_delay", old.run_delay_ns, rank.run_delay_ns, ended - began)
        if collected[1] > collected[0]:
            passed = collected[1] - collected[0]
            yield from _rate(rank.local_rank, "collecting", old.collected_ns, rank.collected_ns, passed)


def _rate(local_rank: int, metric: str, before: int | None, after: int | None, whole: float) -> Iterator[Reading]:
    """Yield a counter's growth ÷ ``whole``; nothing where it is not known, or fell since its owner started again."""
    if before is not None and after is not None and after >= before and whole > 0:
        yield Reading(local_rank, metric, (after - before) / whole)
