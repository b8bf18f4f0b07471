"""The test of a machine: it runs on every CPU that the container may use, and reports what the operator reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from falcon_agent.telemetry.cpu import CpuCounters, cpu_quota, read_counters, share, usable_cpus
from falcon_core.wire.measurement.burn_in import decode_report

CPUS = len(os.sched_getaffinity(0))


def v2(tmp_path: Path, cpu_max: str, path: str = "/") -> dict[str, Path]:
    """Write the mount as a container with a cgroup namespace sees it."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cpu.max").write_text(cpu_max)
    return files(tmp_path, f"0::{path}\n")


def v1(tmp_path: Path, quota: str, path: str) -> dict[str, Path]:
    """Write the mount as a container without a cgroup namespace sees it: its own folder, under a path of the host."""
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    return files(tmp_path, f"5:cpu,cpuacct:{path}\n1:name=systemd:/x\n")


def files(tmp_path: Path, own: str) -> dict[str, Path]:
    (tmp_path / "self").write_text(own)
    return {"mount": tmp_path, "own": tmp_path / "self"}


def test_a_quota_limits_the_threads_to_the_whole_cpus_that_it_pays_for(tmp_path: Path) -> None:
    assert cpu_quota(**v2(tmp_path, "150000 100000\n")) == 1.5
    assert usable_cpus(**v2(tmp_path, "150000 100000\n")) == 1
    assert usable_cpus(**v2(tmp_path, "20000 100000\n")) == 1
    assert usable_cpus(**v2(tmp_path, f"{CPUS * 2}00000 100000\n")) == CPUS


def test_the_quota_of_cgroup_v1_is_read_in_the_containers_own_folder(tmp_path: Path) -> None:
    assert cpu_quota(**v1(tmp_path, "200000\n", "/kubepods/pod1/abc")) == 2.0


@pytest.mark.parametrize("cpu_max", ["max 100000\n", "nonsense"])
def test_no_quota_and_an_unreadable_quota_leave_all_cpus(tmp_path: Path, cpu_max: str) -> None:
    assert usable_cpus(**v2(tmp_path, cpu_max)) == CPUS
    assert cpu_quota(mount=tmp_path, own=tmp_path / "absent") is None


def test_the_command_reports_a_thread_for_each_cpu(tmp_path: Path) -> None:
    output = tmp_path / "termination-log"
    command = [sys.executable, "-m", "falcon_agent", "burn-in", "--seconds", "0.2"]
    done = subprocess.run(
        [*command, "--output", str(output), "--folder", str(tmp_path)], capture_output=True, check=True, timeout=600
    )
    report = decode_report(output.read_text())
    assert json.loads(done.stdout) == json.loads(output.read_text())
    assert report.threads == usable_cpus()
    assert report.gflops > 0
    assert report.disk_error == ""


def test_the_matrix_library_is_set_to_make_no_threads_before_it_is_loaded() -> None:
    """Check that numpy is not loaded yet: the library reads its setting once, when numpy is loaded."""
    check = "import falcon_agent.__main__, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False, timeout=600).returncode == 0


def test_what_keeps_a_test_from_its_cpus_is_read(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "pressure").mkdir(parents=True)
    (proc / "stat").write_text("cpu  100 20 30 5000 40 5 6 70 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    (proc / "pressure/cpu").write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=123\nfull avg10=0 total=9\n")
    where = v2(tmp_path, "max 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 7\n")
    assert read_counters(**where, proc=proc) == CpuCounters(
        stolen_ticks=70, busy_ticks=231, pressure_us=123, throttled_ns=7000
    )


def test_counters_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    assert read_counters(mount=tmp_path, own=tmp_path / "absent", proc=tmp_path) == CpuCounters()
    (tmp_path / "stat").write_text("cpu  100 20 30\n")  # a kernel that does not count stolen time
    assert read_counters(mount=tmp_path, own=tmp_path / "absent", proc=tmp_path).stolen_ticks is None
    assert share(None, 5, 10.0) is None
    assert share(1, 5, 0.0) is None
    assert share(1, 6, 10.0) == 0.5


def test_a_test_that_shares_its_cpu_says_how_long_it_waited(tmp_path: Path) -> None:
    """Check the waiting time beside a competitor that takes about half of the same CPU."""
    cpu = str(min(os.sched_getaffinity(0)))
    loop = subprocess.Popen(["taskset", "-c", cpu, sys.executable, "-c", "while True: pass"])
    try:
        command = ["taskset", "-c", cpu, sys.executable, "-m", "falcon_agent", "burn-in", "--seconds", "1"]
        done = subprocess.run([*command, "--folder", str(tmp_path)], capture_output=True, check=True, timeout=600)
    finally:
        loop.kill()
        loop.wait()
    report = decode_report(done.stdout.decode())
    assert report.threads == 1
    assert report.run_delay is not None
    assert report.run_delay > 0.2
