"""Attend the meeting of a job's processes: one rank's connection to it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple

from falcon_torch.elastic.meeting import keep_alive
from falcon_torch.elastic.roster import EXCLUDED

PROCESS = "FALCON_ELASTIC_PROCESS"  # in the environment of a rank: the number that its launcher has given it
ENDING_SECONDS = 30.0  # that a process without a place has to end by itself; then it is in its replacement's way


class RefusedError(RuntimeError):
    """The meeting has no place for this process: ``why`` is one of the reasons of ``roster``."""

    def __init__(self, why: str) -> None:
        super().__init__(f"this process has no place in the job's group: {why}")
        self.why = why


class NewGroup(NamedTuple):
    """A group that was formed."""

    number: int
    position: int  # of this process
    handles: List[str]  # of all members, in their order
    progress: List[List[Any]]


class Attendance:
    """A connection on which a thread listens."""

    def __init__(self, host: str, port: int, rank: int, on_news: Callable[[], None]) -> None:
        """Connect. ``on_news`` is called by another thread whenever ``renewed`` or the connection's end may matter.

        Raises OSError where the meeting cannot be reached.
        """
        self._connection = socket.create_connection((host, port), timeout=60)
        self._connection.settimeout(None)
        keep_alive(self._connection)
        self._on_news = on_news
        self._changed = threading.Condition()
        self._group: NewGroup | None = None
        self._refused = ""
        self._renewed = 0
        self._ended = False
        self._send({"enter": rank, "process": int(os.environ.get(PROCESS, os.getpid()))})
        threading.Thread(target=self._listen, daemon=True, name="falcon-elastic").start()

    def is_over(self, number: int) -> bool:
        """Check whether the group of this number is to be renewed, or this process has lost its place."""
        return self._renewed >= number or bool(self._refused)

    def arrive(self, number: int, handle: str, progress: List[Any], has_state: bool) -> NewGroup:
        """Wait for the next group and return it. ``number``: of the present one; 0: none. The rest is an ``Arrival``.

        Raises RefusedError.
        """
        with self._changed:
            self._group = None
        self._send({"arrive": number, "handle": handle, "progress": progress, "has_state": has_state})
        with self._changed:
            self._changed.wait_for(lambda: self._group is not None or self._refused)
            if self._group is None:
                raise RefusedError(self._refused)
            return self._group

    def end(self) -> None:
        """Say that the last step is done."""
        self._ended = True
        self._send({"end": True})

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the listening thread sees the end of the connection

    def _listen(self) -> None:
        with self._connection.makefile("rb") as lines:
            try:
                for line in lines:
                    self._hear(json.loads(line))
                    if self._refused:
                        break
            except (OSError, ValueError):
                pass
        with self._changed:
            is_refused = bool(self._refused)
            self._refused = self._refused or EXCLUDED
            self._changed.notify_all()
        self._on_news()
        # A long evaluation, a call that PyTorch cannot give up: the main thread may not see the refusal for long. A
        # connection that only ends says no such thing: the first pod may be done, and this script may still save.
        if is_refused and not self._ended:
            time.sleep(ENDING_SECONDS)
            if not self._ended:
                os._exit(1)

    def _hear(self, message: Dict[str, Any]) -> None:
        with self._changed:
            if "group" in message:
                number, position = message["group"], message["position"]
                self._group = NewGroup(number, position, message["handles"], message["progress"])
            elif "refused" in message:
                self._refused = message["refused"]
            else:
                self._renewed = message["renew"]
            self._changed.notify_all()
        self._on_news()
