"""Create the ranks' checkpoint buffers: files on a tmpfs volume, shared with the training container.

Pages of a tmpfs count as the memory of the container that touches them first. So the agent touches them all, within its
own memory limit, and the trainer is never killed for what Falcon keeps. A buffer that is there already is left as it
is: an agent that starts again finds the checkpoints of before.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

from falcon_agent.files.untrusted import open_regular
from falcon_core.wire.saves.checkpoint import (
    BUFFERS,
    PAGE_BYTES,
    Held,
    Loaded,
    Parts,
    buffer_bytes,
    buffer_name,
    lock_name,
    unpack_held,
    unpack_loaded,
    unpack_parts,
    unpack_sequence,
)

_EVERYBODY = 0o666  # the training container may run as any user
_log = structlog.get_logger()


class Store:
    """The buffers of the pod's ranks."""

    def __init__(self, folder: Path, ranks: int, memory_bytes: int) -> None:
        """Divide ``memory_bytes`` among two buffers of each of ``ranks`` local ranks."""
        self._folder = folder
        self._ranks = ranks
        self._bytes = buffer_bytes(memory_bytes, ranks)

    def make(self) -> None:
        """Make the buffers that are missing. It takes about a quarter of a second for each GiB.

        Where they cannot be made, the reason is logged, and the ranks save to their folder alone.
        """
        try:
            for local_rank in range(self._ranks):
                self._put(lock_name(local_rank), 0)
                for number in range(BUFFERS):
                    self._put(buffer_name(local_rank, number), self._bytes)
        except OSError as error:
            _log.error("no checkpoints in memory: a buffer cannot be made", error=str(error), buffer_bytes=self._bytes)

    def held(self) -> list[Held]:
        """Return the steps that the ranks hold: of each rank two at most."""
        paths = [path for local_rank in range(self._ranks) for path in self.buffers(local_rank)]
        return [held for path in paths if (held := unpack_held(_page(path)[0])) is not None]

    def loaded(self, generation: int) -> list[Loaded]:
        """Return from what the ranks of a generation have begun, as far as they have noted it."""
        pages = (_page(self.buffers(local_rank)[0])[0] for local_rank in range(self._ranks))
        said = [unpack_loaded(page) for page in pages]
        return [loaded for each in said if each is not None for of, loaded in [each] if of == generation]

    @property
    def ranks(self) -> int:
        """Return how many ranks the pod has."""
        return self._ranks

    @property
    def buffer_bytes(self) -> int:
        """Return the size of each buffer."""
        return self._bytes

    def buffers(self, local_rank: int) -> list[Path]:
        """Return the paths of a rank's buffers."""
        return [self._folder / buffer_name(local_rank, number) for number in range(BUFFERS)]

    def newest(self, local_rank: int) -> tuple[Path, Parts] | None:
        """Return the newest whole checkpoint of a rank that has its checksums, and the buffer that holds it."""
        found = [
            (path, parts) for path in self.buffers(local_rank) if (parts := unpack_parts(*_page(path))) is not None
        ]
        return max(found, key=lambda each: each[1].sequence, default=None)

    def began(self, generation: int) -> bool:
        """Check whether a rank of this pod has loaded or saved in a generation: then all ranks of the job have loaded.

        Ranks agree on what they load, and none goes on before all have read it.
        """
        return bool(self.loaded(generation)) or any(held.generation >= generation for held in self.held())

    def committed(self, local_rank: int) -> int:
        """Return the sequence of a rank's newest whole checkpoint, with or without checksums; -1 without any."""
        return max(unpack_sequence(_page(path)[0]) for path in self.buffers(local_rank))

    def holds(self, local_rank: int, rank: int) -> bool:
        """Check whether a buffer of a local rank holds a checkpoint of the job's rank ``rank``."""
        held = (unpack_held(_page(path)[0]) for path in self.buffers(local_rank))
        return any(each is not None and each.rank == rank for each in held)

    def forget_others(self, first_rank: int) -> None:
        """Clear the buffers that hold checkpoints of other ranks than the pod's own, from ``first_rank`` on.

        The pod had another role when they were saved. No rank runs.
        """
        for local_rank in range(self._ranks):
            for path in self.buffers(local_rank):
                held = unpack_held(_page(path)[0])
                if held is not None and held.rank != first_rank + local_rank:
                    _clear(path)

    def _put(self, name: str, size: int) -> None:
        """Make a file of this size, with all its pages, unless there is one. It appears only when it is complete."""
        path = self._folder / name
        if _is_file(path, size):
            return
        # A rank that starts now must not map a file whose pages are not there yet.
        fresh = self._folder / f"{name}.new"
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _EVERYBODY)
        try:
            if size:
                os.posix_fallocate(file, 0, size)  # on a tmpfs it takes the pages and clears them
            os.fchmod(file, _EVERYBODY)  # whatever the umask says
        finally:
            os.close(file)
        fresh.rename(path)


def _page(path: Path) -> tuple[bytes, int]:
    """Read the records of a buffer, and its size; nothing where the training processes have put anything else there."""
    try:
        file = open_regular(path)
    except OSError:
        return b"", 0
    try:
        return os.pread(file, PAGE_BYTES, 0), os.fstat(file).st_size
    except OSError:
        return b"", 0
    finally:
        os.close(file)


def _clear(path: Path) -> None:
    """Take a buffer's records away. What cannot be written is logged: no rank loads another rank's checkpoint."""
    try:
        file = open_regular(path, os.O_RDWR)
        try:
            os.pwrite(file, bytes(PAGE_BYTES), 0)
        finally:
            os.close(file)
    except OSError as error:
        _log.warning("a checkpoint of another rank stays in memory", buffer=str(path), error=str(error))


def _is_file(path: Path, size: int) -> bool:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_size == size
