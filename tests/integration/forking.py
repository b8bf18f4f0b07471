"""Ranks of real PyTorch that are forked from one process, for tests in which it does not matter how a rank began."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.integration.ports import free_port

PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
FORKED = Path(__file__).parent / "forked_ranks.py"


class Rank(msgspec.Struct, frozen=True):
    """The files of a rank's output (``stderr``: None leaves it to the test's), and what only its environment has."""

    environment: dict[str, str]
    stdout: Path
    stderr: Path | None = None


class _Zygote:
    """The process of this test process from which all ranks are forked. It ends when this process does."""

    def __init__(self) -> None:
        if not PYTHON.is_file():
            pytest.fail("PyTorch is not installed: run the tests through make test-integration")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [str(PYTHON), "-W", "ignore", str(FORKED), str(theirs.fileno())]
            subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def fork(self, training: object, pipe: int) -> int:
        """Begin a training; return its process id. ``pipe``: where it writes the exit codes of its ranks."""
        socket.send_fds(self._socket, [msgspec.json.encode(training, enc_hook=str)], [pipe, 2])
        return int(self._socket.recv(20))


_zygote = functools.cache(_Zygote)


class Ranks:
    """The ranks of one training on this machine; where they meet is known to them.

    ``environment``: what else they have in common. What a process reads before it runs a program, as LD_PRELOAD and the
    variables of OpenMP, has no effect.
    """

    def __init__(self, command: Sequence[str], ranks: Sequence[Rank], environment: Mapping[str, str]) -> None:
        common = {
            **os.environ,
            "WORLD_SIZE": str(len(ranks)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            **environment,
        }
        placed = [
            msgspec.structs.replace(each, environment={"RANK": str(rank), "LOCAL_RANK": str(rank), **each.environment})
            for rank, each in enumerate(ranks)
        ]
        self._pipe, theirs = os.pipe()
        try:
            self._pid = _zygote().fork({"command": command, "environment": common, "ranks": placed}, theirs)
        finally:
            os.close(theirs)
        self._said = b""
        self._over = False

    def wait(self, timeout_seconds: float) -> list[int]:
        """Return the exit codes of all ranks, in their order. Raises TimeoutError; the ranks are killed then."""
        try:
            self._read(timeout_seconds)
        finally:
            self.kill()
        codes: list[int] = json.loads(self._said.splitlines()[1])
        return codes

    def pids(self) -> list[int]:
        """Return the process ids of the ranks. Raises TimeoutError."""
        self._read(20, until=b"\n")
        pids: list[int] = json.loads(self._said.splitlines()[0])
        return pids

    def kill(self) -> None:
        """Kill the ranks that are left, and the process that forked them."""
        with contextlib.suppress(TimeoutError):
            self._read(0)  # they may have ended by themselves
        if not self._over:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self._read(20)

    def _read(self, timeout_seconds: float, until: bytes | None = None) -> None:
        """Read what the process says that forked the ranks, until it has said a text; None: until it has ended."""
        deadline = time.monotonic() + timeout_seconds
        while not self._over and (until is None or until not in self._said):
            there, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not there:
                raise TimeoutError(f"the ranks have not ended within {timeout_seconds:.0f} s")
            piece = os.read(self._pipe, 65536)
            self._said += piece
            if not piece:
                self._over = True
                os.close(self._pipe)


class Ended(msgspec.Struct, frozen=True):
    """How a training's ranks ended, by rank."""

    codes: list[int]
    stdout: list[str]
    stderr: list[str]


def run(
    command: Sequence[str], own: Sequence[Mapping[str, str]], environment: Mapping[str, str], timeout_seconds: float
) -> Ended:
    """Run ranks to their end: what only a rank's environment has, and what they have in common.

    Raises TimeoutError.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"output-{rank}" for rank in range(len(own))]
        errors = [Path(folder) / f"errors-{rank}" for rank in range(len(own))]
        ranks = [Rank(dict(each), *files) for each, *files in zip(own, outputs, errors, strict=True)]
        codes = Ranks(command, ranks, environment).wait(timeout_seconds)
        return Ended(codes, [file.read_text() for file in outputs], [file.read_text() for file in errors])
