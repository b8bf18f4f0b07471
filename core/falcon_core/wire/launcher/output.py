"""Define a rank's newest output: one file per process, written by the launcher, read with ``pread``.

Layout (little-endian)::

    offset 0    header, HEADER_BYTES long
       0  u64  magic            OUTPUT_MAGIC ("FALCOPUT")
       8  u32  version          OUTPUT_VERSION; a reader refuses any other
      12  u32  header_bytes     HEADER_BYTES
      16  u64  capacity         CAPACITY
      24  u32  generation       the life of the job's process group
      28  i32  local_rank
      32  u64  made_unix_ns     when the file was made, before its process was started
      64  u64  total            bytes that were ever written; alone in a cache line with the time after it
      72  u64  written_unix_ns  when the newest of them were
    offset HEADER_BYTES: standard output and error as they came, with a newline where one of them follows on an
        unfinished line of the other; byte number i (from 0) lies at i % capacity.

The writer writes at most MOST_AHEAD bytes before it counts them in ``total``, so that the bytes from ``total`` −
READABLE on are whole. All processes of a training container may write in the file's folder: nothing in it is certain.
"""

from __future__ import annotations

import struct

import msgspec

OUTPUT_MAGIC = int.from_bytes(b"FALCOPUT", "little")
OUTPUT_VERSION = 1
HEADER_BYTES = 4096
CAPACITY = 1 << 20
MOST_AHEAD = 1 << 16
READABLE = CAPACITY - MOST_AHEAD
HEADER_READ = 80  # the fields
FIXED_BYTES = 64  # of them, which never change
MOST_TOTAL = 1 << 60
_GROWING = struct.Struct("<QQ")
_FIELDS = struct.Struct("<QIIQIiQ24xQQ")


class OutputFormatError(ValueError):
    """A file that is no rank's output, or of another version."""


class OutputHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a header that differ from file to file."""

    generation: int
    local_rank: int
    made_unix_ns: int
    total: int
    written_unix_ns: int


def parse_header(raw: bytes) -> OutputHeader:
    """Read a header from the first HEADER_READ bytes of a file. Raises OutputFormatError."""
    if len(raw) < HEADER_READ:
        raise OutputFormatError(f"the file has {len(raw)} bytes of a header's {HEADER_READ}")
    magic, version, header_bytes, capacity, generation, local_rank, made, total, written = _FIELDS.unpack_from(raw)
    if magic != OUTPUT_MAGIC:
        raise OutputFormatError("the file has not been made by the launcher")
    if (version, header_bytes, capacity) != (OUTPUT_VERSION, HEADER_BYTES, CAPACITY):
        raise OutputFormatError(
            f"version {version} with {header_bytes} + {capacity} bytes: use the launcher of this agent's release"
        )
    if total > MOST_TOTAL:
        raise OutputFormatError(f"{total} bytes of output cannot be")
    return OutputHeader(
        generation=generation, local_rank=local_rank, made_unix_ns=made, total=total, written_unix_ns=written
    )


def parse_growing(raw: bytes) -> tuple[int, int]:
    """Return ``total`` and ``written_unix_ns`` of a header whose other fields are known. Raises OutputFormatError."""
    if len(raw) < HEADER_READ:
        raise OutputFormatError(f"the file has {len(raw)} bytes of a header's {HEADER_READ}")
    total, written_unix_ns = _GROWING.unpack_from(raw, FIXED_BYTES)
    return total, written_unix_ns


def pack_header(header: OutputHeader) -> bytes:
    """Write a header as the launcher does."""
    return _FIELDS.pack(
        OUTPUT_MAGIC,
        OUTPUT_VERSION,
        HEADER_BYTES,
        CAPACITY,
        header.generation,
        header.local_rank,
        header.made_unix_ns,
        header.total,
        header.written_unix_ns,
    )
