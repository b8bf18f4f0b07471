"""Carry the list of a job's imports from a pod that trains to the pods that stand by.

A rank's interpreter writes down its imports (``falcon_start.imports``). Its agent reports them when the operator's plan
asks for them (``Plan.imports_of``), and the operator hands them on as the command ``imports``. They come from a
tenant's pod: both ends bound them, and the operator does not look inside.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Final

import msgspec
from msgspec import Meta

IMPORTS_VERSION: Final = 1
MOST_PACKED: Final = 48 << 10  # bytes; the imports of PyTorch, its compiler and NumPy take 10 KiB
MOST_BYTES: Final = 1 << 20  # of the file

Packed = Annotated[bytes, Meta(max_length=MOST_PACKED)]


class Imports(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state: what standbys in pods without a replica import."""

    version: int = IMPORTS_VERSION
    epoch: int  # the leader that wrote it
    packed: Packed


def pack(record: bytes) -> bytes:
    """Compress a rank's record; empty where it is too long to be sent."""
    packed = zlib.compress(record, 9) if 0 < len(record) <= MOST_BYTES else b""
    return packed if len(packed) <= MOST_PACKED else b""


def unpack(packed: bytes) -> bytes:
    """Return the record.

    Raises:
        ValueError: the bytes are no record, or one beyond the bounds.
    """
    unpacker = zlib.decompressobj()
    try:
        record = unpacker.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"no record of imports: {error}") from error
    if not unpacker.eof:
        raise ValueError("the record of imports is longer than it may be, or cut off")
    return record
