"""Map a rank's two buffers in the pod's memory: files on a tmpfs volume, which Falcon's agent has made (``format``).

The agent has touched all their pages, so that they count as its memory and never as the training container's.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
import weakref
from typing import Any, List
from zlib import crc32

import torch

from falcon_torch.interruption import of_a_handler
from falcon_torch.store.format import (
    CHECKS_OFFSET,
    FOLDER_OFFSET,
    LOADED_OFFSET,
    LOADING_OFFSET,
    NOTES_OFFSET,
    PAGE_BYTES,
    RECORD_BYTES,
    SAVING_OFFSET,
    VERIFIED_OFFSET,
    Commit,
    aligned,
    chunks_of,
    index_offset,
    pack_checks,
    pack_commit,
    pack_folder,
    pack_loaded,
    pack_loading,
    pack_notes,
    pack_saving,
    pack_verified,
    unpack_commit,
)
from falcon_torch.store.mapped_copy import Copier
from falcon_torch.store.state import Frozen

COUNT = 2  # buffers of a rank
LOCK_SECONDS = 5.0  # a rank that was killed may take as long to be gone
_MAP_POPULATE = 0x8000  # linux/mman.h; Python names it from 3.10 on


class BufferUnusableError(Exception):
    """The error of a store that cannot be used, in words."""


class Buffer:
    """One buffer, mapped."""

    def __init__(self, path: str) -> None:
        """Map a buffer. Raises OSError or ValueError where the file is none."""
        self.path = path
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.capacity = os.fstat(file).st_size
            self._map = mmap.mmap(file, self.capacity, flags=mmap.MAP_SHARED | _MAP_POPULATE)
        finally:
            os.close(file)
        if self.capacity < index_offset(self.capacity) + PAGE_BYTES:
            raise ValueError(f"{path} has {self.capacity} bytes, too few for a checkpoint")
        self._content = torch.frombuffer(self._map, dtype=torch.uint8)
        self._listens, self._in_folder, self._replicated = False, 0, False
        # Private mappings that tensors may still use. The references have no callback: Python ignores what the handler
        # of a signal raises in one.
        self._views: List[weakref.ref[mmap.mmap]] = []

    @property
    def view(self) -> memoryview:
        """Return all bytes of the buffer."""
        return memoryview(self._map)

    def commit(self) -> Commit | None:
        """Read which checkpoint the buffer holds; None where it holds no whole one."""
        return unpack_commit(self._map[:PAGE_BYTES], self.capacity)

    def page(self) -> bytes:
        """Return the records."""
        return self._map[:PAGE_BYTES]

    def needed(self, frozen: Frozen) -> int:
        """Return how many bytes a buffer must have to hold a state."""
        return self._data_offset(frozen) + frozen.data_bytes

    def _data_offset(self, frozen: Frozen) -> int:
        return aligned(index_offset(self.capacity) + len(frozen.raw_index), PAGE_BYTES)

    def clear(self) -> None:
        """Forget the checkpoint that the buffer holds."""
        self._map[:RECORD_BYTES] = bytes(RECORD_BYTES)
        self._map[VERIFIED_OFFSET : VERIFIED_OFFSET + RECORD_BYTES] = bytes(RECORD_BYTES)

    def write(self, frozen: Frozen, copier: Copier, *, began: float, **identity: int) -> Commit:
        """Write a state that fits (``needed``).

        ``began``: when training began to wait, by ``time.perf_counter``. ``identity``: the commit's fields but for
        places and checksums.
        """
        # Tensors that were loaded may still be views of this buffer: they get pages of their own before it is
        # overwritten.
        self._part_from_views()
        self.clear()
        begin, data = index_offset(self.capacity), self._data_offset(frozen)
        self._map[begin : begin + len(frozen.raw_index)] = frozen.raw_index
        places = [(source, self._content[data + at : data + at + source.numel()]) for at, source in frozen.storages]
        copier.copy(places)
        commit = Commit(
            index_offset=begin,
            index_bytes=len(frozen.raw_index),
            data_offset=data,
            end=data + frozen.data_bytes,
            index_crc=crc32(frozen.raw_index),
            unix_ns=time.time_ns(),
            **identity,
        )
        # First, so that what a holder has copied stays as it was: the record of the commit is the last.
        cost = pack_saving(commit.sequence, time.perf_counter() - began)
        self._map[SAVING_OFFSET : SAVING_OFFSET + len(cost)] = cost
        self._map[:RECORD_BYTES] = pack_commit(commit)
        return commit

    def add_checksums(self, commit: Commit) -> None:
        """Compute the checksums of a commit's chunks, and record them."""
        checks = pack_checks(map(crc32, chunks_of(self.view, commit)))
        self._map[CHECKS_OFFSET : CHECKS_OFFSET + len(checks)] = checks
        record = pack_verified(commit.sequence, checks)
        self._map[VERIFIED_OFFSET : VERIFIED_OFFSET + len(record)] = record

    def name_folder(self, path: str, rank: int, world_size: int) -> None:
        """Say which file gets the checkpoint when the pod ends before a copy is there (``format.pack_folder``)."""
        record = pack_folder(path, rank, world_size)
        self._map[FOLDER_OFFSET : FOLDER_OFFSET + len(record)] = record

    def say_loaded(self, *, generation: int, rank: int, step: int, source: int, seconds: float) -> None:
        """Say what a rank of this generation has loaded (``format.pack_loaded``), and how long it took."""
        cost = pack_loading(generation, seconds)
        self._map[LOADING_OFFSET : LOADING_OFFSET + len(cost)] = cost
        record = pack_loaded(generation=generation, rank=rank, step=step, source=source)
        self._map[LOADED_OFFSET : LOADED_OFFSET + len(record)] = record

    def note(self, *, listens: bool = False, in_folder: int = 0, replicated: bool = False) -> None:
        """Add to the notes that the agent reads (``format.pack_notes``)."""
        self._listens, self._in_folder = self._listens or listens, max(self._in_folder, in_folder)
        self._replicated = self._replicated or replicated
        notes = pack_notes(listens=self._listens, in_folder=self._in_folder, replicated=self._replicated)
        self._map[NOTES_OFFSET : NOTES_OFFSET + len(notes)] = notes

    def private(self) -> mmap.mmap:
        """Return the buffer's bytes as memory of this process: what is changed there does not change the buffer."""
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            made = mmap.mmap(file, self.capacity, access=mmap.ACCESS_COPY)
        finally:
            os.close(file)
        # Views that are no longer used need no copy at the next save.
        self._views = [each for each in self._views if each() is not None]
        self._views.append(weakref.ref(made))
        return made

    def _part_from_views(self) -> None:
        """Let tensors that were loaded from here keep their content when the buffer gets another.

        Pages of a private mapping that were never written still show the buffer: each is written now, unchanged.
        """
        for each in self._views:
            view = each()
            if view is not None:
                torch.frombuffer(view, dtype=torch.uint8)[::PAGE_BYTES].add_(0)
        self._views.clear()


class Store:
    """The two buffers of a rank, held by one process at a time."""

    def __init__(self, folder: str, local_rank: int) -> None:
        """Open a rank's buffers.

        Raises:
            BufferUnusableError: they are not there, cannot be opened, or another process holds them.
        """
        name = os.path.join(folder, f"rank-{local_rank}")
        try:
            self._lock = _locked(f"{name}.lock")
            self.buffers = [Buffer(f"{name}.{number}") for number in range(COUNT)]
        except (OSError, ValueError) as error:
            if of_a_handler(error):
                raise
            raise BufferUnusableError(str(error)) from error


def _locked(path: str) -> Any:
    """Open a file that no other process holds.

    Raises:
        BufferUnusableError: another process still holds it after ``LOCK_SECONDS``.
        OSError: there is no such file, or it may not be opened.
    """
    file = open(path, "rb+")  # noqa: SIM115  held as long as the store
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            # A process of the rank's earlier life may still write to the buffer: wait until it has ended.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise BufferUnusableError(f"another process holds {path}") from None
            time.sleep(0.05)
        except OSError:
            file.close()
            raise
