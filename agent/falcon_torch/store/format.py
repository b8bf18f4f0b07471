"""Define the bytes of a checkpoint: the same in a rank's memory buffer and in a file on a volume.

All numbers are little-endian::

    0                the commit record (``Commit``), with a checksum of its own
    2048             the record "verified": which commit's chunks have checksums, and the checksum of those
    3072             the notes (``pack_notes``), in memory alone: what the agent wants to know of the buffer
    3200             what was loaded (``pack_loaded``), in memory alone: where this life of the rank began
    3328             the folder (``pack_folder``), in memory alone: where the launcher puts it when the pod ends
    4096             the checksums: CRC-32 of each chunk, 4 bytes each
    index_offset     the index: where each storage lies, and the pickled structure of the state (``state``)
    data_offset      the storages of the tensors, each aligned to 64 bytes, up to ``end``

Chunks are pieces of ``CHUNK_BYTES`` from ``index_offset`` to ``end``; the last is shorter.

**A writer that is killed at any instant harms nothing.** It writes to the buffer that does not hold the newest whole
checkpoint. It first clears the two records, then writes index and data, and writes the commit record last. So a buffer
either has a commit record whose checksum is right, and everything before it was written, or it holds nothing. The
checksums of the chunks follow behind, while training goes on. A checkpoint without them is whole, but a bit that
flipped in it would not be noticed.

The agent reads the commit record as well (``falcon_core.wire.saves.checkpoint``), and so does the launcher
(``shim/src/launch/rescue/checkpoint.cc``).
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Iterable, Iterator, NamedTuple

MAGIC = b"FALCONCK"
VERIFIED_MAGIC = b"FALCONVF"
NOTES_MAGIC = b"FALCONNT"
LOADED_MAGIC = b"FALCONLD"
FOLDER_MAGIC = b"FALCONFD"
SAVING_MAGIC = b"FALCONSV"
LOADING_MAGIC = b"FALCONTL"
VERSION = 1
VERIFIED_OFFSET = 2048
NOTES_OFFSET = 3072
LOADED_OFFSET = 3200
SAVING_OFFSET = 3240
LOADING_OFFSET = 3264
FOLDER_OFFSET = 3328
CHECKS_OFFSET = 4096
PAGE_BYTES = 4096
ALIGN_BYTES = 64
CHUNK_BYTES = 16 << 20
MOST_BYTES = 1 << 50  # of a checkpoint
_COMMIT = struct.Struct("<8sIIQIIQQQQQQQI")
_VERIFIED = struct.Struct("<8sQII")
_NOTES = struct.Struct("<8sIQ")
_LOADED = struct.Struct("<8sQIQI")
_FOLDER = struct.Struct("<8sIII")
_TIME = struct.Struct("<8sQI")
_MOST_TIME = (1 << 32) - 1  # microseconds: over an hour
_CRC = struct.Struct("<I")
RECORD_BYTES = _COMMIT.size + _CRC.size
NOTHING, FROM_MEMORY, FROM_FOLDER, FROM_REPLICA = range(4)  # where a rank found the step that it loaded
MOST_FOLDER_BYTES = PAGE_BYTES - FOLDER_OFFSET - _FOLDER.size - _CRC.size


class CheckpointError(RuntimeError):
    """The error of a checkpoint that can be neither kept nor read; the message says what to change."""


class DamagedError(CheckpointError):
    """The error of a checkpoint whose bytes are not those that were written; the message names the place."""


class Commit(NamedTuple):
    """The commit record. Times are unix nanoseconds by the node's clock, offsets and sizes are bytes."""

    generation: int  # life of the job's process group that wrote it
    rank: int
    world_size: int
    step: int
    sequence: int  # grows by one with each save of this rank
    unix_ns: int
    index_offset: int
    index_bytes: int
    data_offset: int
    end: int
    index_crc: int
    chunk_bytes: int = CHUNK_BYTES

    @property
    def chunks(self) -> int:
        """Return the number of chunks."""
        return chunk_count(self.end - self.index_offset, self.chunk_bytes)

    @property
    def name(self) -> str:
        """Return the words by which messages speak of it."""
        return f"rank {self.rank}'s checkpoint of step {self.step}"


