"""Store checkpoints as files in a folder: one file a rank and step, in the layout of ``format``.

A file appears under its name only when it is complete and on disk. A rank deletes its own files when two newer steps
are there as files of all ranks; where it cannot see those of the others, it keeps four. Ranks write at their own pace,
so that the newest files of a single rank may be of steps that others have not written yet. Where the job is restarted
for a number that stays NaN, two older steps are kept as well, one of them ``OLDER_SECONDS`` old or more: the newest
ones may have been saved after the number was spoilt.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import time
from collections import Counter
from typing import Any, Iterator, NamedTuple, Tuple
from zlib import crc32

from falcon_torch.interruption import of_a_handler
from falcon_torch.store.format import (
    CHECKS_OFFSET,
    CHUNK_BYTES,
    PAGE_BYTES,
    VERIFIED_OFFSET,
    CheckpointError,
    Commit,
    Sums,
    aligned,
    check_chunks,
    check_index,
    index_offset,
    is_verified,
    pack_commit,
    pack_verified,
    unpack_commit,
)
from falcon_torch.store.state import Frozen, raw, thaw

KEPT = 2  # newest steps of which all ranks have a file
MOST_KEPT = 4  # of a rank
OLDER_VARIABLE = "FALCON_CHECKPOINT_KEEP_OLDER"
OLDER_SECONDS = 600.0  # a number that is logged each few minutes has been NaN twice by then
_log = logging.getLogger("falcon_torch")
_NAME = re.compile(r"step-(\d{12,})\.rank-(\d+)-of-(\d+)\.falcon")


class Found(NamedTuple):
    """A file of this rank, and its commit record."""

    path: str
    commit: Commit


class Volume:
    """The files of one rank in a folder, which is made if needed."""

    def __init__(self, folder: str, rank: int, world_size: int) -> None:
        self.folder = folder
        self._rank, self._world_size = rank, world_size
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):  # of a life that was killed while it wrote
            own = name.endswith(f".{os.getpid()}.tmp")
            if name.endswith(".tmp") and not own and f".rank-{rank}-of-{world_size}." in name:
                _remove(os.path.join(folder, name))

    def found(self) -> list[Found]:
        """Return the whole checkpoints of this rank, the newest step first."""
        found = []
        for step in sorted(self._steps(), reverse=True):
            path = self._path(step)
            try:
                with open(path, "rb") as file:
                    commit = unpack_commit(file.read(PAGE_BYTES), os.fstat(file.fileno()).st_size)
            # A file may vanish or be cut at any moment. What a signal's handler raised is not of the file, and is
            # passed on.
            except OSError as error:
                if of_a_handler(error):
                    raise
                continue
            if commit is not None and commit.step == step:
                found.append(Found(path, commit))
        return found

    def copy(self, view: memoryview, commit: Commit) -> None:
        """Write a buffer's checkpoint. Raises OSError."""

        def pieces() -> Iterator[tuple[int, memoryview]]:
            for start in range(0, commit.end, CHUNK_BYTES):
                yield start, view[start : min(start + CHUNK_BYTES, commit.end)]

        self._put(commit.step, pieces())

    def write(self, frozen: Frozen, **identity: int) -> None:
        """Write a state itself. ``identity``: the commit's fields but for places and checksums. Raises OSError."""
        begin = index_offset(len(frozen.raw_index) + PAGE_BYTES + frozen.data_bytes)
        data = aligned(begin + len(frozen.raw_index), PAGE_BYTES)
        commit = Commit(
            index_offset=begin,
            index_bytes=len(frozen.raw_index),
            data_offset=data,
            end=data + frozen.data_bytes,
            index_crc=crc32(frozen.raw_index),
            unix_ns=time.time_ns(),
            **identity,
        )

        def pieces() -> Iterator[tuple[int, memoryview]]:
            # Checksums cover the gaps between storages as well, which the file has as zeros.
            sums, at = Sums(), begin
            for offset, piece in _contents(frozen, begin, data):
                sums.add(memoryview(bytes(offset - at)))
                sums.add(piece)
                at = offset + len(piece)
                yield offset, piece
            sums.add(memoryview(bytes(commit.end - at)))
            checks = sums.table()
            yield CHECKS_OFFSET, memoryview(checks)
            yield VERIFIED_OFFSET, memoryview(pack_verified(commit.sequence, checks))
            # The commit record comes last: without it the file counts as incomplete.
            yield 0, memoryview(pack_commit(commit))

        self._put(commit.step, pieces(), commit.end)

    def _put(self, step: int, pieces: Iterator[tuple[int, memoryview]], size: int = 0) -> None:
        path = self._path(step)
        partial = f"{path}.{os.getpid()}.tmp"
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            try:
                os.ftruncate(file, size)
                for offset, piece in pieces:
                    _write_all(file, piece, offset)
                # On disk before the rename, or a crash could leave the name without the content.
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(partial, path)
        except BaseException:
            _remove(partial)
            raise
        # The rename itself must be on disk before older files are deleted.
        _sync_folder(self.folder)
        self._prune()

    def _prune(self) -> None:
        own = sorted(self._steps())
        whole = [step for step in own if all(map(os.path.exists, self._paths(step)))]
        # A step counts as a checkpoint only if all ranks' files are there, so only whole ones may push older ones out.
        oldest = whole[-KEPT] if len(whole) >= KEPT else own[0]
        older = self._older(whole) if os.environ.get(OLDER_VARIABLE) == "1" else []
        for step in own:
            # Saves that never became whole must not fill the folder either.
            if step not in older and (step < oldest or step in own[:-MOST_KEPT]):
                _remove(self._path(step))

    def _older(self, whole: list[int]) -> list[int]:
        """Return the older of these steps that are kept: the newest that is old enough, and the next.

        The second takes the first one's place when it is old enough itself. All ranks go by the times of the same
        files, so that they keep the same steps.
        """
        if not whole:
            return []
        saved = {step: _saved_at(self._of(step, 0)) for step in whole}
        enough = [step for step in whole if saved[whole[-1]] - saved[step] >= OLDER_SECONDS]
        first = enough[-1] if enough else whole[0]
        return [first, *(step for step in whole if step > first)][:2]

    def _steps(self) -> list[int]:
        names = map(_NAME.fullmatch, os.listdir(self.folder))
        return [int(name[1]) for name in names if name and (int(name[2]), int(name[3])) == self._place]

    @property
    def _place(self) -> tuple[int, int]:
        return self._rank, self._world_size

    def _path(self, step: int) -> str:
        return self._of(step, self._rank)

    def _paths(self, step: int) -> list[str]:
        return [self._of(step, rank) for rank in range(self._world_size)]

    def _of(self, step: int, rank: int) -> str:
        return _path(self.folder, step, rank, self._world_size)


