"""Ranks of real PyTorch that are forked from one process, for tests in which it does not matter how a rank began."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
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


class Ranks:
    """The ranks of one training on this machine; where they meet is known to them.

    ``environment``: what else they have in common.
    """

    def __init__(self, command: Sequence[str], ranks: Sequence[Rank], environment: Mapping[str, str]) -> None:
        if not PYTHON.is_file():
            pytest.fail("PyTorch is not installed: run the tests through make test-integration")
        self._process = subprocess.Popen(
            [str(PYTHON), "-W", "ignore", str(FORKED), *command],
            env={
                **os.environ,
                "WORLD_SIZE": str(len(ranks)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        placed = [
            msgspec.structs.replace(each, environment={"RANK": str(rank), "LOCAL_RANK": str(rank), **each.environment})
            for rank, each in enumerate(ranks)
        ]
        self._process.stdin.write(msgspec.json.encode(placed, enc_hook=str))
        self._process.stdin.close()

    def wait(self, timeout_seconds: float) -> list[int]:
        """Return the exit codes of all ranks, in their order. Raises TimeoutExpired; the ranks are killed then."""
        try:
            self._process.wait(timeout_seconds)
        finally:
            self.kill()
        assert self._process.stdout is not None
        codes: list[int] = json.loads(self._process.stdout.read())
        return codes

    def kill(self) -> None:
        """Kill the ranks that are left, and the process that forked them."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Ended(msgspec.Struct, frozen=True):
    """How a training's ranks ended, by rank."""

    codes: list[int]
    stdout: list[str]
    stderr: list[str]


def run(
    command: Sequence[str], own: Sequence[Mapping[str, str]], environment: Mapping[str, str], timeout_seconds: float
) -> Ended:
    """Run ranks to their end: what only a rank's environment has, and what they have in common.

    Raises TimeoutExpired.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"output-{rank}" for rank in range(len(own))]
        errors = [Path(folder) / f"errors-{rank}" for rank in range(len(own))]
        ranks = [Rank(dict(each), *files) for each, *files in zip(own, outputs, errors, strict=True)]
        codes = Ranks(command, ranks, environment).wait(timeout_seconds)
        return Ended(codes, [file.read_text() for file in outputs], [file.read_text() for file in errors])