def aligned(offset: int, to: int = ALIGN_BYTES) -> int:
    """Return the next multiple of ``to``."""
    return -(-offset // to) * to


def chunk_count(size: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the number of chunks into which these bytes are divided."""
    return -(-size // chunk_bytes)


def index_offset(capacity: int) -> int:
    """Return where the index begins: behind room for the checksums of as many chunks as so many bytes can hold."""
    return CHECKS_OFFSET + aligned(4 * chunk_count(capacity), PAGE_BYTES)


def pack_commit(commit: Commit) -> bytes:
    """Return the bytes of a commit record."""
    raw = _COMMIT.pack(
        MAGIC,
        VERSION,
        commit.chunk_bytes,
        commit.generation,
        commit.rank,
        commit.world_size,
        commit.step,
        commit.sequence,
        commit.unix_ns,
        commit.index_offset,
        commit.index_bytes,
        commit.data_offset,
        commit.end,
        commit.index_crc,
    )
    return raw + _CRC.pack(zlib.crc32(raw))


def unpack_commit(page: bytes, size: int) -> Commit | None:
    """Read the commit record of a buffer or file of ``size`` bytes; None where it holds no whole checkpoint."""
    raw = page[: _COMMIT.size]
    if len(page) < RECORD_BYTES or zlib.crc32(raw) != _CRC.unpack_from(page, _COMMIT.size)[0]:
        return None
    magic, version, chunk_bytes, *fields = _COMMIT.unpack(raw)
    if magic != MAGIC or version != VERSION:
        return None
    commit = Commit._make([*fields, chunk_bytes])
    return commit if _is_possible(commit, size) else None


def _is_possible(commit: Commit, size: int) -> bool:
    """Check whether all parts lie where they can: a checksum of a few bytes alone is no proof."""
    if not (0 < commit.chunk_bytes <= MOST_BYTES and commit.end <= min(size, MOST_BYTES)):
        return False
    in_order = commit.index_offset + commit.index_bytes <= commit.data_offset <= commit.end
    return in_order and CHECKS_OFFSET + 4 * commit.chunks <= commit.index_offset and commit.rank < commit.world_size


def pack_verified(sequence: int, checks: bytes) -> bytes:
    """Return the bytes of the record "verified" of the commit with this sequence. ``checks``: the table."""
    raw = _VERIFIED.pack(VERIFIED_MAGIC, sequence, len(checks) // 4, zlib.crc32(checks))
    return raw + _CRC.pack(zlib.crc32(raw))


def is_verified(page: bytes, commit: Commit) -> bool:
    """Check whether the chunks of this commit have checksums. Every older record stands for another sequence."""
    raw = page[VERIFIED_OFFSET : VERIFIED_OFFSET + _VERIFIED.size]
    if zlib.crc32(raw) != _CRC.unpack_from(page, VERIFIED_OFFSET + _VERIFIED.size)[0]:
        return False
    magic, sequence, chunks, _ = _VERIFIED.unpack(raw)
    return bool(magic == VERIFIED_MAGIC and sequence == commit.sequence and chunks == commit.chunks)


def pack_notes(*, listens: bool, in_folder: int, replicated: bool = False) -> bytes:
    """Return the notes of a buffer, in memory alone. They are for the agent: no load depends on them.

    ``in_folder``: the newest sequence of this buffer of which the folder has a copy. ``listens``: the script calls
    ``Checkpoint.wanted``. ``replicated``: the same local rank of any other pod holds the same.
    """
    raw = _NOTES.pack(NOTES_MAGIC, int(listens) | int(replicated) << 1, in_folder)
    return raw + _CRC.pack(zlib.crc32(raw))


def pack_loaded(*, generation: int, rank: int, step: int, source: int) -> bytes:
    """Return the record of what a rank of this generation has loaded, in memory alone; ``source``: ``FROM_MEMORY`` …"""
    raw = _LOADED.pack(LOADED_MAGIC, generation, rank, step, source)
    return raw + _CRC.pack(zlib.crc32(raw))


def pack_saving(sequence: int, seconds: float) -> bytes:
    """Return the record of how long training waited for the save with this sequence. It is for the agent alone."""
    return _pack_time(SAVING_MAGIC, sequence, seconds)


def pack_loading(generation: int, seconds: float) -> bytes:
    """Return the record of how long a rank of this generation took to load, in memory alone."""
    return _pack_time(LOADING_MAGIC, generation, seconds)


def _pack_time(magic: bytes, of: int, seconds: float) -> bytes:
    raw = _TIME.pack(magic, of, min(max(0, round(seconds * 1e6)), _MOST_TIME))
    return raw + _CRC.pack(zlib.crc32(raw))


def pack_folder(path: str, rank: int, world_size: int) -> bytes:
    """Return the record of the folder, in memory alone, that gets what is left when the pod ends.

    ``path``: absolute; "" where there is none. A path that is too long for the record is left out. ``rank``,
    ``world_size``: as the files are named there.
    """
    raw = os.fsencode(path)
    raw = raw if len(raw) <= MOST_FOLDER_BYTES else b""
    record = _FOLDER.pack(FOLDER_MAGIC, len(raw), rank, world_size) + raw
    return record + _CRC.pack(zlib.crc32(record))


def _checks_crc(page: bytes) -> int:
    return int(_VERIFIED.unpack_from(page, VERIFIED_OFFSET)[3])


def chunks_of(view: memoryview, commit: Commit) -> Iterator[memoryview]:
    """Yield the chunks of a checkpoint's bytes."""
    for start in range(commit.index_offset, commit.end, commit.chunk_bytes):
        yield view[start : min(start + commit.chunk_bytes, commit.end)]


def pack_checks(sums: Iterable[int]) -> bytes:
    """Return the table of checksums as bytes."""
    return b"".join(map(_CRC.pack, sums))


def check_index(view: memoryview, commit: Commit, where: str) -> memoryview:
    """Return the index's bytes.

    Raises:
        DamagedError: they are not those that were written.
    """
    index = view[commit.index_offset : commit.index_offset + commit.index_bytes]
    if zlib.crc32(index) != commit.index_crc:
        raise DamagedError(f"the index of {commit.name} in {where} is damaged")
    return index


def check_chunks(view: memoryview, commit: Commit, where: str) -> None:
    """Compare every chunk of a checkpoint that has checksums (``is_verified``) with its checksum.

    Raises:
        DamagedError: a chunk, or the table of checksums, is not what was written.
    """
    checks = bytes(view[CHECKS_OFFSET : CHECKS_OFFSET + 4 * commit.chunks])
    if zlib.crc32(checks) != _checks_crc(bytes(view[:PAGE_BYTES])):
        raise DamagedError(f"the table of checksums of {commit.name} in {where} is damaged")
    for number, chunk in enumerate(chunks_of(view, commit)):
        if zlib.crc32(chunk) != _CRC.unpack_from(checks, 4 * number)[0]:
            raise DamagedError(f"chunk {number + 1} of {commit.chunks} of {commit.name} in {where} is damaged")


class Sums:
    """The checksums of chunks of a stream of bytes that comes in pieces of any size."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._done: list[int] = []
        self._crc = self._filled = 0

    def add(self, piece: memoryview) -> None:
        """Add the stream's next bytes."""
        while piece:
            part = piece[: self._chunk_bytes - self._filled]
            self._crc = zlib.crc32(part, self._crc)
            self._filled += len(part)
            if self._filled == self._chunk_bytes:
                self._done.append(self._crc)
                self._crc = self._filled = 0
            piece = piece[len(part) :]

    def table(self) -> bytes:
        """Return the table of checksums of all bytes so far."""
        return pack_checks([*self._done, self._crc] if self._filled else self._done)
