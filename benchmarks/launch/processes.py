"""What a process has used, from /proc; and a launcher with its plan."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.shim.launching import Launcher


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads that exist; the threads of a launcher or an agent do not end."""
    stats = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(stat[0]) for stat in stats) / 1e9


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@contextmanager
def launched(*command: str) -> Iterator[Launcher]:
    """Yield a launcher that waits for its first plan; it is ended with everything below it."""
    with tempfile.TemporaryDirectory(prefix="falcon-bench-") as folder:
        launcher = Launcher(Path(folder) / "run", *command, options=("--grace-seconds", "0"))
        try:
            yield launcher
        finally:
            launcher.process.terminate()
            launcher.process.communicate(timeout=20)
