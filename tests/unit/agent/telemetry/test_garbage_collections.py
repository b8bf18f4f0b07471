"""Python's garbage collections: counted in the process itself, read by its agent."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.telemetry.garbage_collections import with_collections
from falcon_core.wire.launcher.launch import STACKS_DIR, CgroupCounters, LaunchCounters, RankCounters
from falcon_core.wire.launcher.notes import NOTES_SUFFIX

AGENT = Path(__file__).parents[4] / "agent"
CYCLES = "import gc, os, time\nkept = []\nfor _ in range(300_000):\n    kept.append([kept])\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / STACKS_DIR).mkdir(parents=True)
    return RunDir(tmp_path)


def ran(run_dir: RunDir, code: str) -> int:
    """Run a program as a rank's interpreter does; return its process id."""
    path = ":".join(str(AGENT / part) for part in ("falcon_site", "."))
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "FALCON_STACKS": str(run_dir.path / STACKS_DIR)}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdin=subprocess.DEVNULL) as process:
        assert process.wait(60) == 0
    return process.pid


def test_the_time_of_long_collections_is_counted(run_dir: RunDir) -> None:
    measured = "begun = time.perf_counter_ns()\nfor _ in range(5):\n    gc.collect()\n"
    code = CYCLES + "gc.disable()\n" + measured + "print(time.perf_counter_ns() - begun, flush=True)\n"
    collected = run_dir.collected_ns(ran(run_dir, code))
    assert collected is not None
    assert collected > 10_000_000


UNCHANGED = """
import gc, os
gc.disable()
def notes():
    with open(os.path.join(os.environ["FALCON_STACKS"], "%d.notes" % process), "rb") as file:
        return file.read()
process = os.getpid()
before = notes()
"""


def test_a_program_that_collects_nothing_says_so(run_dir: RunDir) -> None:
    ran(run_dir, UNCHANGED + "kept = [[] for _ in range(100_000)]\nassert notes() == before\n")


def test_a_process_that_was_forked_off_changes_nothing(run_dir: RunDir) -> None:
    child = (CYCLES + "for _ in range(5):\n    gc.collect()\nos._exit(0)").replace("\n", "\n    ")
    ran(run_dir, f"{UNCHANGED}\nif os.fork() == 0:\n    {child}\nos.wait()\nassert notes() == before\n")


@pytest.mark.parametrize(
    "content",
    [b"", bytes(23), bytes(25), struct.pack("=3d", -1, 0, 0), struct.pack("=3d", float("nan"), 0, 0), b"\xff" * 24],
)
def test_what_is_no_total_is_not_known(run_dir: RunDir, content: bytes) -> None:
    (run_dir.path / STACKS_DIR / f"7{NOTES_SUFFIX}").write_bytes(content)
    assert run_dir.collected_ns(7) is None


def test_the_totals_join_the_counters() -> None:
    class Known:
        def collected_ns(self, pid: int) -> int | None:
            return {11: 5, 12: 6}.get(pid)

    counters = LaunchCounters(
        unix_ns=1, cgroup=CgroupCounters(), ranks=[RankCounters(local_rank=0, cpu_ns=9), RankCounters(local_rank=2)]
    )
    found = with_collections(counters, {0: 11, 1: 12, 2: 13}, Known(), 77)
    assert found is not None
    assert found.collected_unix_ns == 77
    assert found.ranks == [
        RankCounters(local_rank=0, cpu_ns=9, collected_ns=5),
        RankCounters(local_rank=2),
        RankCounters(local_rank=1, collected_ns=6),
    ]
    assert with_collections(None, {0: 11}, Known(), 77) is None
