"""What a rank's script says of its micro-batches, in a folder where training processes may write anything."""

from __future__ import annotations

from pathlib import Path

from falcon_agent.files.watched_json import WatchedFile
from falcon_core.wire.reporting.microbatches import MOST_BYTES, Said


class SaidFile:
    """The file of one rank in one generation. While it stays the same, a look costs one ``lstat``."""

    def __init__(self, path: Path, generation: int) -> None:
        self._file = WatchedFile(path, Said, MOST_BYTES)
        self._generation = generation

    def look(self) -> Said | None:
        """Return what the script says; None where it says nothing, or nothing that can be read."""
        said = self._file.look()
        return said if said is not None and said.generation == self._generation else None
