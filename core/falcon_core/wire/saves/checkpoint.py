"""Define what the agent and the operator know of a pod's checkpoints in memory.

A rank's client writes them (``agent/falcon_torch/store/format.py`` has the layout); the agent makes the buffers, reads
the commit records in them, and reports which steps a rank holds. Nothing here reads the saved state itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

CHECKPOINT_DIR: Final = "/falcon/checkpoint"
COPIES_DIR: Final = "/falcon/copies"  # of another pod's checkpoints; the agent alone has it
BUFFERS: Final = 2  # of a rank
PAGE_BYTES: Final = 4096
LEAST_BUFFER_BYTES: Final = 4 << 20
MAX_HELD: Final = 2048  # steps in a report: of the most ranks that a pod has
MAGIC: Final = b"FALCONCK"
VERSION: Final = 1
VERIFIED_MAGIC: Final = b"FALCONVF"
VERIFIED_OFFSET: Final = 2048
NOTES_MAGIC: Final = b"FALCONNT"
NOTES_OFFSET: Final = 3072
LOADED_MAGIC: Final = b"FALCONLD"
LOADED_OFFSET: Final = 3200
SAVING_MAGIC: Final = b"FALCONSV"
SAVING_OFFSET: Final = 3240
LOADING_MAGIC: Final = b"FALCONTL"
LOADING_OFFSET: Final = 3264
CHECKS_OFFSET: Final = 4096
LEAST_CHUNK_BYTES: Final = 1 << 20  # the client's are larger; smaller ones would make the table large
_COMMIT: Final = struct.Struct("<8sIIQIIQQQQQQQI")
_CRC: Final = struct.Struct("<I")
_VERIFIED: Final = struct.Struct("<8sQII")
_NOTES: Final = struct.Struct("<8sIQ")
_LOADED: Final = struct.Struct("<8sQIQI")
_TIME: Final = struct.Struct("<8sQI")
COMMIT_BYTES: Final = _COMMIT.size + _CRC.size

Source = Literal["Nothing", "Memory", "Folder", "Replica", "Copy"]  # the first four in the client's own order
SOURCES: Final[tuple[Source, ...]] = ("Nothing", "Memory", "Folder", "Replica")
Bounded = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Microseconds = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]  # as a record holds them: over an hour


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A step that a rank holds in memory."""

    rank: Annotated[int, Meta(ge=0, le=1 << 32)]
    step: Bounded
    unix_ms: Bounded  # when it was saved, by its node's clock
    generation: Bounded = 0  # that wrote it
    in_folder: bool = False  # a folder that outlives the pod has it, too
    listens: bool = False  # the script asks in each step whether Falcon wants a checkpoint
    replicated: bool = False  # the same local rank of each other pod holds the same
    saving_us: Microseconds = 0  # that training waited for it; 0: not known


class Loaded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The step from which a rank of the pod's generation has begun, and where it found it."""

    rank: Annotated[int, Meta(ge=0, le=1 << 32)]
    step: Bounded  # 0: there was none
    source: Source
    keeper: Annotated[str, Meta(max_length=64)] = ""  # uid of the pod that had the copy
    loading_us: Microseconds = 0  # that it took; 0: not known


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Where the parts of a whole checkpoint lie in its buffer, bytes, and what identifies it."""

    rank: int
    step: int
    generation: int
    sequence: int  # grows by one with each save of the rank
    unix_ns: int
    chunk_bytes: int
    begin: int  # of the chunks
    end: int
    checks_crc: int  # of the table of the chunks' checksums

    @property
    def chunks(self) -> int:
        """Return the number of chunks, and so of checksums."""
        return -(-(self.end - self.begin) // self.chunk_bytes)

    @property
    def checks_bytes(self) -> int:
        """Return the size of the table of checksums, which lies at ``CHECKS_OFFSET``."""
        return _CRC.size * self.chunks


def buffer_name(local_rank: int, number: int) -> str:
    """Return the name of one of a rank's buffers."""
    return f"rank-{local_rank}.{number}"


def lock_name(local_rank: int) -> str:
    """Return the name of the file that the process holds which uses a rank's buffers."""
    return f"rank-{local_rank}.lock"


def buffer_bytes(memory_bytes: int, ranks: int) -> int:
    """Return the size of each buffer [bytes] where this number of ranks shares the memory: whole pages."""
    return memory_bytes // (BUFFERS * ranks) // PAGE_BYTES * PAGE_BYTES


def least_memory_bytes(ranks: int) -> int:
    """Return the least memory [bytes] that is of any use to this number of ranks."""
    return BUFFERS * ranks * LEAST_BUFFER_BYTES


def unpack_sequence(page: bytes) -> int:
    """Read the number of a rank's save from the beginning of a buffer; -1 where it holds no whole checkpoint."""
    return -1 if unpack_held(page) is None else int(_COMMIT.unpack_from(page)[7])


