"""The CPUs that this process may use: those of its CPU set, as far as its cgroup's quota pays for them."""

from __future__ import annotations

import os
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def usable_cpus(mount: Path = MOUNT, own: Path = OWN) -> int:
    """Whole CPUs, at least 1. A quota of 1.5 pays for one: on a second, a thread would be stopped half the time."""
    cpus = len(os.sched_getaffinity(0))
    quota = cpu_quota(mount, own)
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def cpu_quota(mount: Path = MOUNT, own: Path = OWN) -> float | None:
    """CPUs that the container's own quota allows (cgroup v1 and v2); None without a quota, or where it is unknown."""
    try:
        if (mount / "cgroup.controllers").exists():
            limit, period = (cgroup_folder("", mount, own) / "cpu.max").read_text().split()
        else:
            folder = cgroup_folder("cpu", mount, own)
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if limit in ("max", "-1") else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def cgroup_folder(controller: str, mount: Path = MOUNT, own: Path = OWN) -> Path:
    """Our cgroup's folder for a controller, "" for cgroup v2.

    In a container the mount shows the container's own folder; elsewhere the path in /proc/self/cgroup leads on from it.
    Raises OSError where /proc/self/cgroup cannot be read.
    """
    top = mount / controller if controller else mount
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == controller or (controller and controller in controllers.split(",")):
            folder = top / path.lstrip("/")
            return folder if path != "/" and (folder / "cgroup.procs").exists() else top
    return top
