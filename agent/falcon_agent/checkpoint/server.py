"""Keep copies of another pod's checkpoints, and serve them to the agents of the job.

The files lie in a volume that the agent alone mounts. Each rank of the other pod has two: the copy that its agent sent
last is never the file that is written to. Its number need not be the largest: after a restart a rank goes on from a
step before its newest, and its numbers may begin again. Which rank a file is of stands in its records, and when the
copy was last sent in the file's time of change, so that both outlive this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from falcon_agent.checkpoint import protocol
from falcon_agent.checkpoint.protocol import PeerError
from falcon_core.wire.saves.checkpoint import BUFFERS, PAGE_BYTES, Held, Parts, unpack_parts
from falcon_listen.listener import Listener, listening_socket
from falcon_listen.places import Limits

MOST_CONNECTIONS = 64
# Of connections whose TLS handshake has not ended: none of them takes the place of one that shows a certificate.
HANDSHAKES = Limits(places=32, places_of_a_source=16, opened_per_second=20, opened_at_once=40)
_log = structlog.get_logger()


class Copy(NamedTuple):
    """A file for a copy, and what it holds; ``parts``: None where that is no whole checkpoint."""

    path: Path
    parts: Parts | None
    sent_ns: int = 0  # when the sender last sent it, or heard that it is here


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
                if os.fstat(file).st_size != self._bytes:  # the time of change of a copy that is there stays
                    os.posix_fallocate(file, 0, self._bytes)
            finally:
                os.close(file)

    @property
    def buffer_bytes(self) -> int:
        """Return the size of each file."""
        return self._bytes

    def held(self) -> list[Held]:
        """Return the checkpoints of which there is a whole copy."""
        found = [copy.parts for copy in self.files() if copy.parts is not None]
        return [Held(parts.rank, parts.step, parts.unix_ns // 1_000_000, parts.generation) for parts in found]

    def of(self, rank: int) -> list[Path]:
        """Return the files with a whole copy of a rank's checkpoint: first that which was sent last."""
        return [copy.path for copy in _of(self.files(), rank)]

    def files(self) -> list[Copy]:
        """Read the records of all files."""
        return [_copy(path, self._bytes) for path in self._paths()]

    def mark(self, path: Path) -> None:
        """Note that the copy in this file was sent last of all, whatever the clock does. Raises OSError."""
        now_ns = max([time.time_ns(), *(1 + copy.sent_ns for copy in self.files() if copy.path != path)])
        os.utime(path, ns=(now_ns, now_ns))

    def _paths(self) -> list[Path]:
        return [self._folder / f"copy-{rank}.{number}" for rank in range(self._ranks) for number in range(BUFFERS)]


def room(files: Sequence[Copy], rank: int, wards: Collection[int], busy: Collection[Path]) -> Path | None:
    """Return the file for the next copy of a rank, one of ``wards``; None while all are needed for others.

    ``busy``: files into which copies are on their way.

    Of a rank with two it is the older one. Otherwise an empty file comes first, then the older copies of ranks that are
    no wards any more: their new keeper may have none yet, so the only copy of a rank goes last.
    """
    own = _of(files, rank)
    if len(own) == BUFFERS:
        return own[-1].path
    free = [copy for copy in files if copy.path not in busy]
    empty = [copy for copy in free if copy.parts is None]
    others = [copy for copy in free if copy.parts is not None and copy.parts.rank not in wards]
    last = {copy.path for copy in others if copy.parts is not None and copy == _of(files, copy.parts.rank)[0]}
    others.sort(key=lambda copy: (copy.path in last, copy.sent_ns))
    return next((copy.path for copy in (*empty, *others)), None)


def _of(files: Sequence[Copy], rank: int) -> list[Copy]:
    found = [copy for copy in files if copy.parts is not None and copy.parts.rank == rank]
    return sorted(found, key=lambda copy: copy.sent_ns, reverse=True)


def _copy(path: Path, size: int) -> Copy:
    try:
        with path.open("rb") as file:
            return Copy(path, unpack_parts(file.read(PAGE_BYTES), size), os.fstat(file.fileno()).st_mtime_ns)
    except OSError:
        return Copy(path, None)


