"""Read what a rank's script reports of its micro-batches, in a folder where training processes may write anything."""

from __future__ import annotations

from pathlib import Path

from falcon_agent.files.watched_json import WatchedFile
from falcon_core.wire.reporting.microbatches import MOST_BYTES, MicrobatchReport


class MicrobatchReportFile:
    """The file of one rank in one generation. While it stays the same, a look costs one ``lstat``."""

    def __init__(self, path: Path, generation: int) -> None:
        self._file = WatchedFile(path, MicrobatchReport, MOST_BYTES)
        self._generation = generation

    def look(self) -> MicrobatchReport | None:
        """Return the script's report; None where there is none, or none that can be read."""
        said = self._file.look()
        return said if said is not None and said.generation == self._generation else None
