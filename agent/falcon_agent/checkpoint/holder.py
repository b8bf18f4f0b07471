"""The copies that this pod keeps of another pod's checkpoints, and the server that takes and gives them.

The files lie in a volume that the agent alone mounts. Each rank of the other pod has two: the newest whole copy is
never the one that is written to. Which rank a file is of stands in its records.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from falcon_agent.checkpoint import peers
from falcon_agent.checkpoint.peers import PeerError
from falcon_core.wire.checkpoint import BUFFERS, PAGE_BYTES, Held, Parts, unpack_parts

MOST_CONNECTIONS = 64
_log = structlog.get_logger()


class Copies:
    """The files: ``BUFFERS`` for each rank of one other pod."""

    def __init__(self, folder: Path, ranks: int, buffer_bytes: int) -> None:
        self._folder = folder
        self._ranks = ranks
        self._bytes = buffer_bytes

    def make(self) -> None:
        """Make the files that are missing, with all their pages. Raises OSError."""
        for path in self._paths():
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._bytes)
            finally:
                os.close(file)

    @property
    def buffer_bytes(self) -> int:
        """Return the size of each file."""
        return self._bytes

    def held(self) -> list[Held]:
        """Return the checkpoints of which there is a whole copy."""
        found = [parts for path in self._paths() if (parts := self._parts(path)) is not None]
        return [Held(parts.rank, parts.step, parts.unix_ns // 1_000_000, parts.generation) for parts in found]

    def of(self, rank: int) -> list[Path]:
        """Return the files with a whole copy of a rank's checkpoint, the newest first."""
        found = [
            (parts.sequence, path) for path in self._paths() if (parts := self._parts(path)) and parts.rank == rank
        ]
        return [path for _, path in sorted(found, reverse=True)]

    def has(self, page: bytes, rank: int) -> bool:
        """Check whether there is a copy with the same records."""
        return any(self._page(path) == page for path in self.of(rank))

    def next(self, rank: int, wards: Collection[int], busy: Collection[Path]) -> Path | None:
        """Return the file for the next copy of a rank, one of ``wards``; None while all are needed for others.

        ``busy``: files into which copies are on their way.

        A file that is empty, or of a rank that is no ward any more, comes first; then the older one of the rank's own.
        """
        own = self.of(rank)
        if len(own) == BUFFERS:
            return own[-1]
        for path in self._paths():
            parts = self._parts(path)
            if path not in busy and (parts is None or parts.rank not in wards):
                return path
        return None

    def _paths(self) -> list[Path]:
        return [self._folder / f"copy-{rank}.{number}" for rank in range(self._ranks) for number in range(BUFFERS)]

    def _page(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(PAGE_BYTES)
        except OSError:
            return b""

    def _parts(self, path: Path) -> Parts | None:
        return unpack_parts(self._page(path), self._bytes)


class Holder:
    """The server. ``wards``: returns the ranks whose copies are kept here by the newest plan."""

    def __init__(
        self, copies: Copies, job_uid: str, context: ssl.SSLContext, wards: Callable[[], Collection[int]]
    ) -> None:
        self._copies = copies
        self._job_uid = job_uid
        self._context = context
        self._wards = wards
        self._server: asyncio.Server | None = None
        self._writing: set[int] = set()  # ranks
        self._busy: set[Path] = set()
        self._connections = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def start(self, host: str | None = None) -> int:
        """Listen at a port that the kernel chooses; return the port. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, 0, ssl=self._context, limit=peers.PIECE_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def quiet(self) -> None:
        """Wait until no request is under way."""
        await self._quiet.wait()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        self._quiet.clear()
        try:
            if self._connections > MOST_CONNECTIONS:
                raise PeerError(f"more than {MOST_CONNECTIONS} connections at a time")
            peers.check_peer(writer, self._job_uid)
            await self._answer(reader, writer)
        except (PeerError, OSError) as error:
            _log.warning("a peer's request has come to nothing", error=str(error))
        finally:
            self._connections -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            if not self._connections:
                self._quiet.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        magic, version, what, rank = peers.REQUEST.unpack(await peers.read(reader, peers.REQUEST.size))
        if magic != peers.MAGIC or version != peers.VERSION or what not in (peers.PUT, peers.GET):
            raise PeerError("no request of this version")
        await (self._take(reader, writer, rank) if what == peers.PUT else self._give(reader, writer, rank))

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: int) -> None:
        """Take a copy of a rank's checkpoint, of each rank one at a time."""
        page = await peers.read(reader, PAGE_BYTES)
        parts = unpack_parts(page, self._copies.buffer_bytes)
        wards = self._wards()
        if parts is None or parts.rank != rank or rank not in wards or rank in self._writing:
            await peers.send(writer, bytes([peers.REFUSED]))
            return
        if self._copies.has(page, rank):
            await peers.send(writer, bytes([peers.HAVE]))
            return
        path = self._copies.next(rank, wards, self._busy)
        if path is None:
            await peers.send(writer, bytes([peers.REFUSED]))
            return
        self._writing.add(rank)
        self._busy.add(path)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            await peers.send(writer, bytes([peers.OK]))
            await peers.receive_body(reader, file, page, parts)
        except PeerError:
            await peers.send(writer, bytes([peers.DAMAGED]))
            raise
        finally:
            os.close(file)
            self._writing.discard(rank)
            self._busy.discard(path)
        await peers.send(writer, bytes([peers.OK]))

    async def _give(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: int) -> None:
        """Give one of the copies of a rank's checkpoints to whoever of the job asks."""
        with contextlib.ExitStack() as open_files:
            found = []
            for path in self._copies.of(rank):
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                open_files.callback(os.close, file)
                known = peers.records(file)
                if known is not None:
                    found.append((file, *known))
            await peers.send(writer, peers.NUMBER.pack(len(found)) + b"".join(page for _, page, _ in found))
            if not found:
                return
            (number,) = peers.NUMBER.unpack(await peers.read(reader, peers.NUMBER.size))
            if number >= len(found):
                raise PeerError(f"copy {number} of {len(found)} is asked for")
            await peers.send(writer, bytes([peers.OK]))
            await peers.send_body(writer, *found[number])
