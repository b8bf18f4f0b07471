"""Standbys beside real ranks: held before their program, released as ranks by a restart, and gone with the pod."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from falcon_core.wire.launcher.launch import LaunchPlan, LaunchStatus
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher
from tests.integration.shim.memory import memory_cgroup, oom_kills

AGENT = Path(__file__).parents[4] / "agent"
PROGRAM = Path(__file__).parents[1] / "programs" / "standing.py"
RESTARTS = 50
MEMORY_LIMIT_BYTES = 2 << 30
OWN_LAUNCHER = "import os, subprocess, sys; subprocess.run(sys.argv[1:], env=dict(os.environ, RANK='0'))"
HEAVY = """
import ctypes, mmap, os, time
from pathlib import Path
def port_in_c():
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_char_p
    return library.getenv(b"MASTER_PORT").decode()
folder = Path(__file__).parents[1]
(folder / f"imported-{os.getpid()}").touch()
print("heavy is here", flush=True)
if (folder / "greedy").exists():
    while not (folder / "fill").exists():
        time.sleep(0.02)
    held = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
if (folder / "broken").exists():
    raise RuntimeError("no such device")
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path) -> Path:
    """Return a folder of installed packages, with one in it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "heavy.py").write_text(HEAVY)
    python = tmp_path / "python"
    python.mkdir()
    for name in ("falcon_site", "falcon_start"):
        (python / name).symlink_to(AGENT / name)
    return folder


@pytest.fixture
def limited_memory(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a memory cgroup with the limit that the test names."""
    with memory_cgroup(request.param) as folder:
        yield folder


def begin(start: Start, folder: Path, *command: str, options: tuple[str, ...] = ()) -> Launcher:
    command = command or (sys.executable, "-X", "dev", str(PROGRAM), str(folder))
    environment = {"PYTHONPATH": str(folder / "site-packages")}
    return start(*command, options=("--python", str(folder / "python"), *options), environment=environment)


def until(holds: Callable[[], Any], seconds: float = 240) -> Any:
    """Return what ``holds`` returns when that is true. A standby has little CPU time while other tests run."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def lines(folder: Path, generation: int) -> list[list[int]]:
    """Return rank and process of each program of a generation that has begun."""
    path = folder / "lines"
    all_lines = (
        [[int(word) for word in line.split()] for line in path.read_text().splitlines()] if path.exists() else []
    )
    return sorted(line[1:] for line in all_lines if line[0] == generation)


def all_run(folder: Path, generation: int, procs: int = 2) -> list[list[int]]:
    until(lambda: all((folder / f"state-{generation}-{rank}").exists() for rank in range(procs)))
    return lines(folder, generation)


def below(pid: int) -> set[int]:
    """Return the processes whose parent this is."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def standbys(launcher: Launcher, count: int) -> list[int]:
    """Return the processes of that many standbys, once they are ready."""
    launcher.settle()
    status = until(lambda: ready(launcher, count))
    return sorted(below(launcher.process.pid) - {rank.pid for rank in status.ranks})


def ready(launcher: Launcher, count: int) -> LaunchStatus | None:
    status = launcher.status()
    held = status.standby if status is not None else None
    assert held is None or not held.why or held.ready == count, held
    return status if held is not None and held.ready == count else None


def why(launcher: Launcher) -> str:
    """Return why there are no standbys, once that is said."""

    launcher.wait(state="Running")
    launcher.settle()

    def said() -> str:
        status = launcher.status()
        return status.standby.why if status is not None and status.standby is not None else ""

    return str(until(said))


def test_a_pod_without_ranks_imports_what_its_agent_names_and_becomes_ranks(start: Start, tmp_path: Path) -> None:
    launcher = begin(start, tmp_path)
    launcher.plan(LaunchPlan(generation=1, phase="Stop", procs=2))
    launcher.wait(generation=1, dead_below=1, state="Stopped")
    assert not below(launcher.process.pid)
    (launcher.run_dir / "agent" / "imports").write_text("p 7\ni heavy\n")
    launcher.plan(LaunchPlan(generation=1, phase="Stop", procs=2, standby="Imports"))
    until(lambda: ready(launcher, 2))
    held = sorted(below(launcher.process.pid))
    assert all((tmp_path / f"imported-{pid}").exists() for pid in held)
    launcher.plan(LaunchPlan(generation=2, phase="Stop", procs=2, standby="Imports"))  # another pod's restart
    launcher.wait(generation=2, dead_below=2, state="Stopped")
    assert sorted(below(launcher.process.pid)) == held
    assert not lines(tmp_path, 1), "no line of the program has run"
    launcher.run(generation=3, procs=2, port=29513, standby="Imports")
    ranks = all_run(tmp_path, 3)
    assert sorted(pid for _, pid in ranks) == held
    assert [rank for rank, _ in ranks] == [0, 1]
    standbys(launcher, 2)  # the record of this pod's own ranks is good for the next generation


