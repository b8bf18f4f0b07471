"""What a rank's script says of its micro-batches, in a folder where training processes may write anything."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from falcon_agent.regular import open_regular
from falcon_core.wire.microbatches import MOST_BYTES, Said

_decoder = msgspec.json.Decoder(Said)


class SaidFile:
    """The file of one rank in one generation. While it stays the same, a look costs one ``lstat``."""

    def __init__(self, path: Path, generation: int) -> None:
        self._path = path
        self._name = str(path)  # a path of pathlib costs more than the look
        self._generation = generation
        self._stamp = (0, 0)
        self._said: Said | None = None

    def look(self) -> Said | None:
        """Return what the script says; None where it says nothing, or nothing that can be read."""
        try:
            about = os.lstat(self._name)
            stamp = (about.st_ino, about.st_mtime_ns)
            if stamp != self._stamp:
                self._stamp, self._said = stamp, None
                self._said = self._of_this_generation()
        except (OSError, msgspec.DecodeError, RecursionError):
            return None
        return self._said

    def _of_this_generation(self) -> Said | None:
        file = open_regular(self._path)
        try:
            said = _decoder.decode(os.pread(file, MOST_BYTES, 0))
        finally:
            os.close(file)
        return said if said.generation == self._generation else None
