"""What the launcher counts in a real cgroup, and what the agent forecasts from it: a leak, and no page cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.telemetry.resources import Resources
from falcon_core.wire.reporting.anomalies import Anomaly
from tests.integration.shim.launching import SHIM, Launcher
from tests.integration.shim.memory import memory_cgroup, oom_kills

MIB = 1 << 20
LIMIT = 192 * MIB
PATIENCE_SECONDS = 170.0
# Both take a second's share each second: memory that is kept, or a file that is written and stays in the page cache.
LEAKS = "import time\nkept = []\nwhile True:\n    kept.append(b'x' * (3 << 19))\n    time.sleep(1)\n"
CACHES = (
    "import sys, time\nfile = open(sys.argv[1], 'wb')\n"
    "while True:\n    file.write(b'x' * (8 << 20))\n    file.flush()\n    time.sleep(1)\n"
)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup(LIMIT) as folder:
        yield folder


@pytest.fixture
def start(tmp_path: Path, cgroup: Path) -> Iterator[Callable[..., Launcher]]:
    """Start a launcher in the cgroup, with one rank that runs a program."""
    if not (SHIM / "falcon-launch").is_file():
        pytest.fail("falcon-launch is not built: run the tests through make test-integration")
    started: list[Launcher] = []

    def begin(program: str, *words: str) -> Launcher:
        enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh")
        started.append(Launcher(tmp_path / "run", sys.executable, "-c", program, *words, before=enter))
        started[-1].run()
        return started[-1]

    yield begin
    for launcher in started:
        launcher.finish()


def watched(launcher: Launcher, until: Callable[[], bool]) -> list[Anomaly]:
    """Read the launcher's counters as an agent does, until something runs out or ``until`` is true."""
    run_dir, resources = RunDir(launcher.run_dir), Resources()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and not until():
        now = time.monotonic()
        if resources.feed(run_dir.counters(), 1, trains=True, now=now):
            return resources.anomalies(1, {0: 0}, now)
        time.sleep(0.5)
    return []


@pytest.mark.slow  # e2e/failures/test_anomalies forecasts a leak on the cluster
def test_a_process_that_leaks_is_forecast_before_the_kernel_kills_it(
    start: Callable[..., Launcher], cgroup: Path
) -> None:
    found = watched(start(LEAKS), lambda: oom_kills(cgroup) > 0)
    assert oom_kills(cgroup) == 0
    (leak,) = [each for each in found if each.kind == "Memory"]
    assert leak.limit == LIMIT
    assert 0 < leak.used < LIMIT
    assert leak.earliest <= leak.left <= leak.latest


def test_a_file_that_fills_the_page_cache_up_to_the_limit_is_no_leak(
    start: Callable[..., Launcher], cgroup: Path, tmp_path: Path
) -> None:
    launcher = start(CACHES, str(tmp_path / "dataset"))

    def is_full() -> bool:
        counters = RunDir(launcher.run_dir).counters()
        used = counters.cgroup.memory_bytes if counters is not None else None
        full.append(used is not None and used > 0.9 * LIMIT)
        return full.count(True) > 120  # a minute of looks

    full: list[bool] = []
    assert [each for each in watched(launcher, is_full) if each.kind == "Memory"] == []
    assert any(full), "the page cache never came near the limit"
    assert oom_kills(cgroup) == 0


def test_open_files_and_volumes_of_a_rank_are_counted(start: Callable[..., Launcher]) -> None:
    launcher = start("import time\nheld = [open('/dev/null') for _ in range(50)]\ntime.sleep(600)\n")
    run_dir = RunDir(launcher.run_dir)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        counters = run_dir.counters()
        if counters is not None and counters.volumes and any((rank.open_files or 0) >= 50 for rank in counters.ranks):
            break
        time.sleep(0.5)
    else:
        pytest.fail(f"not all was counted: {counters}")
    (rank,) = counters.ranks
    assert 50 <= (rank.open_files or 0) < (rank.open_files_limit or 0)
    assert counters.cgroup.memory_limit_bytes == LIMIT
    assert all(0 <= volume.bytes <= volume.limit_bytes > 0 for volume in counters.volumes)
