"""The cluster's own processes: started in sessions of their own, known by pid and start time, never by name."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.cluster.layout import LOGS, STATE


class ClusterError(RuntimeError):
    """Something is wrong with the cluster or the machine; the message says what and what to do."""


class Processes:
    """The record of what was started, on disk at once, so that whoever comes next can stop it."""

    def __init__(self, path: Path = STATE) -> None:
        self._path = path
        self._known: dict[str, tuple[int, int]] = {}
        if path.exists():
            self._known = {name: (pid, born) for name, (pid, born) in json.loads(path.read_text()).items()}

    @property
    def names(self) -> list[str]:
        return sorted(self._known)

    def start(self, name: str, command: Sequence[str | Path], netns: str | None = None) -> None:
        """Start in the background, output to ``logs/<name>.log``, inside a network namespace if one is named."""
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

    def stop(self, names: Sequence[str], signal_number: int = signal.SIGTERM, grace_seconds: float = 5) -> None:
        """End processes together: the signal, the grace, then SIGKILL; forget them."""
        for name in names:
            self._signal(name, signal_number)
        deadline = time.monotonic() + grace_seconds
        while any(self.alive(name) for name in names) and time.monotonic() < deadline:
            time.sleep(0.05)
        for name in names:
            self._signal(name, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(self.alive(name) for name in names):
            if time.monotonic() > deadline:
                left = [name for name in names if self.alive(name)]
                raise ClusterError(f"{', '.join(left)} survived SIGKILL: a hung disk or network mount? see dmesg")
            time.sleep(0.02)
        for name in names:
            self._known.pop(name, None)
        self._save()

    def _signal(self, name: str, number: int) -> None:
        if self.alive(name):
            try:
                os.kill(self._known[name][0], number)
            except ProcessLookupError:
                return

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._known))
        fresh.rename(self._path)


def _born(pid: int) -> int | None:
    """Start time in clock ticks since boot; None for no process or a zombie (reaped here if it is our child)."""
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
    """Run to the end; returns stdout.

    Raises:
        ClusterError: with the command and its own words, if ``check`` and it failed.
    """
    done = subprocess.run(
        [str(part) for part in command],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    if check and done.returncode != 0:
        raise ClusterError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def wait(what: str, ready: Callable[[], bool], timeout_seconds: float, log: str | None = None) -> None:
    """Poll until ready.

    Raises:
        ClusterError: names what did not come and quotes the end of the component's log.
    """
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout_seconds:.0f} s{_tail(log)}")
        time.sleep(0.1)


def _tail(log: str | None) -> str:
    path = LOGS / f"{log}.log"
    if log is None or not path.exists():
        return ""
    lines = path.read_text(errors="replace").splitlines()[-8:]
    return f"; the end of {path}:\n  " + "\n  ".join(lines)
