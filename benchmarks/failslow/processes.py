"""One process of a pod that gets less CPU than the others, and how it gets it back."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from dev.cluster import faults
from tests.e2e.jobs import SCRIPTS_DIR

PERIOD_US: Final = 20_000  # a quota is a millisecond at least
_ROOT: Final = Path("/sys/fs/cgroup/cpu")
_NAME: Final = "held"


def rank_process(node: str, pod_uid: str, script: str, rank: int) -> int:
    """Return the process of a rank. Raises LookupError where it does not run."""
    for pid in faults.processes(node, f"python3 {SCRIPTS_DIR}/{script}", pod_uid):
        with contextlib.suppress(OSError):
            if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                return pid
    raise LookupError(f"rank {rank} does not run on {node}")


class HeldProcess:
    """A process with a quota of its own, below its container's: no counter of the container shows it.

    It needs cgroup v1, as the local cluster has it.
    """

    def __init__(self, pid: int, cores: float) -> None:
        lines = (each.split(":", 2) for each in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
        [path] = [path for _, controllers, path in lines if "cpu" in controllers.split(",")]
        self._container = _ROOT / path.lstrip("/")
        self._folder = self._container / _NAME
        self._folder.mkdir(exist_ok=True)
        (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self._folder / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))
        self._pid = pid
        (self._folder / "cgroup.procs").write_text(str(pid))

    def release(self) -> None:
        """Give the process its container's CPU back, if it still lives."""
        with contextlib.suppress(OSError):
            for pid in (self._folder / "cgroup.procs").read_text().split():
                (self._container / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            self._folder.rmdir()
