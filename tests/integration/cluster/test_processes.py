"""The record of started processes: what survives a killed command, and what is never mistaken for ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import process
from dev.cluster.process import ClusterError, Processes

ROOT = Path(__file__).resolve().parents[3]
SLEEP = ["sleep", "300"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the cluster's folders, elsewhere; whatever a test starts ends with it."""
    monkeypatch.setattr(process, "LOGS", tmp_path / "cluster" / "logs")
    monkeypatch.setattr(process, "CLUSTER", tmp_path / "cluster")
    monkeypatch.setattr(process, "BIN", tmp_path / "bin")
    monkeypatch.setattr(process, "CACHE", tmp_path)
    yield tmp_path
    processes = Processes(tmp_path / "state.json")
    processes.stop(processes.names, signal.SIGKILL)


def pid_of(folder: Path, name: str) -> int:
    return int(json.loads((folder / "state.json").read_text())[name][0])


def test_another_command_finds_and_ends_what_one_started(folder: Path) -> None:
    Processes(folder / "state.json").start("a", SLEEP)
    later = Processes(folder / "state.json")
    assert later.alive("a")
    later.stop(["a"])
    assert not later.alive("a")
    assert Processes(folder / "state.json").names == []


def test_a_process_that_took_over_the_pid_is_not_ours(folder: Path) -> None:
    Processes(folder / "state.json").start("a", SLEEP)
    pid = pid_of(folder, "a")
    (folder / "other.json").write_text(json.dumps({"a": [pid, 1]}))  # the same pid, born at another time
    stranger = Processes(folder / "other.json")
    assert not stranger.alive("a")
    stranger.stop(["a"])
    assert Processes(folder / "state.json").alive("a")


def test_what_ignores_sigterm_is_killed(folder: Path) -> None:
    processes = Processes(folder / "state.json")
    processes.start("a", ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    processes.stop(["a"], grace_seconds=0.2)
    assert not processes.alive("a")


@pytest.fixture
def etcd(folder: Path) -> Path:
    """Make a binary of the project's cache that waits until its input ends."""
    program = folder / "bin" / "etcd"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("argument", "ended"), [("cluster/etcd", True), ("elsewhere/etcd", False)])
def test_a_process_that_no_record_knows_is_ended_if_it_serves_our_cluster(
    folder: Path, etcd: Path, argument: str, ended: bool
) -> None:
    child = subprocess.Popen([etcd, f"--data-dir={folder}/{argument}"], stdin=subprocess.PIPE)
    try:
        wait_for_program(child.pid, etcd)
        process.end_strays()
        assert (child.poll() is not None) == ended
    finally:
        child.kill()
        child.communicate()


def wait_for_program(pid: int, program: Path) -> None:
    deadline = time.monotonic() + 10
    while str(program) not in Path(f"/proc/{pid}/cmdline").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_component_that_ended_is_reported_at_once_with_its_last_words(folder: Path) -> None:
    processes = Processes(folder / "state.json")
    processes.start("kube-etcd", ["sh", "-c", "echo address already in use; exit 1"])
    with pytest.raises(ClusterError, match=r"(?s)API: kube-etcd ended.*address already in use"):
        processes.wait("API", lambda: "no answer", 60, ["kube-etcd"])


def test_a_timeout_says_what_was_missing(folder: Path) -> None:
    processes = Processes(folder / "state.json")
    processes.start("kubelet", SLEEP)
    with pytest.raises(ClusterError, match="node-b is not Ready"):
        processes.wait("nodes", lambda: "node-b is not Ready", 0.1, ["kubelet"])


def test_a_second_command_waits_for_the_first(folder: Path) -> None:
    code = "from dev.cluster.process import exclusive\nwith exclusive(): print('mine', flush=True)"
    environment = {**os.environ, "FALCON_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    with process.exclusive():
        second = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert f"waiting for another cluster command (pid {os.getpid()})" in second.stdout.readline()
    assert second.communicate(timeout=30)[0] == "mine\n"


def test_a_command_that_never_ends_is_an_error_that_names_it() -> None:
    with pytest.raises(ClusterError, match="sleep 300: not finished within"):
        process.run(*SLEEP, timeout_seconds=0.1)


def test_a_missing_program_names_the_remedy() -> None:
    with pytest.raises(ClusterError, match="make cluster-up"):
        process.run("/nonexistent/kubectl")
