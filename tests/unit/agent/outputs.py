"""Output files as the launcher writes them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from falcon_core.wire.launcher.output import CAPACITY, HEADER_BYTES, MOST_AHEAD, OutputHeader, pack_header


class OutputWriter:
    """The launcher's side of a process's output file."""

    def __init__(self, run_dir: Path, local_rank: int = 0, generation: int = 1) -> None:
        path = run_dir / "launch" / f"output.{local_rank}"
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        self._header = OutputHeader(
            generation=generation, local_rank=local_rank, made_unix_ns=time.time_ns(), total=0, written_unix_ns=0
        )
        fresh.write_bytes(pack_header(self._header))
        os.truncate(fresh, HEADER_BYTES + CAPACITY)
        fresh.rename(path)
        self.path = path
        self.total = 0

    def write(self, data: bytes) -> None:
        with self.path.open("r+b", buffering=0) as file:
            while data:
                place = self.total % CAPACITY
                part = data[: min(MOST_AHEAD, CAPACITY - place)]
                file.seek(HEADER_BYTES + place)
                file.write(part)
                self.total += len(part)
                self._stamp(file.fileno())
                data = data[len(part) :]

    def _stamp(self, file: int) -> None:
        os.pwrite(file, self.total.to_bytes(8, "little") + time.time_ns().to_bytes(8, "little"), 64)
