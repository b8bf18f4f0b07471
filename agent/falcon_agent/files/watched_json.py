"""Read small JSON files that are looked at often, in a folder where training processes may write anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from falcon_agent.files.untrusted import read_regular

_T = TypeVar("_T")


class WatchedFile(Generic[_T]):
    """One file. While it stays the same, a look costs one ``lstat``."""

    def __init__(self, path: Path, type_: type[_T], most_bytes: int) -> None:
        """Watch a file that holds a value of this type, in so many bytes at most."""
        self._path = path
        self._name = str(path)  # a path of pathlib costs more than the look
        self._most_bytes = most_bytes
        self._decoder = msgspec.json.Decoder(type_)
        self._stamp = (0, 0)
        self._value: _T | None = None

    def look(self) -> _T | None:
        """Return the file's value; None where there is no file, or none that can be read."""
        try:
            about = os.lstat(self._name)
            stamp = (about.st_ino, about.st_mtime_ns)
            if stamp != self._stamp:
                self._value = self._decoder.decode(read_regular(self._path, self._most_bytes))
                self._stamp = stamp
        except (OSError, msgspec.DecodeError, RecursionError):
            return None  # not there yet, not what it should be, or of a version that is not known
        return self._value
