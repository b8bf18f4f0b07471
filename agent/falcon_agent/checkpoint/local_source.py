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
from falcon_core.wire.saves.checkpoint import CHECKS_OFFSET, Parts


async def take(copies: Sequence[Path], wanted: Parts, buffer: Path) -> bytes:
    """Copy one of this pod's copies into a rank's buffer; return its first page, without which that holds nothing.

    Raises:
        PeerError: the copy is damaged, or not there any more.
        OSError: a file cannot be read or written.
    """
    for copy in copies:
        source = open_regular(copy)
        try:
            known = protocol.records(source)
            if known is not None and known[1] == wanted:
                await _take(source, wanted, buffer)
                return known[0]
        finally:
            os.close(source)
    raise PeerError(f"this pod no longer has rank {wanted.rank}'s checkpoint of step {wanted.step}")


async def _take(source: int, parts: Parts, buffer: Path) -> None:
    target = open_regular(buffer, os.O_RDWR)
    try:
        # The buffer has a fixed size: refuse before a byte of it is overwritten.
        if parts.end > os.fstat(target).st_size:
            raise PeerError(f"rank {parts.rank}'s checkpoint of step {parts.step} does not fit into its buffer")
        await protocol.receive_chunks(_Body(source, parts), target, parts)
    finally:
        os.close(target)


class _Body:
    """A copy's table and chunks, and whether it stayed what it was: in the order in which a peer sends them."""

    def __init__(self, file: int, parts: Parts) -> None:
        self._file, self._parts = file, parts
        self._at = 0  # 0: the table is next

    async def readexactly(self, size: int, /) -> bytes:
        """Return the next bytes. Raises OSError where the copy has become shorter."""
        await asyncio.sleep(0)  # the loop serves other pods as well
        if self._at >= self._parts.end:
            known = protocol.records(self._file)
            return protocol.COMMIT if known is not None and known[1] == self._parts else protocol.ABORT
        piece = os.pread(self._file, size, self._at or CHECKS_OFFSET)
        if len(piece) < size:
            raise OSError("the copy has become shorter")
        self._at = self._at + size if self._at else self._parts.begin
        return piece
