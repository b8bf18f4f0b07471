"""Exchange checkpoints between the agents of a job's pods, over mutual TLS.

A connection carries one request. It begins with ``FALCONCP``, the version, what is wanted and the rank::

    PUT   -> the buffer's first page, which holds its two records     <- a status
          -> the table of checksums, the chunks, and COMMIT or ABORT  <- a status
    GET   <- how many copies there are, and the first page of each    -> the number of one
          <- a status, and after OK the table, the chunks, and COMMIT or ABORT

The receiver of a body compares each chunk with its checksum, and writes the first page last. A body whose buffer was
written to meanwhile ends with ABORT, and a receiver that reads no COMMIT keeps nothing. A transfer that is cut off is
begun again.

The peer may be hostile: it is a pod of the same job, or an attacker that took one over. All sizes follow from a first
page that has been checked against the buffer's size, at most ``PIECE_BYTES`` of a body are in memory, and each read has
a deadline.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
import time
import zlib
from pathlib import Path
from typing import Final, Protocol

from falcon_core.wire.saves.checkpoint import CHECKS_OFFSET, PAGE_BYTES, Parts, unpack_checks, unpack_parts

MAGIC: Final = b"FALCONCP"
VERSION: Final = 1
PUT, GET = 1, 2
OK, HAVE, REFUSED, DAMAGED = 0, 1, 2, 3
COMMIT, ABORT = b"C", b"A"
PIECE_BYTES: Final = 1 << 20
READ_SECONDS: Final = 30.0  # for a piece, or an answer
REQUEST: Final = struct.Struct("<8sIII")  # magic, version, what, rank
NUMBER: Final = struct.Struct("<I")


class PeerError(Exception):
    """The error of a transfer that failed; the message says why."""


def server_context(ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context of the side that holds copies: it refuses peers without a certificate by ``ca``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return _loaded(context, ca, cert, key)


def client_context(ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context of the side that calls. The name in the certificate is the job's uid, not a host's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # ``check_peer`` compares the job's uid
    return _loaded(context, ca, cert, key)


def _loaded(context: ssl.SSLContext, ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ca)
    context.load_cert_chain(cert, key)
    return context


def check_peer(writer: asyncio.StreamWriter, job_uid: str) -> None:
    """Check that the other side shows this job's certificate. Raises :class:`PeerError`."""
    shown = writer.get_extra_info("peercert") or {}
    names = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    if names != [job_uid]:
        raise PeerError(f"the peer's certificate is of {', '.join(names) or 'no name'}, not of this job")


class Reader(Protocol):
    """The source of a body: a connection, or a file that is read like one."""

    async def readexactly(self, size: int, /) -> bytes:
        """Return exactly so many bytes."""


async def read(reader: Reader, size: int) -> bytes:
    """Read exactly so many bytes. Raises :class:`PeerError`."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, TimeoutError, OSError) as error:
        raise PeerError(f"the connection ended or stood still: {error}") from error


async def read_first(reader: asyncio.StreamReader, size: int) -> bytes:
    """Read exactly so many bytes; none where the peer ends the connection at once. Raises :class:`PeerError`."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            first = await reader.read(1)
    except (TimeoutError, OSError) as error:
        raise PeerError(f"the connection ended or stood still: {error}") from error
    return first + await read(reader, size - 1) if first else b""


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send bytes, and wait until most have left. Raises :class:`PeerError`."""
    try:
        writer.write(data)
        async with asyncio.timeout(READ_SECONDS):
            await writer.drain()
    except (TimeoutError, OSError) as error:
        raise PeerError(f"the connection ended or stood still: {error}") from error


class Pace:
    """A limit on the bytes that are sent a second, shared by all who send with it."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        """Limit to so many bytes a second; 0: no limit."""
        self.bytes_per_second = bytes_per_second
        self.taken_bytes = 0  # since it was made
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        self.taken_bytes += size
        if not self.bytes_per_second:
            return
        now = time.monotonic()
        begins = max(now, self._free_at)
        self._free_at = begins + size / self.bytes_per_second
        await asyncio.sleep(begins - now)


async def send_body(writer: asyncio.StreamWriter, file: int, parts: Parts, pace: Pace | None = None) -> bool:
    """Send the table and the chunks of a buffer; return whether it still holds the same checkpoint at the end.

    Raises :class:`PeerError`.
    """
    await send(writer, os.pread(file, parts.checks_bytes, CHECKS_OFFSET))
    at = parts.begin
    while at < parts.end:
        piece = os.pread(file, min(PIECE_BYTES, parts.end - at), at)
        if not piece:
            raise PeerError("the buffer has become shorter")
        if pace is not None:
            await pace.take(len(piece))
        await send(writer, piece)
        at += len(piece)
    # The rank may have begun its next save meanwhile: then what was sent is of two checkpoints. Notes that it adds to
    # the first page change nothing.
    known = records(file)
    same = known is not None and known[1] == parts
    await send(writer, COMMIT if same else ABORT)
    return same


async def receive_body(reader: Reader, file: int, page: bytes, parts: Parts) -> None:
    """Receive a checkpoint into a buffer, which holds it, whole and compared, only when this returns.

    Raises:
        PeerError: it did not arrive, or is damaged. The buffer then holds nothing.
        OSError: the buffer cannot be written.
    """
    await receive_chunks(reader, file, parts)
    write_page(file, page)


async def receive_chunks(reader: Reader, file: int, parts: Parts) -> None:
    """Receive a checkpoint into a buffer, which holds nothing before its first page is written (``write_page``).

    Raises:
        PeerError: it did not arrive, or is damaged.
        OSError: the buffer cannot be written.
    """
    # Without its first page the buffer holds nothing, whatever happens until the end.
    _put(file, bytes(PAGE_BYTES), 0)
    table = await read(reader, parts.checks_bytes)
    sums = unpack_checks(table, parts)
    if sums is None:
        raise PeerError("the table of checksums is damaged")
    _put(file, table, CHECKS_OFFSET)
    at = parts.begin
    for number, expected in enumerate(sums):
        stop, crc = min(at + parts.chunk_bytes, parts.end), 0
        while at < stop:
            piece = await read(reader, min(PIECE_BYTES, stop - at))
            crc = zlib.crc32(piece, crc)
            _put(file, piece, at)
            at += len(piece)
        if crc != expected:
            raise PeerError(f"chunk {number + 1} of {parts.chunks} is damaged")
    # Each chunk was right when it was sent, but only the sender knows whether all are of one checkpoint.
    if await read(reader, 1) != COMMIT:
        raise PeerError("the buffer was written to while it was copied")


def write_page(file: int, page: bytes) -> None:
    """Write a buffer's first page: from now on the buffer holds a checkpoint. Raises OSError."""
    _put(file, page, 0)


def records(file: int) -> tuple[bytes, Parts] | None:
    """Return the first page of an open buffer, and its decoded records; None where there is no whole checkpoint."""
    page = os.pread(file, PAGE_BYTES, 0)
    parts = unpack_parts(page, os.fstat(file).st_size)
    return None if parts is None else (page, parts)


def _put(file: int, piece: bytes, offset: int) -> None:
    view = memoryview(piece)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