def test_a_restart_makes_ranks_of_the_standbys(start: Start, tmp_path: Path) -> None:
    launcher = begin(start, tmp_path)
    launcher.run(procs=2, standby="Imports")
    first = all_run(tmp_path, 1)
    held = standbys(launcher, 2)
    assert len(held) == 2
    assert all((tmp_path / f"imported-{pid}").exists() for pid in held)
    assert len((tmp_path / "lines").read_text().splitlines()) == 2, "no line of the program runs in a standby"
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))  # every pod's acknowledgement comes first
    launcher.wait(generation=2, dead_below=2, state="Stopped")
    assert below(launcher.process.pid) == set(held)
    launcher.run(generation=2, procs=2, port=29512, standby="Imports")
    second = all_run(tmp_path, 2)
    assert sorted(pid for _, pid in second) == held
    assert [rank for rank, _ in second] == [0, 1]
    status = launcher.wait(generation=2, state="Running")
    assert {(rank.rank, rank.pid) for rank in status.ranks} == {(rank, pid) for rank, pid in second}
    assert not any(Path(f"/proc/{pid}").exists() for _, pid in first)
    third = standbys(launcher, 2)
    assert b"heavy is here\n" in launcher.tail(0, generation=2), "what the imports print is the rank's output"
    out, _ = launcher.finish(generation=2)
    assert sorted(out.splitlines()) == ["heavy is here"] * 4 + ["trains"] * 4
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in third))


def test_a_released_standby_is_what_a_fresh_process_is(start: Start, tmp_path: Path) -> None:
    launcher = begin(start, tmp_path)
    launcher.run(procs=2, standby="Imports")
    all_run(tmp_path, 1)
    held = standbys(launcher, 2)
    launcher.run(generation=2, procs=2, port=29512, standby="Imports")
    assert sorted(pid for _, pid in all_run(tmp_path, 2)) == held
    for rank in (0, 1):
        cold, warm = (json.loads((tmp_path / f"state-{generation}-{rank}").read_text()) for generation in (1, 2))
        assert (cold.pop("port"), warm.pop("port")) == ("29511", "29512"), "C code sees the environment, too"
        for key in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
            assert cold["environ"].pop(key) != warm["environ"].pop(key)
        assert warm == cold
        assert not [key for key in warm["environ"] if key in ("FALCON_STANDBY", "FALCON_IMPORTS")]


