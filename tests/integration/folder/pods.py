"""Pods of a job on one volume, for tests of single cases: under the virtual clock, or as real processes.

``falcon-launch behind`` takes its parent's other children for the ranks, so each real process has a parent of its own,
and a sleeping process in place of a rank.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from falcon_core.wire.saves.directory import LaunchDirectory
from tests.integration.folder.driver import Round
from tests.integration.folder.trees import Tree, difference, read_tree
from tests.integration.shim.launching import SHIM

PATIENCE_SECONDS = 150
CRASH_SECONDS = 0.1  # between a change at which a process is to be killed and the next one, about


class Processes(Protocol):
    """The copying processes of a job, by replica."""

    tick_seconds: float  # between two looks of a test
    ticks: int  # until it gives up
    speaks_of_now: bool  # what a round returns is of that instant; else of a look a while ago, on a busy machine

    def start(self, replica: int, memory: Path, durable: Path, **options: object) -> str: ...
    def round(self, replica: int) -> Round: ...
    def advance(self, seconds: float) -> None: ...
    def keep_open(self, replica: int, paths: list[str]) -> None: ...
    def tell(self, replica: int, word: str) -> None: ...
    def crash_at(self, replica: int, change: int) -> None: ...
    def look(self, durable: Path) -> dict[str, str | bytes]: ...


class Process:
    """One real process."""

    def __init__(self, command: Sequence[str], memory: Path, durable: Path, replica: int, given: dict[str, object]):
        self._status = durable.parent.parent / f"status-{replica}-{given['generation']}.json"
        ready, ready_write = os.pipe()
        options = {
            "memory": memory,
            "memory-bytes": 1 << 30,
            "folder": durable,
            "owner": "uid-1",
            "replica": replica,
            "bytes-per-second": 0,
            "flush-seconds": PATIENCE_SECONDS,
            "status": self._status,
            "ready": ready_write,
            "resume": "no",
        } | given
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        self._parent = subprocess.Popen(
            ["sh", "-c", 'sleep 1000 >&- 2>&- & echo $!; "$@" & echo $!; wait $!', "pod", *command, "behind", *words],
            pass_fds=[ready_write],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(ready_write)
        assert self._parent.stdout is not None
        self._rank, self.pid = (int(self._parent.stdout.readline()) for _ in range(2))
        self.answer = os.read(ready, 4096).decode()  # the parent keeps the other end open
        os.close(ready)

    @property
    def status(self) -> LaunchDirectory:
        return msgspec.json.decode(self._status.read_bytes(), type=LaunchDirectory)

    @property
    def is_over(self) -> bool:
        return self._parent.poll() is not None

    def send(self, number: int) -> None:
        """Send a signal to the process, if it lives."""
        if not self.is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end_rank(self) -> None:
        """Kill what stands for a rank, and wait until it is dead: what it had open is closed afterwards."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._rank, signal.SIGKILL)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has been waited for
            while b") Z " not in Path(f"/proc/{self._rank}/stat").read_bytes():
                time.sleep(0.001)

    def end(self) -> str:
        """Kill the process if it lives; return its standard error."""
        self.end_rank()
        self.send(signal.SIGKILL)
        return self._parent.communicate(timeout=PATIENCE_SECONDS)[1]


class RealProcesses:
    """``falcon-launch behind`` for each replica, with real signals: a virtual second is as long as a real one."""

    tick_seconds = 0.05
    ticks = int(PATIENCE_SECONDS / tick_seconds)
    speaks_of_now = False

    def __init__(self, command: Sequence[str] = (), chance: random.Random | None = None) -> None:
        """Begin without any. ``command``: the launcher, where it is not the one that is built."""
        self._command, self._chance = command or [str(SHIM / "falcon-launch")], chance or random.Random(0)
        self._processes: dict[int, Process] = {}
        self._flushing: set[int] = set()
        self._timers: list[threading.Timer] = []

    def start(self, replica: int, memory: Path, durable: Path, **options: object) -> str:
        self._flushing.discard(replica)
        if replica in self._processes:
            self._processes[replica].end()
        given = {name.replace("_", "-"): value for name, value in options.items()}
        self._processes[replica] = Process(self._command, memory, durable, replica, given)
        return self._processes[replica].answer.removeprefix("ok")

    def round(self, replica: int) -> Round:
        process = self._processes[replica]
        if process.is_over:
            flushed = replica in self._flushing
            return Round(over=flushed, crashed=not flushed, error=process.end())
        with contextlib.suppress(FileNotFoundError):
            said = process.status
            return Round(files=said.files, bytes=said.bytes, error=said.error)
        return Round(files=1)

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)

    def keep_open(self, replica: int, paths: list[str]) -> None:
        """Do nothing: the process looks itself."""

    def tell(self, replica: int, word: str) -> None:
        process = self._processes[replica]
        if word == "crash":
            process.end()
        elif word == "gone":
            process.end_rank()
        elif word in ("fail", "well"):
            process.send(signal.SIGUSR1 if word == "well" else signal.SIGUSR2)
        elif word == "flush":
            self._flushing.add(replica)
            process.send(signal.SIGTERM)

    def crash_at(self, replica: int, change: int) -> None:
        """Kill the process at a random instant, later for a later change."""
        if change > 0:
            seconds = self._chance.uniform(0, change * CRASH_SECONDS)
            self._timers.append(threading.Timer(seconds, self._processes[replica].send, [signal.SIGKILL]))
            self._timers[-1].start()

    def look(self, durable: Path) -> dict[str, str | bytes]:
        """Return a state of the durable tree: two readings agree."""
        before = None
        for _ in range(self.ticks):
            found = read_tree(durable)
            if found == before:
                return found
            before = found
        raise AssertionError("the tree never rests for the time of a reading")

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for process in self._processes.values():
            process.end()


