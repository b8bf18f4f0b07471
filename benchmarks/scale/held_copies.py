"""A holder of checkpoints in a process of its own, as in an agent, and a peer that asks it."""

from __future__ import annotations

import asyncio
import datetime as dt
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from falcon_agent.checkpoint import protocol
from falcon_agent.checkpoint.client import Peer, offered
from falcon_agent.checkpoint.protocol import PeerError
from falcon_agent.checkpoint.server import Copies, Holder
from falcon_operator.bus import certs

JOB: Final = "11111111-1111-4111-8111-111111111111"
BUFFER_BYTES: Final = 1 << 20
_spawning: Final = get_context("spawn")


def _hold(folder: Path, port: Connection) -> None:
    """Run the holder until this process is ended."""

    async def serve() -> None:
        (folder / "copies").mkdir()
        copies = Copies(folder / "copies", 1, BUFFER_BYTES)
        copies.make()
        trusted = protocol.server_context(folder / "ca", folder / "cert", folder / "key")
        port.send(await Holder(copies, JOB, lambda: trusted, lambda: {0}).start("127.0.0.1"))
        await asyncio.get_running_loop().create_future()

    asyncio.run(serve())


class HolderProcess:
    """The process. Its address space has nothing but the holder."""

    def __init__(self, folder: Path) -> None:
        """Write the certificates of a job into the folder, which this makes."""
        folder.mkdir()
        now = dt.datetime.now(dt.UTC)
        authority = certs.new_authority(now, certs.JOBS)
        job = certs.issue_agents(authority, JOB, now)
        for name, content in (("ca", authority.cert), ("cert", job.cert), ("key", job.key)):
            (folder / name).write_bytes(content)
        self._trusted = protocol.client_context(folder / "ca", folder / "cert", folder / "key")
        self._port, there = _spawning.Pipe()
        self._process = _spawning.Process(target=_hold, args=(folder, there), daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._process.start()
        self.port = self._port.recv()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.join()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def answers(self) -> bool:
        """Check whether a peer of the job is answered what copies there are."""
        peer = Peer(host="127.0.0.1", port=self.port, job_uid=JOB, context=self._trusted)
        try:
            asyncio.run(offered(peer, 0, BUFFER_BYTES))
        except (PeerError, OSError, TimeoutError):
            return False
        return True
