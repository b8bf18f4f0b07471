"""Call a holder of copies: give it a copy of a rank's checkpoint, or fetch the copies that it has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from falcon_agent.checkpoint import protocol
from falcon_agent.checkpoint.protocol import PeerError
from falcon_agent.files.untrusted import open_regular
from falcon_core.wire.saves.checkpoint import BUFFERS, PAGE_BYTES, Parts, unpack_parts

CONNECT_SECONDS = 10.0


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A holder's address, and how it is known."""

    host: str
    port: int
    job_uid: str
    context: ssl.SSLContext


async def reach(peer: Peer) -> None:
    """Check that the holder takes connections, and is an agent of the same job. Raises PeerError where it is not."""
    async with _connection(peer):
        pass


async def put(peer: Peer, buffer: Path, pace: protocol.Pace | None = None) -> bool:
    """Hand a buffer's checkpoint to the holder, at a pace; return whether it has it now.

    False where the buffer holds no whole checkpoint with checksums, or was written to meanwhile.

    Raises:
        PeerError: the holder could not be reached, or did not take it.
        OSError: the buffer cannot be read.
    """
    file = open_regular(buffer)
    try:
        known = protocol.records(file)
        # Nothing whole is in the buffer yet, or its checksums are still being computed.
        if known is None:
            return False
        page, parts = known
        async with _call(peer, protocol.PUT, parts.rank) as (reader, writer):
            await protocol.send(writer, page)
            answer = (await protocol.read(reader, 1))[0]
            # The holder knows the checkpoint by its first page, so that an agent that restarts sends nothing twice.
            if answer == protocol.HAVE:
                return True
            if answer != protocol.OK:
                raise PeerError(f"the holder does not take copies of rank {parts.rank} now")
            if not await protocol.send_body(writer, file, parts, pace):
                return False
            if (await protocol.read(reader, 1))[0] != protocol.OK:
                raise PeerError(f"rank {parts.rank}'s checkpoint of step {parts.step} arrived damaged")
            return True
    finally:
        os.close(file)


async def offered(peer: Peer, rank: int, size: int) -> list[Parts]:
    """Return which copies of a rank the holder has that fit into buffers of ``size`` bytes, the newest first.

    Raises :class:`PeerError`.
    """
    async with _call(peer, protocol.GET, rank) as (reader, _):
        return [parts for _, parts in await _pages(reader, rank, size)]


async def fetch(peer: Peer, wanted: Parts, buffer: Path) -> bytes:
    """Fetch a copy into a buffer; return its first page, without which the buffer holds nothing.

    Raises:
        PeerError: the holder could not be reached, does not have the copy any more, or sent a damaged one.
        OSError: the buffer cannot be written.
    """
    file = open_regular(buffer, os.O_RDWR)
    try:
        async with _call(peer, protocol.GET, wanted.rank) as (reader, writer):
            pages = await _pages(reader, wanted.rank, os.fstat(file).st_size)
            number = next((number for number, (_, parts) in enumerate(pages) if parts == wanted), None)
            if number is None:
                raise PeerError(f"the holder no longer has rank {wanted.rank}'s checkpoint of step {wanted.step}")
            await protocol.send(writer, protocol.NUMBER.pack(number))
            if (await protocol.read(reader, 1))[0] != protocol.OK:
                raise PeerError("the holder does not give the copy")
            await protocol.receive_chunks(reader, file, wanted)
            return pages[number][0]
    finally:
        os.close(file)


async def _pages(reader: asyncio.StreamReader, rank: int, size: int) -> list[tuple[bytes, Parts]]:
    """Read which copies of a rank the holder has. The peer may be hostile: all is checked before it is used."""
    (count,) = protocol.NUMBER.unpack(await protocol.read(reader, protocol.NUMBER.size))
    if count > BUFFERS:
        raise PeerError(f"the holder reports {count} copies of a rank")
    found = []
    for page in [await protocol.read(reader, PAGE_BYTES) for _ in range(count)]:
        # All further sizes follow from this page, so it must fit into the buffer.
        parts = unpack_parts(page, size)
        if parts is None or parts.rank != rank:
            raise PeerError(f"the holder's copy is no checkpoint of rank {rank} that fits into {size} bytes")
        found.append((page, parts))
    return found


@contextlib.asynccontextmanager
async def _call(peer: Peer, what: int, rank: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection to a holder, and send a request."""
    async with _connection(peer) as (reader, writer):
        await protocol.send(writer, protocol.REQUEST.pack(protocol.MAGIC, protocol.VERSION, what, rank))
        yield reader, writer


@contextlib.asynccontextmanager
async def _connection(peer: Peer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection to a holder that shows the job's certificate."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                peer.host, peer.port, ssl=peer.context, limit=protocol.PIECE_BYTES
            )
    except (TimeoutError, OSError) as error:
        raise PeerError(f"{peer.host}:{peer.port} cannot be reached: {error}") from error
    try:
        # TLS has shown a certificate of the authority; this shows that it is of the same job.
        protocol.check_peer(writer, peer.job_uid)
        yield reader, writer
    except BaseException:
        writer.transport.abort()  # a peer that is gone does not answer the end of TLS either
        raise
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
