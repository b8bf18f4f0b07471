"""What processes cost, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")  # of /proc's times, a second


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def machine() -> tuple[float, float]:
    """Return the seconds in which cores were idle, and those that the hypervisor took away, since the start."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(fields[4]) + int(fields[5])) / TICKS, int(fields[8]) / TICKS


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def child(name: str, *, but: int = 0) -> int:
    """Return this process's newest child of that name, other than ``but``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        head, _, tail = stat.rpartition(")")
        if head.partition("(")[2] == name and int(tail.split()[1]) == os.getpid() and int(folder.name) != but:
            found.append(int(folder.name))
    return max(found)
