"""The measurement before the ranks start, by the real executor in the launcher's own container."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import falcon_bench
from falcon_core.wire.launcher.launch import LaunchPlan
from tests.integration.shim.launching import Launcher

AGENT = Path(falcon_bench.__file__).parents[1]
Start = Callable[..., Launcher]
SLEEPER = (sys.executable, "-c", "import time; time.sleep(99)")


def begin(start: Start, *command: str) -> Launcher:
    return start(*(command or SLEEPER), options=("--python", str(AGENT)))


def stop(launcher: Launcher, check: int, *, generation: int = 1, check_ms: int = 100) -> None:
    launcher.plan(LaunchPlan(generation=generation, phase="Stop", check=check, check_ms=check_ms))


def below(launcher: Launcher) -> list[int]:
    """Return the processes whose parent is the launcher."""
    pid = launcher.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measures(launcher: Launcher) -> bool:
    return any(b"falcon_bench" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in below(launcher))


def test_it_is_made_once_for_each_number(start: Start) -> None:
    launcher = begin(start)
    stop(launcher, 1)
    assert launcher.measured(1).error == ""
    first = launcher.printed(1)
    assert first.why == ""
    assert first.problems == []
    assert first.micros
    assert min(first.micros.values()) > 0
    written = (launcher.run_dir / "launch" / "check").stat().st_mtime_ns
    stop(launcher, 1, check_ms=101)
    stop(launcher, 0)
    launcher.wait(state="Stopped")
    assert (launcher.run_dir / "launch" / "check").stat().st_mtime_ns == written
    stop(launcher, 2)
    assert launcher.measured(2).error == ""
    assert (launcher.run_dir / "launch" / "check").stat().st_mtime_ns > written
    assert launcher.wait(state="Stopped").dead_below == 1


def test_the_ranks_start_without_waiting_for_it(start: Start) -> None:
    launcher = begin(start)
    stop(launcher, 1, check_ms=60_000)
    deadline = time.monotonic() + 20
    while not measures(launcher):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    launcher.run()
    status = launcher.wait(state="Running")
    ended = launcher.measured(1)
    assert ended.error == f"ended by signal {int(signal.SIGKILL)}"
    assert below(launcher) == [status.ranks[0].pid]


def assert_own(launcher: Launcher, number: int) -> None:
    """Check that the launcher's own benchmark has measured, and found nothing wrong."""
    assert launcher.measured(number).error == ""
    found = launcher.printed(number)
    assert (found.why, found.backend, found.devices, found.problems) == ("", "falcon-launch", "1 × CPU", [])
    assert set(found.micros) == {"copy", "fp32"}
    assert min(found.micros.values()) > 0


@pytest.mark.parametrize(
    ("options", "command"),
    [((), SLEEPER), (("--python", str(AGENT)), ("/nonexistent/python3", "train.py"))],
    ids=["nothing of Falcon's", "no interpreter"],
)
def test_without_python_the_launcher_measures_by_itself(
    start: Start, options: tuple[str, ...], command: tuple[str, ...]
) -> None:
    launcher = start(*command, options=options)
    stop(launcher, 7)
    assert_own(launcher, 7)
    assert launcher.wait(state="Stopped").generation == 1
    launcher.finish()


def test_without_python_a_command_that_is_a_shell_is_measured(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    launcher = start(
        "/bin/sh", "-c", "sleep 99", options=("--python", str(AGENT)), environment={"PATH": str(tmp_path / "bin")}
    )
    stop(launcher, 1)
    assert_own(launcher, 1)


def test_a_restart_of_the_generation_ends_it(start: Start) -> None:
    launcher = begin(start)
    stop(launcher, 1, check_ms=60_000)
    stop(launcher, 0, generation=2)
    launcher.wait(dead_below=2)
    assert below(launcher) == []


def interpreter(folder: Path, *lines: str) -> str:
    """Return a command that is named like an interpreter, and does this."""
    command = folder / "python-own"
    command.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    command.chmod(0o755)
    return str(command)


def test_the_commands_own_interpreter_measures(start: Start, tmp_path: Path) -> None:
    own = interpreter(tmp_path, f"touch {tmp_path}/used", f'exec {sys.executable} "$@"')
    launcher = begin(start, own, "train.py")
    stop(launcher, 1)
    assert launcher.measured(1).error == ""
    assert (tmp_path / "used").exists()


@pytest.mark.parametrize("line", ["exit 3", "exit 1", "echo not Python >&2; exit 127"])
def test_an_interpreter_that_is_of_no_use_is_replaced(start: Start, tmp_path: Path, line: str) -> None:
    launcher = begin(start, interpreter(tmp_path, line), "train.py")
    stop(launcher, 1)
    assert_own(launcher, 1)


@pytest.mark.parametrize(
    ("line", "error"), [("echo a word; exit 3", "exited with code 3"), ("echo a word; exit 1", ""), ("kill -9 $$", "9")]
)
def test_how_a_measurement_that_gives_nothing_has_ended(start: Start, tmp_path: Path, line: str, error: str) -> None:
    launcher = begin(start, interpreter(tmp_path, line), "train.py")
    stop(launcher, 1)
    said = launcher.measured(1).error
    assert error in said
    assert bool(said) == bool(error)
    assert "printed no result" in launcher.printed(1).why