class Layout(NamedTuple):
    """A complete set of files: those of all ranks of a job of so many ranks."""

    folder: str
    step: int
    world_size: int

    def path(self, rank: int) -> str:
        """Return a rank's file."""
        return _path(self.folder, self.step, rank, self.world_size)


def layouts(folder: str) -> list[Layout]:
    """Return the complete sets of files in a folder, the newest step first."""
    try:
        names = [found for found in map(_NAME.fullmatch, os.listdir(folder)) if found]
    except OSError as error:
        if of_a_handler(error):
            raise
        return []
    # A set is complete when each rank of its world size has a file of the step.
    count = Counter((int(name[1]), int(name[3])) for name in names)
    return [Layout(folder, *each) for each in sorted(count, reverse=True) if count[each] == each[1]]


def read_file(layout: Layout, rank: int, verify: bool = False) -> Tuple[Commit, Any]:
    """Return the commit and the state of a rank's file; the tensors are views of a private mapping.

    ``verify``: compare every byte with its checksum.

    Raises:
        CheckpointError: it is not whole, or not what was written.
        OSError, ValueError: it cannot be read.
    """
    path = layout.path(rank)
    data = mapped(path)
    commit = unpack_commit(data[:PAGE_BYTES], len(data))
    if commit is None or (commit.step, commit.rank, commit.world_size) != (layout.step, rank, layout.world_size):
        raise CheckpointError(f"{path} holds no whole checkpoint")
    return commit, read_state(data, commit, path, verify=verify)


def read_state(data: mmap.mmap, commit: Commit, where: str, *, verify: bool) -> Any:
    """Return the state of a buffer or file that is mapped at ``data``; the tensors are views of it.

    ``verify``: compare every byte with its checksum, where there are checksums.

    Raises:
        CheckpointError: it is not what was written.
    """
    view = memoryview(data)
    index = check_index(view, commit, where)
    if not is_verified(data[:PAGE_BYTES], commit):
        _log.warning("%s in %s has no checksums yet: it is whole, and is used", commit.name, where)
    elif verify:
        check_chunks(view, commit, where)
    return thaw(index, data, commit.data_offset, commit.end)


def _path(folder: str, step: int, rank: int, world_size: int) -> str:
    return os.path.join(folder, f"step-{step:012d}.rank-{rank}-of-{world_size}.falcon")


def mapped(path: str) -> mmap.mmap:
    """Return a file's bytes as memory of this process. Raises OSError or ValueError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A private mapping: the script may change its tensors, and the file stays as it was written.
        return mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(file)


def _contents(frozen: Frozen, begin: int, data: int) -> Iterator[tuple[int, memoryview]]:
    """Yield where each part of a state goes, and its bytes."""
    yield begin, memoryview(frozen.raw_index)
    for offset, storage in frozen.storages:
        # One storage at a time: a copy of the whole state would double the memory that a save takes.
        content = storage.cpu()
        yield data + offset, raw(content)
        del content


def _write_all(file: int, piece: memoryview, offset: int) -> None:
    while piece:
        written = os.pwrite(file, piece[:CHUNK_BYTES], offset)
        piece, offset = piece[written:], offset + written


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _saved_at(path: str) -> float:
    """Return when a file was written, unix seconds; 0 where another rank has removed it just now."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError as error:
        if of_a_handler(error):
            raise
        return 0.0


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError as error:
        if of_a_handler(error):
            raise
