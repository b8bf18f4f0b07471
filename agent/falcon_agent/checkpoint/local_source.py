"""Restore ranks from the pod's own copies: it kept those of the role that it has now.

They are compared and taken over as if a peer had sent them (``peers.receive_body``), without the way through TLS.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from falcon_agent.checkpoint import protocol
from falcon_agent.checkpoint.protocol import PeerError
from falcon_agent.files.untrusted import open_regular
from falcon_core.wire.saves.checkpoint import CHECKS_OFFSET, PAGE_BYTES, Parts, unpack_parts


async def take(copies: Sequence[Path], rank: int, buffers: Sequence[Path]) -> list[int]:
    """Fill a rank's buffers with the copies of it; return the steps, the newest first.

    A buffer into which something damaged came holds nothing afterwards.

    Raises:
        PeerError: a copy is damaged, or no checkpoint of this rank that fits.
        OSError: a file cannot be read or written.
    """
    return [await _take(copy, rank, buffer) for copy, buffer in zip(copies, buffers, strict=False)]


async def _take(copy: Path, rank: int, buffer: Path) -> int:
    source = open_regular(copy)
    try:
        target = open_regular(buffer, os.O_RDWR)
        try:
            known, size = protocol.records(source), os.fstat(target).st_size
            # The buffer has a fixed size and belongs to one rank: refuse before a byte of it is overwritten.
            if known is None or known[1].rank != rank or unpack_parts(known[0], size) is None:
                raise PeerError(f"the copy in {copy.name} is no checkpoint of rank {rank} that fits into {size} bytes")
            page, parts = known
            await protocol.receive_body(_Body(source, page, parts), target, page, parts)
            return parts.step
        finally:
            os.close(target)
    finally:
        os.close(source)


class _Body:
    """A copy's table and chunks, and whether it stayed what it was: in the order in which a peer sends them."""

    def __init__(self, file: int, page: bytes, parts: Parts) -> None:
        self._file, self._page, self._parts = file, page, parts
        self._at = 0  # 0: the table is next

    async def readexactly(self, size: int, /) -> bytes:
        """Return the next bytes. Raises OSError where the copy has become shorter."""
        await asyncio.sleep(0)  # the loop serves other pods as well
        if self._at >= self._parts.end:
            same = os.pread(self._file, PAGE_BYTES, 0) == self._page
            return protocol.COMMIT if same else protocol.ABORT
        piece = os.pread(self._file, size, self._at or CHECKS_OFFSET)
        if len(piece) < size:
            raise OSError("the copy has become shorter")
        self._at = self._at + size if self._at else self._parts.begin
        return piece
