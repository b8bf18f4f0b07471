"""What a room costs over a while: CPU and memory by process, requests, bytes, and how old reports are when used."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from benchmarks.scale.parts import idle
from benchmarks.scale.processes import cpu_seconds, machine, resident_mib
from benchmarks.scale.room import Room

MEASURED: Final = ("gateway", "etcd", "operator")  # all other processes are counted apart
_BUCKET: Final = re.compile(r'^falcon_report_age_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A while of a room."""

    what: str
    slower: float  # than real agents the agents were played
    agents: int
    seconds: float
    cpu: dict[str, float]  # cores, by process
    operator_mib: float
    gateway_mib: float
    requests_per_second: float
    written_per_second: float  # bytes of keys and values, in the bus's etcd
    database_mib: float
    ages: dict[float, float]  # upper bound in seconds → share of the reports that were used within it
    lost: float  # agents that the gateway took for lost
    silent: int  # of them, at most: agents that their player kept silent for so long, since it stood still itself
    thinned: float
    idle: float  # cores that nobody used
    stolen: float  # cores that the machine did not get from its host

    @property
    def cores(self) -> float:
        """Return what gateway, etcd and operator use together, in cores; more than that where agents are slower."""
        return self.slower * sum(self.cpu[name] for name in MEASURED)

    @property
    def wrongly_lost(self) -> float:
        """Return how many agents were taken for lost although they had spoken in time."""
        return max(0.0, self.lost - self.silent)

    def share_within(self, seconds: float) -> float:
        """Return the share of reports that a decision had used so long after the gateway had received them."""
        return self.ages.get(seconds, 0.0)

    def row(self) -> str:
        """Return the figures as a line of the table of ``HEAD``."""
        cpu = " | ".join(f"{60 * self.cpu[name]:.1f}" for name in self.cpu)
        what = f"{self.what}, {self.slower:g} × slower" if self.slower > 1 else self.what
        return (
            f"| {what} | {self.agents} | {cpu} | **{self.cores:.2f}** | {self.operator_mib:.0f} |"
            f" {self.gateway_mib:.0f} | {self.requests_per_second:.1f} | {self.written_per_second / 1024:.1f} |"
            f" {self.database_mib:.0f} | {self.percentile(0.99)} | {self.lost:.0f} | {self.silent} |"
            f" {self.idle:.2f} | {self.stolen:.2f} |"
        )

    def percentile(self, share: float) -> str:
        """Return within how many seconds that share of the reports was used, as far as the histogram tells."""
        within = [bound for bound, reached in sorted(self.ages.items()) if reached >= share]
        return f"≤ {within[0]:g}" if within else ""


_COLUMNS: Final = (
    *("CPU seconds a minute", "agents", "gateway", "etcd", "operator", "agents' player", "API server", "its etcd"),
    *("cores of the first three", "operator, MiB", "gateway, MiB", "API requests a second", "KiB/s into etcd"),
    *("database, MiB", "99 % of reports used in, s", "agents taken for lost", "their player stood still"),
    *("cores idle", "cores stolen"),
)
HEAD: Final = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


class _Reading(msgspec.Struct, frozen=True):
    at: float
    cpu: dict[str, float]
    requests: float
    written: float
    ages: dict[float, float]
    lost: float
    silent: int
    thinned: float
    idle: float
    stolen: float


async def _read(room: Room) -> _Reading:
    page = await asyncio.to_thread(room.operator.get, "/metrics")
    return _Reading(
        time.monotonic(),
        {name: cpu_seconds(pid) for name, pid in room.pids.items()},
        await asyncio.to_thread(idle.answered, room.api),
        room.operator.metric("falcon_bus_written_bytes_total") or 0.0,
        {float(bound): float(count) for bound, count in _BUCKET.findall(page)},
        await room.gateway.counter("agents_lost_total"),
        room.agents.silent,
        await room.gateway.counter("thinned_total"),
        *machine(),
    )


async def measure(room: Room, what: str, seconds: float) -> Cost:
    """Measure for a while. The requests hold those that the API server makes of itself, about one a second."""
    before = await _read(room)
    await asyncio.sleep(seconds)
    room.check()
    after = await _read(room)
    passed = after.at - before.at
    sizes = await asyncio.to_thread(room.operator.get, "/metrics")
    [database] = re.findall(r"^falcon_bus_database_bytes\{.*\} (\S+)$", sizes, re.MULTILINE)
    pids = room.pids
    return Cost(
        what=what,
        slower=room.slower,
        agents=int(room.operator.metric("falcon_agents") or 0),
        seconds=passed,
        cpu={name: (used - before.cpu[name]) / passed for name, used in after.cpu.items()},
        operator_mib=resident_mib(pids["operator"]),
        gateway_mib=resident_mib(pids["gateway"]),
        requests_per_second=(after.requests - before.requests) / passed,
        written_per_second=(after.written - before.written) / passed,
        database_mib=float(database) / 2**20,
        ages=_shares(before.ages, after.ages),
        lost=after.lost - before.lost,
        silent=after.silent - before.silent,
        thinned=after.thinned - before.thinned,
        idle=(after.idle - before.idle) / passed,
        stolen=(after.stolen - before.stolen) / passed,
    )


def _shares(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    counts = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    every = counts.get(float("inf"), 0.0)
    return {bound: count / every for bound, count in counts.items()} if every else {}
