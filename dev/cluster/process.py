"""Run the cluster's own processes: each has its own session, and is known by pid and start time, never by name only."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dev.cluster.layout import BIN, CACHE, CLUSTER, LOGS, STATE

_LOCK = "cluster.lock"


class ClusterError(RuntimeError):
    """The error of a cluster or machine that is not as it should be; the message says what is wrong and what to do."""


class Processes:
    """A record of the started processes, saved at once, so that any later command can stop them."""

    def __init__(self, path: Path = STATE) -> None:
        self._path = path
        self._known: dict[str, tuple[int, int]] = {}
        if path.exists():
            self._known = {name: (pid, born) for name, (pid, born) in json.loads(path.read_text()).items()}

    @property
    def names(self) -> list[str]:
        return sorted(self._known)

    def start(self, name: str, command: Sequence[str | Path], netns: str | None = None) -> None:
        """Start a command in the background, with its output in ``logs/<name>.log``.

        ``netns``: the network namespace to start it in, if any.
        """
        LOGS.mkdir(parents=True, exist_ok=True)
        inside = ["nsenter", f"--net=/run/netns/{netns}"] if netns else []
        with (LOGS / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*inside, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        self._known[name] = (child.pid, _born(child.pid) or 0)
        self._save()

    def alive(self, name: str) -> bool:
        pid, born = self._known.get(name, (0, 0))
        return pid > 0 and _born(pid) == born

    def any_alive(self) -> bool:
        return any(self.alive(name) for name in self._known)

    def stop(self, names: Sequence[str], signal_number: int = signal.SIGTERM, grace_seconds: float = 5) -> None:
        """End processes together: send the signal, wait for the grace, then send SIGKILL. Forget the processes."""
        _end([self._known[name] for name in names if name in self._known], signal_number, grace_seconds)
        for name in names:
            self._known.pop(name, None)
        self._save()

    def wait(self, what: str, lacking: Callable[[], str], timeout_seconds: float, names: Sequence[str]) -> None:
        """Poll until ``lacking``, which returns what is still missing, returns "".

        ``names``: the processes that are needed for it.

        Raises:
            ClusterError: one of these processes ended, or the time is over; the message quotes the end of a log.
        """
        deadline = time.monotonic() + timeout_seconds
        while missing := lacking():
            dead = [name for name in names if not self.alive(name)]
            if dead:
                raise ClusterError(f"{what}: {dead[0]} ended{_tail(dead[0])}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not within {timeout_seconds:.0f} s: {missing}{_tail(names[0])}")
            time.sleep(0.1)

    def _save(self) -> None:
        write_whole(self._path, json.dumps(self._known))


def end_strays() -> None:
    """Kill the cluster's processes that are in no record.

    Such a process is left when an ``up`` is killed between starting the process and recording it. The cluster's
    processes run a binary of ``BIN`` with a file of ``CLUSTER`` among their arguments.
    """
    found: list[tuple[int, int]] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended while we looked
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            ours = any(word.startswith(f"{BIN}/") for word in words[:3]) and any(f"{CLUSTER}/" in w for w in words)
            born = _born(int(entry.name))
            if ours and born is not None:
                found.append((int(entry.name), born))
    _end(found, signal.SIGKILL, 0)


def _end(processes: Sequence[tuple[int, int]], signal_number: int, grace_seconds: float) -> None:
    """End processes, each given as (pid, start time): send the signal, wait for the grace, then send SIGKILL."""

    def left() -> list[int]:
        return [pid for pid, born in processes if born and _born(pid) == born]

    for number, seconds in ((signal_number, grace_seconds), (signal.SIGKILL, 5.0)):
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while left() and time.monotonic() < deadline:
            time.sleep(0.02)
    if survivors := left():
        raise ClusterError(f"processes {survivors} survived SIGKILL: a hung disk or network mount? see dmesg")


def _born(pid: int) -> int | None:
    """Return the start time in clock ticks since boot; None for no process or a zombie.

    A zombie that is a child of this process is reaped.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] == "Z":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return None
    return int(fields[19])


def run(*command: str | Path, check: bool = True, stdin: str | None = None, timeout_seconds: float = 120) -> str:
    """Run a command until it ends. Return its stdout.

    Raises:
        ClusterError: the command failed and ``check`` is true, or it never ended; the message holds the command's
            output.
    """
    line = " ".join(map(str, command))
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{line}: not finished within {timeout_seconds:.0f} s") from None
    except FileNotFoundError:
        raise ClusterError(f"{command[0]} does not exist: `make cluster-up` brings what is needed") from None
    if check and done.returncode != 0:
        raise ClusterError(f"{line}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a SIGKILL leaves the old or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.rename(path)


def locked(cache: Path) -> bool:
    """Check whether a cluster command of a cache is under way."""
    with (cache / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Hold the lock of this cache's cluster, so that one command at a time changes it.

    Another command waits and says so.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / _LOCK).open("a+") as lock:  # the kernel drops the lock with its holder, however that ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            print(f"cluster: waiting for another cluster command (pid {lock.read().strip() or '?'}) …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _tail(log: str) -> str:
    path = LOGS / f"{log}.log"
    if not path.exists():
        return ""
    lines = path.read_text(errors="replace").splitlines()[-8:]
    return f"; the end of {path}:\n  " + "\n  ".join(lines)
