"""Which processes of a real tree a signal reaches, and what becomes of those that a rank leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from falcon_core.wire.launcher.launch import LaunchPlan
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher, wait_for

# ``member(NAME, SECONDS)`` says in FOLDER/NAME what becomes of a process: ready, then each signal that it handles.
MEMBER = """
import os, signal, subprocess, sys, time
folder = os.environ["FOLDER"]
def say(name, word):
    with open(f"{folder}/{name}", "a") as file:
        file.write(word + " ")
    open(f"{folder}/{name}-{word}", "w").close()
def member(name, then=lambda: os._exit(0), numbers=(signal.SIGTERM,)):
    def handle(number, _):
        say(name, signal.Signals(number).name)
        then()
    for number in numbers:
        signal.signal(number, handle)
    open(f"{folder}/{name}-pid", "w").write(str(os.getpid()))
    say(name, "ready")
def stay():
    while True:
        time.sleep(1000)
"""


class Tree:
    """A launcher whose ranks run a Python program that uses ``MEMBER``."""

    def __init__(self, start: Start, folder: Path, program: str, *, shell: str = "", options: tuple[str, ...] = ()):
        (folder / "tree.py").write_text(MEMBER + program)
        self._folder = folder
        command = [sys.executable, "-S", str(folder / "tree.py")]
        if shell:
            command = ["sh", "-c", shell.format(program=" ".join(command))]
        self.launcher: Launcher = start(*command, options=options, environment={"FOLDER": str(folder)})
        self.launcher.run()

    def has(self, name: str) -> Path:
        wait_for(self._folder / name)
        return self._folder / name

    def pid(self, name: str) -> int:
        self.has(f"{name}-ready")
        return int((self._folder / f"{name}-pid").read_text())

    def words(self, name: str) -> list[str]:
        return (self._folder / name).read_text().split()

    def rank(self) -> int:
        return self.launcher.wait(state="Running").ranks[0].pid

    def kill_rank(self) -> None:
        os.kill(self.rank(), signal.SIGKILL)

    def stop(self) -> None:
        self.launcher.plan(LaunchPlan(generation=2, phase="Stop"))
        self.launcher.wait(dead_below=2)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "folder"
    made.mkdir()
    yield made
    # Helpers that stay when their launcher has ended.
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(made / "tree.py").encode() in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("shell", ["", "{program}; true"])
def test_a_users_signal_reaches_the_program_and_kills_no_helper(
    start: Start, folder: Path, number: signal.Signals, shell: str
) -> None:
    program = """
helper = subprocess.Popen(["sleep", "1000"])
def after():
    try:
        say("helper", str(helper.wait(timeout=1)))
    except subprocess.TimeoutExpired:
        say("helper", "lives")
member("trainer", after, (signal.SIGUSR1, signal.SIGUSR2))
stay()
"""
    tree = Tree(start, folder, program, shell=shell)
    tree.pid("trainer")
    tree.launcher.process.send_signal(number)
    tree.has("helper")
    wait_for(folder / "helper-lives")
    assert tree.words("trainer") == ["ready", number.name]


def test_a_users_signal_that_nobody_handles_ends_nothing(start: Start, folder: Path) -> None:
    tree = Tree(start, folder, 'member("trainer", lambda: None)\nstay()\n')
    pid = tree.pid("trainer")
    tree.launcher.process.send_signal(signal.SIGUSR1)
    tree.launcher.process.send_signal(signal.SIGUSR2)
    tree.launcher.process.terminate()  # it is handled after them
    tree.has("trainer-SIGTERM")
    assert Path(f"/proc/{pid}").exists()


# The child is a copy of the trainer, with its handler.
FORKED = """
def forked():
    if os.fork() == 0:
        member("helper", lambda: None)
        stay()
"""


def test_a_forked_helper_with_the_programs_handler_is_signalled_after_it(start: Start, folder: Path) -> None:
    program = (
        FORKED
        + """
def save():
    say("helper-during", open(f"{folder}/helper").read().strip())
    os._exit(0)
member("trainer", save)
forked()
stay()
"""
    )
    tree = Tree(start, folder, program)
    tree.pid("helper")
    tree.stop()
    assert tree.words("helper-during") == ["ready"], "the program ends first"
    assert tree.words("helper") == ["ready", "SIGTERM"]
    assert tree.words("trainer") == ["ready", "SIGTERM"]


def test_a_program_that_restores_the_default_while_it_saves_has_its_time(start: Start, folder: Path) -> None:
    program = """
def save():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(2)  # longer than a program has that does not handle the signal
    say("trainer", "saved")
    os._exit(0)
member("trainer", save)
stay()
"""
    tree = Tree(start, folder, program)
    tree.pid("trainer")
    tree.stop()
    assert tree.words("trainer") == ["ready", "SIGTERM", "saved"]


def test_a_program_that_waits_for_a_blocked_signal_saves(start: Start, folder: Path) -> None:
    program = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
member("trainer", numbers=())
signal.sigwait([signal.SIGTERM])
time.sleep(2)
say("trainer", "saved")
"""
    tree = Tree(start, folder, program)
    tree.pid("trainer")
    tree.stop()
    assert tree.words("trainer") == ["ready", "saved"]


