"""Open files in folders where training processes may write: they may have put anything in a file's place."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; return its descriptor. A FIFO does not make it wait, and a link is not followed.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is no regular file")
    return file


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a whole regular file of so many bytes at most.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
    """
    file = open_regular(path)
    try:
        if os.fstat(file).st_size > most_bytes:
            raise OSError(f"{path} has more than {most_bytes} bytes")
        return os.pread(file, most_bytes, 0)
    finally:
        os.close(file)