class Holder:
    """The server.

    ``context`` is asked for each new connection. ``wards``: returns the ranks whose copies are kept here by the newest
    plan. ``needed``: those whose copies are not to be overwritten though they are no wards.
    """

    def __init__(
        self,
        copies: Copies,
        job_uid: str,
        context: Callable[[], ssl.SSLContext],
        wards: Callable[[], Collection[int]],
        needed: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        self._copies = copies
        self._job_uid = job_uid
        self._context = context
        self._wards = wards
        self._needed = needed
        self._listener: Listener | None = None
        self._writing: set[int] = set()  # ranks
        self._busy: set[Path] = set()
        self._connections = 0

    async def start(self, host: str = "") -> int:
        """Listen at a port that the kernel chooses; return the port. Raises OSError.

        ``host``: "" for all addresses, by IPv4 and IPv6 at the same port.
        """
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=protocol.PIECE_BYTES, loop=loop)
            return asyncio.StreamReaderProtocol(reader, self._serve, loop=loop)

        self._listener = Listener(listening_socket(0, host), connection, HANDSHAKES, context=self._context)
        self._listener.start()
        return self._listener.port

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            # Each connection takes memory, and a peer that is taken over could open any number.
            if self._connections > MOST_CONNECTIONS:
                raise PeerError(f"more than {MOST_CONNECTIONS} connections at a time")
            protocol.check_peer(writer, self._job_uid)
            await self._answer(reader, writer)
        except (PeerError, OSError) as error:
            _log.warning("a peer's request has come to nothing", error=str(error))
        finally:
            self._connections -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await protocol.read_first(reader, protocol.REQUEST.size)
        if not request:  # the peer only looked whether this agent can be reached
            return
        magic, version, what, rank = protocol.REQUEST.unpack(request)
        if magic != protocol.MAGIC or version != protocol.VERSION or what not in (protocol.PUT, protocol.GET):
            raise PeerError("no request of this version")
        await (self._take(reader, writer, rank) if what == protocol.PUT else self._give(reader, writer, rank))

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: int) -> None:
        """Take a copy of a rank's checkpoint, of each rank one at a time."""
        page = await protocol.read(reader, PAGE_BYTES)
        parts = unpack_parts(page, self._copies.buffer_bytes)
        wards = self._wards()
        # Only copies for which this pod is the keeper are taken, and one at a time for each rank.
        if parts is None or parts.rank != rank or rank not in wards or rank in self._writing:
            await protocol.send(writer, bytes([protocol.REFUSED]))
            return
        files = self._copies.files()
        there = next((copy.path for copy in files if copy.parts == parts), None)
        if there is not None:
            self._copies.mark(there)
            await protocol.send(writer, bytes([protocol.HAVE]))
            return
        # Never overwrite the copy of a rank that was sent last: the transfer may break off.
        path = room(files, rank, {*wards, *self._needed()}, self._busy)
        if path is None:
            await protocol.send(writer, bytes([protocol.REFUSED]))
            return
        self._writing.add(rank)
        self._busy.add(path)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            await protocol.send(writer, bytes([protocol.OK]))
            await protocol.receive_body(reader, file, page, parts)
            self._copies.mark(path)
        except PeerError:
            await protocol.send(writer, bytes([protocol.DAMAGED]))
            raise
        finally:
            os.close(file)
            self._writing.discard(rank)
            self._busy.discard(path)
        await protocol.send(writer, bytes([protocol.OK]))

    async def _give(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rank: int) -> None:
        """Give one of the copies of a rank's checkpoints to the agent that asks."""
        with contextlib.ExitStack() as open_files:
            found = []
            # Hold the files open, so that a new copy that arrives meanwhile cannot take their place unseen.
            for path in self._copies.of(rank):
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                open_files.callback(os.close, file)
                known = protocol.records(file)
                if known is not None:
                    found.append((file, *known))
            await protocol.send(writer, protocol.NUMBER.pack(len(found)) + b"".join(page for _, page, _ in found))
            if not found:
                return
            chosen = await protocol.read_first(reader, protocol.NUMBER.size)
            if not chosen:  # the peer only asked what there is
                return
            (number,) = protocol.NUMBER.unpack(chosen)
            if number >= len(found):
                raise PeerError(f"copy {number} of {len(found)} is asked for")
            await protocol.send(writer, bytes([protocol.OK]))
            file, _, parts = found[number]
            await protocol.send_body(writer, file, parts)
