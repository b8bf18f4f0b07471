"""Kill the ranks of a pod that the meeting has refused and that do not end by themselves.

A process without a place ends itself (``attendance``). One that is stopped, or stands in the kernel or in the end of
its interpreter, cannot. The meeting writes which process it has refused into the job's store, where the launcher of
each pod reads it.

A process has a number of the launcher's choice: the kernel's would be the same for another pod's process of this rank.
"""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Set

from falcon_torch.elastic.attendance import ENDING_SECONDS

KEY = "falcon-elastic-refused"
KILL_SECONDS = ENDING_SECONDS + 15.0  # after a refusal
ABANDON_SECONDS = KILL_SECONDS + 15.0  # a process that no kill has ended by then stands in the kernel
LOOK_SECONDS = 1.0
MOST_NUMBER = (1 << 31) - 1  # of a process, as reports have it


class RankProcess(NamedTuple):
    """A rank's process that the launcher of this pod has started."""

    number: int
    process: subprocess.Popen[bytes]


def new_number() -> int:
    """Return a number for a process that no other process of the job has, in this pod or in another."""
    return 1 + secrets.randbelow(MOST_NUMBER)


def note(store: Any, rank: int, process: int) -> None:
    """Write down that the process of a rank is refused. ``process``: its number."""
    store.set(f"{KEY}-{rank}", str(process))


class Refusals:
    """The ranks of this pod that are refused and still run."""

    def __init__(self, ranks: Mapping[int, RankProcess]) -> None:
        """Take note of the ranks that run, by their numbers: the caller keeps them true."""
        self.abandoned: Set[int] = set()  # numbers of processes that no signal ends
        self._ranks = ranks
        self._refused_at: Dict[int, float] = {}  # by the process's number

    def watch(self, connect: Callable[[], Any]) -> None:
        """Look again and again, in a thread. ``connect`` returns the job's store, or raises RuntimeError."""
        threading.Thread(target=self._watch, args=(connect,), daemon=True, name="falcon-elastic-refusals").start()

    def _watch(self, connect: Callable[[], Any]) -> None:
        while True:
            try:
                store = connect()
                while True:
                    self.look(store, time.monotonic())
                    time.sleep(LOOK_SECONDS)
            except RuntimeError:
                time.sleep(LOOK_SECONDS)  # the first pod is not there yet, or is lost

    def look(self, store: Any, now: float) -> None:
        """Kill those whose time is over at this moment [monotonic seconds]."""
        for rank, (number, process) in list(self._ranks.items()):
            key = f"{KEY}-{rank}"
            # What was refused may be an earlier process of this rank.
            if not store.check([key]) or store.get(key) != str(number).encode():
                continue
            seconds = now - self._refused_at.setdefault(number, now)
            if seconds > KILL_SECONDS:
                process.kill()
            if seconds > ABANDON_SECONDS:
                self.abandoned.add(number)