def unpack_held(page: bytes) -> Held | None:
    """Read a commit record from the beginning of a buffer; None where the buffer holds no whole checkpoint."""
    raw = page[: _COMMIT.size]
    if len(page) < COMMIT_BYTES or zlib.crc32(raw) != _CRC.unpack_from(page, _COMMIT.size)[0]:
        return None
    magic, version, _, generation, rank, _, step, sequence, unix_ns, *_ = _COMMIT.unpack(raw)
    most = (1 << 63) - 1
    if magic != MAGIC or version != VERSION or max(generation, step, unix_ns) > most:
        return None
    in_folder, flags = _unpack_notes(page)
    there, listens, replicated = in_folder == sequence, bool(flags & 1), bool(flags & 2)
    saving_us = _unpack_time(page, SAVING_OFFSET, SAVING_MAGIC, sequence)
    return Held(rank, step, unix_ns // 1_000_000, generation, there, listens, replicated, saving_us)


def _unpack_notes(page: bytes) -> tuple[int | None, int]:
    """Read the notes of a buffer: the newest sequence that is in a folder, and two flags.

    1: the script listens; 2: the state is replicated.
    """
    raw = page[NOTES_OFFSET : NOTES_OFFSET + _NOTES.size]
    if len(page) < PAGE_BYTES or zlib.crc32(raw) != _CRC.unpack_from(page, NOTES_OFFSET + _NOTES.size)[0]:
        return None, 0
    magic, flags, in_folder = _NOTES.unpack(raw)
    return (in_folder, flags) if magic == NOTES_MAGIC else (None, 0)


def _unpack_time(page: bytes, offset: int, magic: bytes, of: int) -> int:
    """Read the time of a save or a load [µs]; 0 if there is none for this sequence or generation."""
    raw = page[offset : offset + _TIME.size]
    if len(page) < PAGE_BYTES or zlib.crc32(raw) != _CRC.unpack_from(page, offset + _TIME.size)[0]:
        return 0
    found, key, microseconds = _TIME.unpack(raw)
    return microseconds if (found, key) == (magic, of) else 0


def unpack_loaded(page: bytes) -> tuple[int, Loaded] | None:
    """Read the step that a rank has loaded, and its generation; None if it has reported none."""
    raw = page[LOADED_OFFSET : LOADED_OFFSET + _LOADED.size]
    if len(page) < PAGE_BYTES or zlib.crc32(raw) != _CRC.unpack_from(page, LOADED_OFFSET + _LOADED.size)[0]:
        return None
    magic, generation, rank, step, source = _LOADED.unpack(raw)
    if magic != LOADED_MAGIC or source >= len(SOURCES) or step >= 1 << 63:
        return None
    loading_us = _unpack_time(page, LOADING_OFFSET, LOADING_MAGIC, generation)
    return generation, Loaded(rank, step, SOURCES[source], loading_us=loading_us)


def unpack_parts(page: bytes, size: int) -> Parts | None:
    """Read the two records of a buffer of ``size`` bytes; None unless it holds a whole checkpoint with checksums.

    The page may come from a hostile peer: all parts are within the buffer, and their table of checksums is small.
    """
    if len(page) != PAGE_BYTES or unpack_held(page) is None:
        return None
    _, _, chunk_bytes, generation, rank, world_size, step, sequence, unix_ns, begin, index, data, end, _ = (
        _COMMIT.unpack_from(page)
    )
    # The record "verified" counts only for the commit that it names.
    raw = page[VERIFIED_OFFSET : VERIFIED_OFFSET + _VERIFIED.size]
    if zlib.crc32(raw) != _CRC.unpack_from(page, VERIFIED_OFFSET + _VERIFIED.size)[0]:
        return None
    magic, of, chunks, checks_crc = _VERIFIED.unpack(raw)
    if magic != VERIFIED_MAGIC or of != sequence or chunk_bytes < LEAST_CHUNK_BYTES or rank >= world_size:
        return None
    parts = Parts(rank, step, generation, sequence, unix_ns, chunk_bytes, begin, end, checks_crc)
    in_order = CHECKS_OFFSET + parts.checks_bytes <= begin and begin + index <= data <= end <= size
    return parts if in_order and 0 < parts.chunks == chunks else None


def unpack_checks(table: bytes, parts: Parts) -> tuple[int, ...] | None:
    """Read the table of checksums; None where it is not what was written."""
    if len(table) != parts.checks_bytes or zlib.crc32(table) != parts.checks_crc:
        return None
    return struct.unpack(f"<{parts.chunks}I", table)


def spread(held: Iterable[Held], ranks: int, procs: int) -> list[Held]:
    """Return what the ranks can have: what one says that the same local rank of each other pod holds, those have.

    ``procs``: ranks of a pod.
    """
    found = list(held)
    having = {(each.rank, each.step, each.generation) for each in found}
    for each in [each for each in found if each.replicated]:
        for rank in range(each.rank % procs, ranks, procs):
            if (rank, each.step, each.generation) not in having:
                having.add((rank, each.step, each.generation))
                found.append(msgspec.structs.replace(each, rank=rank))
    return found


def newest_of_all(held: Iterable[Held], ranks: int) -> Held | None:
    """Return the newest step that all of the job's ranks hold, by its oldest copy; None where there is none."""
    whole = _steps_of_all(held, ranks)
    if not whole:
        return None
    newest = max(whole, key=lambda by_rank: (by_rank[0].step, by_rank[0].generation))
    return min(newest.values(), key=lambda each: each.unix_ms)


def saved_at(held: Iterable[Held], ranks: int) -> list[float]:
    """Return when each step was saved that all of the job's ranks hold, by its newest copy, unix seconds."""
    return [max(each.unix_ms for each in by_rank.values()) / 1000 for by_rank in _steps_of_all(held, ranks)]


def _steps_of_all(held: Iterable[Held], ranks: int) -> list[dict[int, Held]]:
    """Return what each rank holds of each step that all ranks hold, by rank."""
    copies: dict[tuple[int, int], dict[int, Held]] = {}
    for each in held:
        if each.rank < ranks:
            copies.setdefault((each.step, each.generation), {})[each.rank] = each
    return [by_rank for by_rank in copies.values() if len(by_rank) == ranks]
