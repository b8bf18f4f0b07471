"""A memory cgroup for a test's processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Yield a memory cgroup with that limit: write a pid to its ``cgroup.procs``. Skips a test that may not make it."""
    v1 = Path("/sys/fs/cgroup/memory")
    root = v1 if v1.is_dir() else Path("/sys/fs/cgroup")
    folder = root / f"falcon-test-{os.getpid()}"
    try:
        folder.mkdir()
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if root == v1 else ("memory.max",):
            if (folder / name).exists():
                (folder / name).write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no right to make a memory cgroup: {error}")
    try:
        yield folder
    finally:
        deadline = time.monotonic() + 10
        while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        folder.rmdir()


def oom_kills(folder: Path) -> int:
    """Return how many processes the kernel has killed in a memory cgroup."""
    counters = folder / "memory.oom_control"
    lines = (counters if counters.exists() else folder / "memory.events").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