@pytest.mark.slow
def test_restarts_leave_no_standby_behind(start: Start, tmp_path: Path) -> None:
    launcher = begin(start, tmp_path)
    released = 0
    for generation in range(1, RESTARTS + 1):
        launcher.run(generation=generation, procs=2, port=29500 + generation, standby="Imports")
        ranks = {pid for _, pid in all_run(tmp_path, generation)}
        assert len(lines(tmp_path, generation)) == 2
        if generation % 5 == 0:  # a restart may come at any moment of a standby's making
            launcher.settle()
            time.sleep(0.02 * generation)
            continue
        held = set(standbys(launcher, 2))
        released += bool(held) and not held & ranks
    assert released >= RESTARTS * 3 // 4
    alive = {rank.pid for rank in launcher.wait(state="Running").ranks}
    standbys(launcher, 2)
    assert len(below(launcher.process.pid)) == 4
    assert alive < below(launcher.process.pid)
    children = below(launcher.process.pid)
    launcher.finish(generation=RESTARTS)
    assert launcher.process.returncode == 0
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_standby_that_does_not_answer_is_replaced_by_a_cold_start(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    launcher = begin(start, tmp_path)
    launcher.run(procs=2, standby="Imports")
    all_run(tmp_path, 1)
    held = standbys(launcher, 2)
    os.kill(held[0], number)
    launcher.run(generation=2, procs=2, standby="Imports")
    ranks = {pid for _, pid in all_run(tmp_path, 2)}
    assert held[0] not in ranks
    assert held[1] in ranks
    until(lambda: not Path(f"/proc/{held[0]}").exists())
    assert len(lines(tmp_path, 2)) == 2


def test_an_import_that_fails_means_a_cold_start(start: Start, tmp_path: Path) -> None:
    launcher = begin(start, tmp_path)
    launcher.run(procs=1, standby="None")
    all_run(tmp_path, 1, procs=1)
    launcher.run(generation=2, procs=1, standby="Imports")
    all_run(tmp_path, 2, procs=1)
    standbys(launcher, 1)
    (tmp_path / "broken").touch()
    (held,) = standbys(launcher, 1)
    os.kill(held, signal.SIGKILL)
    until(lambda: "no such device" in why(launcher))
    (tmp_path / "broken").unlink()
    launcher.run(generation=3, procs=1, standby="Imports")
    all_run(tmp_path, 3, procs=1)


@pytest.mark.parametrize("limited_memory", [MEMORY_LIMIT_BYTES], indirect=True)
def test_a_standby_is_the_first_that_the_kernel_kills_for_memory(
    limited_memory: Path, start: Start, tmp_path: Path
) -> None:
    launcher = begin(start, tmp_path)
    launcher.wait(state="Idle")
    (limited_memory / "cgroup.procs").write_text(str(launcher.process.pid))
    launcher.run(procs=1, standby="Imports")
    ((_, rank),) = all_run(tmp_path, 1, procs=1)
    (held,) = standbys(launcher, 1)
    (tmp_path / "greedy").touch()
    os.kill(held, signal.SIGKILL)
    (greedy,) = until(lambda: below(launcher.process.pid) - {rank, held})
    # Before that it needs the launcher, which must not be stopped earlier.
    until((tmp_path / f"imported-{greedy}").exists)
    # The launcher ends a standby when memory is short, and it stops one that takes much CPU time: here the kernel acts.
    os.kill(launcher.process.pid, signal.SIGSTOP)
    os.kill(greedy, signal.SIGCONT)
    os.setpriority(os.PRIO_PROCESS, greedy, 0)  # a standby has the least CPU time, and takes long to fill the memory
    (tmp_path / "fill").touch()
    until(lambda: oom_kills(limited_memory) >= 1)
    os.kill(launcher.process.pid, signal.SIGCONT)
    until(lambda: (launcher.wait(state="Running").oom_kills or 0) >= 1)
    until(lambda: below(launcher.process.pid) == {rank})
    assert "by itself" in why(launcher)
    os.kill(rank, signal.SIGKILL)
    ended = launcher.wait(state="Exited").ranks[0]
    assert (ended.pid, ended.signal) == (rank, signal.SIGKILL)
    assert not ended.oom_killed, "the kill was the standby's"
    (tmp_path / "greedy").unlink()
    launcher.run(generation=2, procs=1, standby="Imports")
    all_run(tmp_path, 2, procs=1)
    launcher.finish(generation=2)


@pytest.mark.parametrize("limited_memory", [MEMORY_LIMIT_BYTES // 2], indirect=True)
def test_a_pod_with_little_memory_gets_none(limited_memory: Path, start: Start, tmp_path: Path) -> None:
    launcher = begin(start, tmp_path)
    launcher.wait(state="Idle")
    (limited_memory / "cgroup.procs").write_text(str(launcher.process.pid))
    launcher.run(procs=1, standby="Imports")
    all_run(tmp_path, 1, procs=1)
    assert "memory" in why(launcher)
    launcher.finish(generation=1)


def test_shells_that_only_start_python_are_held(start: Start, tmp_path: Path) -> None:
    launcher = begin(start, tmp_path, "sh", "-c", f"cd {tmp_path} && exec {sys.executable} {PROGRAM} {tmp_path}")
    launcher.run(procs=1, standby="Imports")
    all_run(tmp_path, 1, procs=1)
    held = standbys(launcher, 1)
    launcher.run(generation=2, procs=1, standby="Imports")
    assert [pid for _, pid in all_run(tmp_path, 2, procs=1)] == held


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        (("sh", "-c", "touch {0}/first; {1} {2} {0}"), (), "make Python itself"),
        (("sh", "-c", "{1} {2} {0} $RANK"), (), "make Python itself"),
        (("env", "A=1", "{1}", "{2}", "{0}"), (), "make Python itself"),
        (("{1}", "-c", OWN_LAUNCHER, "{1}", "{2}", "{0}"), ("--launcher", "own"), "launcher"),
        (("{1}", "-E", "-c", "import time; time.sleep(99)"), (), "-I, -E or -S"),
        (("sleep", "99"), (), "make Python itself"),
    ],
)
def test_what_cannot_be_held_is_said_and_never_started_twice(
    start: Start, tmp_path: Path, command: tuple[str, ...], options: tuple[str, ...], reason: str
) -> None:
    words = [word.format(tmp_path, sys.executable, PROGRAM) for word in command]
    launcher = begin(start, tmp_path, *words, options=options)
    launcher.run(procs=1, standby="Imports")
    assert reason in why(launcher)
    until(lambda: below(launcher.process.pid))
    assert len(below(launcher.process.pid)) == 1
