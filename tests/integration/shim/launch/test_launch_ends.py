"""How ranks end, and what falcon-launch says of it: signals, exit codes, cores, the kernel's out-of-memory killer."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from falcon_core.wire.launcher.launch import LaunchRank
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher, wait_for
from tests.integration.shim.memory import memory_cgroup

MEMORY_LIMIT_BYTES = 64 << 20
WAIT = 'touch "$FALCON_RING_DIR/ready-$RANK"; while :; do sleep 0.05; done'
EAT = "held = b'x' * (300 << 20)"  # beyond the limit


def _ended(launcher: Launcher, generation: int = 1) -> LaunchRank:
    return launcher.wait(state="Exited", generation=generation).ranks[0]


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """Yield a memory cgroup with a low limit: write a pid to its ``cgroup.procs``."""
    with memory_cgroup(MEMORY_LIMIT_BYTES) as folder:
        yield folder


def test_an_oom_kill_is_told_from_another_sigkill(small_memory: Path, start: Start) -> None:
    program = f"""
import os, signal, subprocess, sys
match os.environ["FALCON_GENERATION"]:
    case "1": {EAT}
    case "2": os.kill(os.getpid(), signal.SIGKILL)
    case "3": sys.exit(3)
    case "4":
        child = subprocess.run([sys.executable, "-c", {EAT!r}])
        sys.exit(1 if child.returncode == -signal.SIGKILL else 0)
"""
    launcher = start(sys.executable, "-c", program)
    launcher.wait(state="Idle")
    (small_memory / "cgroup.procs").write_text(str(launcher.process.pid))
    seen = {}
    kills = {}
    for generation in (1, 2, 3, 4):
        launcher.run(generation=generation)
        rank = _ended(launcher, generation)
        seen[generation] = (rank.signal, rank.exit_code, rank.oom_killed)
        status = launcher.wait(generation=generation)
        kills[generation] = (status.oom_kills_before, status.oom_kills)
    assert seen == {
        1: (signal.SIGKILL, None, True),
        2: (signal.SIGKILL, None, False),
        3: (None, 3, False),
        4: (None, 1, True),  # a rank without its data loader
    }
    assert kills == {1: (0, 1), 2: (1, 0), 3: (1, 0), 4: (1, 1)}


@pytest.mark.parametrize(("limit", "dumped"), [("unlimited", True), ("0", False)])
def test_a_core_dump_is_reported(start: Start, tmp_path: Path, limit: str, dumped: bool) -> None:
    if dumped and Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("cores go to a program here")
    launcher = start("sh", "-c", f"cd {tmp_path} && ulimit -c {limit} && kill -ABRT $$")
    launcher.run()
    rank = _ended(launcher)
    assert (rank.signal, rank.exit_code, rank.core_dumped) == (signal.SIGABRT, None, dumped)


def test_the_program_under_a_shell_has_its_time_to_save(start: Start, tmp_path: Path) -> None:
    # The shell dies of SIGTERM at once; the program below it, and one in a session of its own, do their last work.
    program = f"""
