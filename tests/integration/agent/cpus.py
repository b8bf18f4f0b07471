"""Machines for a test, as far as their CPUs go: cgroups, each with so many cores."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PERIOD_US: Final = 10_000  # a short one lets a limited machine compute evenly
LEAVE_SECONDS: Final = 10.0  # for processes that were killed to be gone
ROOT: Final = Path("/sys/fs/cgroup")
V2: Final = (ROOT / "cgroup.controllers").exists()


@contextlib.contextmanager
def machines_with(cores: Sequence[float]) -> Iterator[list[Path]]:
    """Yield a cgroup for each machine's processes: write a pid to its ``cgroup.procs``. They have to end before."""
    with contextlib.ExitStack() as made:
        top = made.enter_context(cgroup((ROOT if V2 else ROOT / "cpu") / f"falcon-machines-{os.getpid()}"))
        weigh(top, len(cores))
        folders = []
        for place, share in enumerate(cores):
            folders.append(made.enter_context(cgroup(top / f"machine-{place}")))
            limit(folders[-1], share)
        yield folders


@contextlib.contextmanager
def cgroup(path: Path) -> Iterator[Path]:
    """Make a cgroup whose CPUs can be limited."""
    if V2:
        (path.parent / "cgroup.subtree_control").write_text("+cpu")
    path.mkdir()
    try:
        yield path
    finally:
        deadline = time.monotonic() + LEAVE_SECONDS
        while (path / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        path.rmdir()


def weigh(path: Path, machines: int) -> None:
    """Let so many machines in a cgroup weigh more than the test's own processes, which no machine would have."""
    times = 16 * machines
    if V2:
        (path / "cpu.weight").write_text(str(100 * times))
        return
    (path / "cpu.shares").write_text(str(1024 * times))


def limit(path: Path, cores: float) -> None:
    """Give a cgroup so many cores."""
    quota = round(cores * PERIOD_US)
    if V2:
        (path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        return
    (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (path / "cpu.cfs_quota_us").write_text(str(quota))