@pytest.mark.parametrize("session", [False, True])
def test_what_a_killed_rank_leaves_is_signalled_without_a_plan(start: Start, folder: Path, session: bool) -> None:
    program = f"""
if os.fork() == 0:
    if {session}:
        os.setsid()
    member("left")
    stay()
stay()
"""
    tree = Tree(start, folder, program)
    pid = tree.pid("left")
    tree.kill_rank()
    tree.has("left-SIGTERM")
    wait_for(Path(f"/proc/{pid}"), gone=True)


def test_what_does_not_end_by_its_signal_is_killed_without_a_plan(start: Start, folder: Path) -> None:
    program = """
for name in ("hangs", "ignores"):
    if os.fork() == 0:
        member(name, lambda: None)
        if name == "ignores":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say(name, "set")
        stay()
stay()
"""
    tree = Tree(start, folder, program)
    pids = [tree.pid(name) for name in ("hangs", "ignores")]
    for name in ("hangs", "ignores"):
        tree.has(f"{name}-set")
    tree.kill_rank()
    for pid in pids:
        wait_for(Path(f"/proc/{pid}"), gone=True)
    assert tree.words("hangs") == ["ready", "set", "SIGTERM"]


def test_a_writer_that_a_successful_rank_leaves_ends_its_work(start: Start, folder: Path) -> None:
    program = """
if os.fork() == 0:
    member("writer")
    time.sleep(2)
    say("writer", "written")
    os._exit(0)
while not os.path.exists(f"{folder}/writer-ready"):
    time.sleep(0.01)
"""
    tree = Tree(start, folder, program)
    tree.launcher.wait(state="Exited")
    tree.launcher.finish()
    assert tree.words("writer") == ["ready", "written"]


def folder_in_memory(base: Path) -> tuple[Path, Path, tuple[str, ...]]:
    """Return a folder in memory, where it is copied to, and the launcher's options for it."""
    memory, durable = base / "memory", base / "volume" / "run"
    memory.mkdir()
    durable.parent.mkdir()
    return (
        memory,
        durable,
        (
            *("--directory", str(memory), "--directory-bytes", str(1 << 30), "--directory-owner", "uid-1"),
            *("--directory-folder", str(durable), "--restart-grace-seconds", "120"),
        ),
    )


@pytest.mark.parametrize("handler", ["SIG_IGN", "save"])
def test_the_program_of_a_dead_shell_is_signalled_and_its_folder_is_copied(
    start: Start, folder: Path, handler: str
) -> None:
    program = f"""
import zipfile
def write(name):  # as torch.save does: by its end it is whole, though its writer ends
    with zipfile.ZipFile(os.environ["MEMORY"] + "/" + name, "w") as file:
        file.writestr("state", "saved")
def save(*_):
    write("last")
    os._exit(0)
write("first")
signal.signal(signal.SIGTERM, {"save" if handler == "save" else "signal.SIG_IGN"})
member("program", numbers=())
stay()
"""
    memory, durable, options = folder_in_memory(folder)
    tree = Tree(start, folder, program, shell=f"MEMORY={memory} {{program}}; true", options=options)
    tree.pid("program")
    tree.kill_rank()
    tree.launcher.process.terminate()
    tree.launcher.process.wait(timeout=60)
    assert sorted(path.name for path in durable.glob("[!.]*")) == ["first", "last"][: 1 + (handler == "save")]


@contextmanager
def held_up(pid: int) -> Iterator[None]:
    """Give a process one CPU alone, and that only while no other process wants it: here one that never leaves it."""
    cpu = min(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    try:
        for each in (busy.pid, pid):
            os.sched_setaffinity(each, {cpu})
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        yield
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.parametrize("end", ["pod", "restart", "restart on a busy CPU"])
@pytest.mark.parametrize("code", [0, 1])
def test_what_a_program_below_a_shell_saves_at_its_end_is_durable(
    start: Start, folder: Path, end: str, code: int
) -> None:
    # The shell dies of the signal. Its end does not show whether such a file is whole.
    program = f"""
def save():
    os.mkdir(os.environ["MEMORY"] + "/step-1")
    with open(os.environ["MEMORY"] + "/step-1/model.safetensors", "w") as file:
        file.write("state")
    os._exit({code})
member("program", save)
stay()
"""
    memory, durable, options = folder_in_memory(folder)
    tree = Tree(start, folder, program, shell=f"MEMORY={memory} {{program}}; true", options=options)
    tree.pid("program")
    if end == "pod":
        tree.launcher.process.terminate()
        tree.launcher.process.wait(timeout=60)
    else:
        with held_up(tree.rank()) if end == "restart on a busy CPU" else nullcontext():
            tree.stop()
    assert (memory / "step-1" / "model.safetensors").exists()
    assert (durable / "step-1").exists() == (code == 0)