import os, signal, sys, time
folder = {str(tmp_path)!r}
name = sys.argv[1]
def save(*_):
    open(f"{{folder}}/signals-{{name}}", "a").write("x")
    time.sleep(0.7)
    open(f"{{folder}}/saved-{{name}}", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open(f"{{folder}}/ready-{{name}}", "w").close()
time.sleep(1000)
"""
    (tmp_path / "program.py").write_text(program)
    python = f"{sys.executable} {tmp_path}/program.py"
    launcher = start("sh", "-c", f"setsid {python} session & {python} group; echo never")
    launcher.run()
    for name in ("session", "group"):
        wait_for(tmp_path / f"ready-{name}")
    launcher.process.terminate()
    out, _ = launcher.process.communicate(timeout=60)
    assert launcher.process.returncode == 128 + signal.SIGTERM
    assert out == b""
    for name in ("session", "group"):
        assert (tmp_path / f"saved-{name}").exists(), name
        assert (tmp_path / f"signals-{name}").read_text() == "x", "one signal, not two"


@pytest.mark.parametrize(
    ("handler", "code"),
    [("exit 3", 3), ("exit 0", 128 + signal.SIGTERM), ("kill -KILL $$", 128 + signal.SIGKILL)],
)
def test_a_pod_that_is_ended_keeps_the_programs_own_failure(start: Start, handler: str, code: int) -> None:
    launcher = start("sh", "-c", f"trap '{handler}' TERM; {WAIT}")
    launcher.run()
    wait_for(launcher.run_dir / "launch" / "rings" / "ready-0")
    launcher.process.terminate()
    launcher.process.wait(timeout=60)
    assert launcher.process.returncode == code, "work that was cut short is no success"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ranks_that_were_done_before_the_pod_is_ended_are_done(start: Start, number: signal.Signals) -> None:
    launcher = start("sh", "-c", "true")
    launcher.run(procs=2)
    launcher.wait(state="Exited")
    launcher.process.send_signal(number)
    launcher.process.wait(timeout=60)
    assert launcher.process.returncode == 0
    status = launcher.status()
    assert status is not None
    assert (status.state, [rank.exit_code for rank in status.ranks]) == ("Exited", [0, 0])


def test_a_rank_that_was_done_before_does_not_make_the_pod_done(start: Start) -> None:
    launcher = start("sh", "-c", f'[ "$RANK" = 0 ] && exit 0; trap "exit 0" TERM; {WAIT}')
    launcher.run(procs=2)
    wait_for(launcher.run_dir / "launch" / "rings" / "ready-1")
    deadline = time.monotonic() + 20
    while launcher.wait(state="Running").ranks[0].state != "Exited":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    launcher.process.terminate()
    launcher.process.wait(timeout=60)
    assert launcher.process.returncode == 128 + signal.SIGTERM
    status = launcher.status()
    assert status is not None
    assert (status.state, [rank.exit_code for rank in status.ranks]) == ("Stopping", [0, 0])


def test_a_launcher_of_the_users_that_saves_on_the_signal_is_not_done(start: Start) -> None:
    child = f"trap 'exit 0' TERM; {WAIT}"
    launcher = start(
        "bash", "-c", 'trap "kill \\$!; wait; exit 0" TERM; sh -c "$0" & wait', child, options=("--launcher", "own")
    )
    launcher.run(procs=2)
    wait_for(launcher.run_dir / "launch" / "rings" / "ready-")
    launcher.process.terminate()
    launcher.process.wait(timeout=60)
    assert launcher.process.returncode == 128 + signal.SIGTERM
    status = launcher.status()
    assert status is not None
    assert (status.state, status.ranks[0].exit_code) == ("Stopping", 0)


def test_a_limit_of_our_own_on_the_grace_ends_who_ignores_the_signal(start: Start) -> None:
    launcher = start("sh", "-c", f"trap '' TERM; {WAIT}", options=("--grace-seconds", "1"))
    launcher.run()
    wait_for(launcher.run_dir / "launch" / "rings" / "ready-0")
    launcher.process.terminate()
    launcher.process.wait(timeout=60)
    assert launcher.process.returncode == 128 + signal.SIGKILL


def test_a_daemon_that_ignores_the_signal_does_not_hold_the_pod(start: Start) -> None:
    daemon = "trap '' TERM; touch \"$FALCON_RING_DIR/ready-0\"; while :; do sleep 0.05; done"
    launcher = start("sh", "-c", 'setsid sh -c "$0" & exec sleep 1000', daemon)
    launcher.run()
    wait_for(launcher.run_dir / "launch" / "rings" / "ready-0")
    launcher.process.terminate()
    launcher.process.wait(timeout=60)
    assert launcher.process.returncode == 128 + signal.SIGTERM


def test_signals_of_the_users_reach_every_rank(start: Start) -> None:
    launcher = start("sh", "-c", f"trap 'echo usr1 $RANK; exit 0' USR1; {WAIT}")
    launcher.run(procs=2)
    for rank in (0, 1):
        wait_for(launcher.run_dir / "launch" / "rings" / f"ready-{rank}")
    launcher.process.send_signal(signal.SIGUSR1)
    launcher.wait(state="Exited")
    out, _ = launcher.finish()
    assert sorted(out.splitlines()) == ["usr1 0", "usr1 1"]