class Pod:
    """One pod: its folder in memory, and what its copying process said last."""

    def __init__(self, volume: Volume, replica: int, memory: Path, error: str) -> None:
        self.volume, self.replica, self.memory, self.error_at_start = volume, replica, memory, error
        self.said = Round()
        self.alive = error == ""

    @property
    def tree(self) -> dict[str, str | bytes]:
        return read_tree(self.memory)

    def settle(self, expected: Tree | None = None) -> None:
        """Wait until the volume holds what this pod's folder does, and nothing is left."""
        self.volume.await_tree(self.tree if expected is None else expected)
        self.volume.until(lambda: self.said.files == 0, lambda: f"nothing is left: {self.said}")

    def finish(self, expected: Tree | None = None) -> None:
        """Say that all ranks have ended well, and wait until all is durable; then end the process."""
        expected = self.tree if expected is None else expected
        self.volume.processes.tell(self.replica, "well")
        self.settle(expected)
        self.stop()
        assert self.volume.tree == expected, difference(expected, self.volume.tree)

    def stop(self) -> str:
        """Have the process copy what is finished and end; return the error that it ended with."""
        self.volume.processes.tell(self.replica, "flush")
        self.volume.until(lambda: self.said.over, lambda: f"the flush ends: {self.said}")
        self.kill()
        return self.said.error

    def kill(self) -> None:
        """End the process at once."""
        if self.alive:
            self.volume.processes.tell(self.replica, "crash")
            self.alive = False

    def lose(self) -> None:
        """Lose the pod with its node: the process and the memory."""
        self.kill()
        shutil.rmtree(self.memory, ignore_errors=True)


class Volume:
    """What outlives the pods: the durable folder, and next to it a folder of somebody else's, which never changes."""

    def __init__(self, base: Path, memory: Path, processes: Processes) -> None:
        self.base, self.folder, self.processes = base, base / "volume" / "run", processes
        self.victim = base / "volume" / "victim"
        self.victim.mkdir(parents=True)
        (self.victim / "model.pt").write_text("victim's")
        self.foreign = read_tree(self.victim)
        self._memory = memory
        self.pods: list[Pod] = []

    @property
    def tree(self) -> dict[str, str | bytes]:
        return read_tree(self.folder)

    def pod(self, replica: int = 0, generation: int = 1, **options: object) -> Pod:
        """Start a pod with an empty folder in memory, and wait until it is filled from the volume."""
        memory = Path(tempfile.mkdtemp(prefix=f"pod-{replica}-", dir=self._memory))
        memory.chmod(0o777)
        error = self.processes.start(replica, memory, self.folder, generation=generation, **options)
        self.pods.append(Pod(self, replica, memory, error))
        return self.pods[-1]

    def tick(self) -> None:
        """Let time pass; each process looks and works."""
        self.processes.advance(self.processes.tick_seconds)
        for pod in self.pods:
            if pod.alive:
                self.processes.keep_open(pod.replica, open_below(pod.memory))
                pod.said = self.processes.round(pod.replica)

    def until(self, holds: Callable[[], object], what: str | Callable[[], str]) -> None:
        """Wait until something holds; fail with what was awaited."""
        for _ in range(self.processes.ticks):
            if holds():
                return
            self.tick()
        assert holds(), what if isinstance(what, str) else what()

    def await_tree(self, expected: Tree) -> None:
        self.until(lambda: self.tree == expected, lambda: difference(expected, self.tree))

    def close(self) -> None:
        for pod in self.pods:
            pod.lose()
        assert read_tree(self.victim) == self.foreign, "nothing outside the durable folder changes"


def open_below(root: Path) -> list[str]:
    """Return the files below a folder that this process has open for writing, by their paths below it."""
    found = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(FileNotFoundError):
            link = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
            flags = Path(f"/proc/self/fdinfo/{number}").read_text().split("flags:")[1].split()[0]
            if link.startswith(f"{root}/") and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
                found.append(os.path.relpath(link, root))
    return found


def await_tick(folder: Path) -> None:
    """Wait until what changes in a folder from now on gets a later time than what has changed there."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as probe:
        before = Path(probe).stat().st_ctime_ns
        deadline = time.monotonic() + PATIENCE_SECONDS
        while Path(probe).stat().st_ctime_ns == before:
            assert time.monotonic() < deadline, "the clock of the file system goes on"
            Path(probe).touch()
