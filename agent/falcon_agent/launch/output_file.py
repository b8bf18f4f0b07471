"""Read one process's output file with ``pread``. It is never mapped, and no file makes a reader wait or take memory.

A training process may put anything in its place, or write in it. What is no such file is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from falcon_core.wire.launcher.output import (
    CAPACITY,
    FIXED_BYTES,
    HEADER_BYTES,
    HEADER_READ,
    MOST_TOTAL,
    READABLE,
    OutputFormatError,
    parse_growing,
    parse_header,
)


class Piece(NamedTuple):
    """Some output."""

    data: bytes
    unix_ns: int  # by when it was printed
    follows: bool  # on the piece before; False where something between them was not read


class OutputReader:
    """One file, read from the oldest byte that it still holds."""

    def __init__(self, path: Path, generation: int) -> None:
        """Open the file.

        Raises:
            OSError: it cannot be opened.
            OutputFormatError: it is no rank's output, of another version or of another generation.
        """
        # Without O_NONBLOCK, opening a FIFO would wait for its writer.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        self.unread_bytes = 0
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OutputFormatError("not a regular file")
            raw = os.pread(self._file, HEADER_READ, 0)
            header = parse_header(raw)
            if header.generation != generation:
                raise OutputFormatError(f"it is of generation {header.generation}")
        except BaseException:
            os.close(self._file)
            raise
        self._fixed = raw[:FIXED_BYTES]
        self._made_unix_ns = header.made_unix_ns
        self._total = self._old = header.total  # when the bytes before were printed is unknown
        self._written_unix_ns = header.written_unix_ns
        # Older bytes have been overwritten in the file.
        self._position = max(0, self._old - READABLE)
        self._gap = self._position > 0

    def close(self) -> None:
        os.close(self._file)

    def read(self, most: int) -> Piece:
        """Read at most that many new bytes. Raises OSError and OutputFormatError."""
        total = self._look()
        if total == self._position:
            return Piece(b"", self._written_unix_ns, follows=True)
        # The process has printed faster than we read.
        self._pass_over(total - READABLE)
        first = self._position
        unix_ns = self._made_unix_ns if first < self._old else self._written_unix_ns
        data = self._bytes(first, min(most, total - first))
        self._position += len(data)
        # What was overwritten while it was read belongs to later lines.
        torn = min(len(data), max(0, self._look() - READABLE - first))
        self.unread_bytes += torn
        follows, self._gap = not self._gap and not torn, False
        return Piece(data[torn:], unix_ns, follows)

    def left(self) -> int:
        """Return how many bytes are there to be read. Raises OSError and OutputFormatError."""
        return min(self._look() - self._position, READABLE)

    def skip_to(self, newest: int) -> None:
        """Leave out all but the newest bytes. Raises OSError and OutputFormatError."""
        self._pass_over(self._look() - newest)

    def tail(self, most: int) -> bytes:
        """Read the newest bytes, whatever was read before. Raises OSError and OutputFormatError."""
        total = self._look()
        first = max(0, total - min(most, READABLE))
        return self._bytes(first, total - first)

    def _pass_over(self, position: int) -> None:
        """Leave out what lies before a position."""
        if position > self._position:
            self.unread_bytes += position - self._position
            self._position, self._gap = position, True

    def _bytes(self, first: int, count: int) -> bytes:
        place = first % CAPACITY
        until_end = min(count, CAPACITY - place)
        data = os.pread(self._file, until_end, HEADER_BYTES + place)
        # The file is a ring: what does not fit before its end goes on at its start.
        if until_end < count:
            data += os.pread(self._file, count - until_end, HEADER_BYTES)
        if len(data) < count:
            raise OutputFormatError("the file was cut short")
        return data

    def _look(self) -> int:
        """Return how many bytes were ever written."""
        raw = os.pread(self._file, HEADER_READ, 0)
        total, self._written_unix_ns = parse_growing(raw)
        if raw[:FIXED_BYTES] != self._fixed or not self._total <= total <= MOST_TOTAL:
            raise OutputFormatError("its header is not what the launcher has written")
        self._total = total
        return total
