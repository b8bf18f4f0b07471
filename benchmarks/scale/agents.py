"""The program that plays agents (``gateway/cmd/falcon-agents``): frames to it, and what comes back.

Each agent has a connection of its own and speaks as the real one does. What it reports and when is decided here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
_HEADER: Final = struct.Struct("<cBIqI")  # kind, urgent, agent, unix ns, length of the payload


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command that an agent got. ``payload`` is there once for all agents of a job."""

    agent: int
    unix_ns: int
    name: str
    revision: int
    payload: bytes | None


def build() -> Path:
    """Build the gateway and the player of agents. Return the folder of both."""
    made = subprocess.run(["make", "-s", "gateway-programs"], cwd=ROOT, capture_output=True, text=True, check=True)
    return Path(made.stdout.split()[-1])


class Agents:
    """The running program. ``on_command`` is called for each command that an agent gets.

    ``slower``: how many times as long as asked for an agent waits between two beats.
    """

    def __init__(self, program: Path, log: Path, on_command: Callable[[Command], None], slower: float = 1.0) -> None:
        self._program = program
        self._log = log
        self._slower = slower
        self._on_command = on_command
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._number = 0
        self.lost = 0  # streams that ended by themselves
        self.silent = 0  # times that an agent said nothing for as long as makes it lost: the program stood still
        self.why_lost = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Agents:
        self._process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL", str(self._program)),
            *("-log", str(self._log), "-slower", str(self._slower)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "GOGC": "400"},
        )
        self._reading = asyncio.create_task(self._read(), name="agents")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.wait({self._reading})
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def check(self) -> None:
        """Raise what ended the reading of what comes back, if anything did."""
        if self._reading is not None and self._reading.done():
            self._reading.result()

    def add(self, *, namespace: str, job: str, pod_uid: str, endpoint: str, tls: Path, at_ns: int) -> int:
        """Let an agent connect. Return its number."""
        self._number += 1
        names = {"namespace": namespace, "job": job, "podUid": pod_uid}
        where = {"endpoint": endpoint, "serverName": "localhost", "tls": str(tls)}
        self._write(b"A", self._number, at_ns, json.dumps({**names, **where}).encode())
        return self._number

    def report(self, agent: int, payload: bytes, *, urgent: bool, at_ns: int) -> None:
        """Hand over an agent's next report. It voids those that were handed over before and are not due yet."""
        self._write(b"R", agent, at_ns, payload, urgent)

    def end(self, agent: int) -> None:
        """Let an agent be gone at once, as one whose node has died."""
        self._write(b"E", agent, time.time_ns(), b"")

    async def drain(self) -> None:
        """Wait until the program has taken nearly everything."""
        assert self._process is not None
        assert self._process.stdin is not None
        await self._process.stdin.drain()

    def _write(self, kind: bytes, agent: int, at_ns: int, payload: bytes, urgent: bool = False) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(_HEADER.pack(kind, urgent, agent, at_ns, len(payload)) + payload)

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        frames = self._process.stdout
        while True:
            header = await frames.readexactly(_HEADER.size)
            kind, _, agent, unix_ns, length = _HEADER.unpack(header)
            payload = await frames.readexactly(length)
            if kind == b"C":
                self._on_command(_command(agent, unix_ns, payload))
            elif kind == b"S":
                self.silent += 1
            else:
                self.lost += 1
                self.why_lost = payload.decode(errors="replace")


def _command(agent: int, unix_ns: int, payload: bytes) -> Command:
    body = json.loads(payload)
    content = base64.b64decode(body["payload"]) if "payload" in body else None
    return Command(agent=agent, unix_ns=unix_ns, name=body["name"], revision=body["revision"], payload=content)
