"""The write-back under a virtual clock: ``folder_driver``, one command a line, one reply a line.

The memory folders and the durable one are real; time passes where a test says so, and a replica may be killed at any of
its changes to the durable folder.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import msgspec

from tests.integration.folder.trees import read_tree

PROGRAM = Path(os.environ.get("SHIM_TEST_OUT", "")) / "folder_driver"


class Round(msgspec.Struct):
    """What a replica says of a round; ``crashed``: it was killed in it."""

    files: int = 0  # changes that are not durable yet
    bytes: int = 0  # of them
    error: str = ""
    over: bool = False  # after a flush: the process would end now
    crashed: bool = False


class Driver:
    """All copying processes of a job."""

    tick_seconds = 1.0
    ticks = 90
    speaks_of_now = True

    def __init__(self) -> None:
        assert PROGRAM.is_file(), f"{PROGRAM} is not built: run the tests through make test-integration"
        self._process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, replica: int, memory: Path, durable: Path, **options: object) -> str:
        """Fill a replica's memory; return the error."""
        given = [f"{name}={value}" for name, value in options.items()]
        return str(self._say("start", replica, memory, durable, *given)["error"])

    def round(self, replica: int) -> Round:
        return msgspec.convert(self._say("round", replica), Round)

    def advance(self, seconds: float) -> None:
        self._say("advance", f"{seconds:.3f}")

    def keep_open(self, replica: int, paths: list[str]) -> None:
        """Say which of a replica's files are open for writing: all of them."""
        self._say("open", replica, *paths)

    def tell(self, replica: int, word: str) -> None:
        """Say one of ``gone``, ``fail``, ``well``, ``flush`` and ``crash``."""
        self._say(word, replica)

    def look(self, durable: Path) -> dict[str, str | bytes]:
        """Return the durable tree, which changes in no other command."""
        return read_tree(durable)

    def crash_at(self, replica: int, change: int) -> None:
        """Kill a replica before its change of that number to the durable folder, from 1; never for 0."""
        self._say("crash_at", replica, change)

    def _say(self, *words: object) -> dict[str, Any]:
        line = " ".join(_quoted(word) for word in words)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the driver ended at: {line}"
        reply: dict[str, Any] = msgspec.json.decode(answer)
        assert "wrong" not in reply, f"{line}: {reply}"
        return reply


def _quoted(word: object) -> str:
    return quote(os.fsencode(str(word)), safe="/._=-").replace("~", "%7E") or "%"
