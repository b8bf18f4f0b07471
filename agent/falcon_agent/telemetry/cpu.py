"""Read which CPUs this process may use, and what keeps it from using them. What cannot be read is None, not 0."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

MOUNT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
OWN = PROC / "self/cgroup"
_STEAL, _BUSY = 7, (0, 1, 2, 5, 6, 7)  # columns of /proc/stat: steal; user, nice, system, irq, softirq, steal


class CpuCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the machine, or the container, started."""

    stolen_ticks: int | None = None  # of all CPUs, given to other machines by the hypervisor
    busy_ticks: int | None = None  # of all CPUs, the stolen ones included
    pressure_us: int | None = None  # in which a task of the machine waited for a CPU
    throttled_ns: int | None = None  # in which the container's own quota stopped it, of all CPUs


def read_counters(mount: Path = MOUNT, own: Path = OWN, proc: Path = PROC) -> CpuCounters:
    """Read all counters now."""
    ticks = _machine_ticks(proc / "stat")
    return CpuCounters(
        stolen_ticks=ticks[_STEAL] if ticks else None,
        busy_ticks=sum(ticks[column] for column in _BUSY) if ticks else None,
        pressure_us=_pressure_us(proc / "pressure/cpu"),
        throttled_ns=_throttled_ns(mount, own),
    )


def run_delay_ns(proc: Path = PROC) -> int | None:
    """Return how long the calling thread has waited for a CPU since it started, in ns; None if unknown."""
    try:
        _, delay, _ = (proc / f"self/task/{threading.get_native_id()}/schedstat").read_text().split()
        return int(delay)
    except (OSError, ValueError):
        return None


def share(before: int | None, after: int | None, whole: float | None) -> float | None:
    """Return which share of ``whole`` passed between two readings, 0 … 1; None where something is unknown."""
    if before is None or after is None or not whole:
        return None
    return min(1.0, max(0.0, (after - before) / whole))


def usable_cpus(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Return the number of whole CPUs that this process may use, at least 1.

    A quota of 1.5 allows one: on a second CPU, a thread would be stopped half the time.
    """
    cpus = len(os.sched_getaffinity(0))
    quota = cpu_quota(mount, own)
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def cpu_quota(mount: Path = MOUNT, own: Path = OWN) -> float | None:
    """Return the CPUs that the container's own quota allows (cgroup v1 and v2); None if there is none, or unknown."""
    is_v2 = (mount / "cgroup.controllers").exists()
    try:
        folder = cgroup_folder("" if is_v2 else "cpu", mount, own)
    except (OSError, ValueError):
        return None
    return quota_of(folder, is_v2=is_v2)


def quota_of(folder: Path, *, is_v2: bool) -> float | None:
    """Return the CPUs that a cgroup's own quota allows; None if there is none, or unknown."""
    try:
        if is_v2:
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if limit in ("max", "-1") else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def cgroup_folder(controller: str, mount: Path = MOUNT, own: Path = OWN) -> Path:
    """Return the folder of the agent's own cgroup for a controller; controller "" is cgroup v2.

    In a container, the mount point shows the container's own folder. Elsewhere, the path in /proc/self/cgroup leads
    from the mount point to the folder. Raises OSError when /proc/self/cgroup cannot be read.
    """
    top = mount / controller if controller else mount
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            folder = top / path.lstrip("/")
            return folder if path != "/" and (folder / "cgroup.procs").exists() else top
    return top


def _machine_ticks(path: Path) -> list[int]:
    """Return the figures of the line of all CPUs together; empty where the line cannot be read."""
    try:
        name, *columns = path.read_text().split("\n", 1)[0].split()
        ticks = [int(column) for column in columns]
    except (OSError, ValueError):
        return []
    return ticks if name == "cpu" and len(ticks) > _STEAL else []


def _pressure_us(path: Path) -> int | None:
    """Return the total of the line ``some avg10=… avg60=… avg300=… total=…``."""
    try:
        some = path.read_text().split("\n", 1)[0]
        kind, _, total = some.partition("total=")
        return int(total) if kind.startswith("some") else None
    except (OSError, ValueError):
        return None


def _throttled_ns(mount: Path, own: Path) -> int | None:
    try:
        if (mount / "cgroup.controllers").exists():
            name, scale, folder = "throttled_usec", 1000, cgroup_folder("", mount, own)
        else:
            name, scale, folder = "throttled_time", 1, cgroup_folder("cpu", mount, own)
        fields = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
        return int(fields[name]) * scale
    except (OSError, ValueError, KeyError):
        return None
