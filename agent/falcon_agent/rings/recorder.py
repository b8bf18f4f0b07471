"""Record what runs through a ring, in the ring's own format, with as many slots as there were calls.

A ring overwrites its oldest records; a recording keeps all, so that a user's complaint can be replayed (``replay``) and
become a test. The copy is whole at any instant: records are written first, then the header's head. What the recorder
did not see, because the ring's writer had overwritten it, stays a hole in the file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np

from falcon_agent.rings.ring_reader import RingReader
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.ring import HEADER_BYTES, RECORD_BYTES, RecordArray, RingFormatError, pack_header

POLL_SECONDS = 0.1


class Recording:
    """The copy of a ring."""

    def __init__(self, ring: Path, copy: Path) -> None:
        """Open both files. Raises OSError, or RingFormatError when ``ring`` is no ring."""
        self._reader = RingReader(ring)
        self._file = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._head = 0
        self.records = 0

    def poll(self, now_seconds: float) -> None:
        """Copy the records that are new."""
        records = self._reader.read(now_seconds).records
        if len(records):
            self._write(records)
        capacity = 1 << max(10, (max(self._head, 1) - 1).bit_length())
        header = msgspec.structs.replace(self._reader.header, capacity=capacity, head=self._head)
        os.pwrite(self._file, pack_header(header), 0)

    def _write(self, records: RecordArray) -> None:
        numbers = records["seq"].astype(np.int64) - 1
        for part in np.split(np.arange(len(records)), np.flatnonzero(np.diff(numbers) != 1) + 1):
            place = HEADER_BYTES + int(numbers[part[0]]) * RECORD_BYTES
            os.pwrite(self._file, records[part[0] : part[-1] + 1].tobytes(), place)
        self._head = int(numbers[-1]) + 1
        self.records += len(records)

    @property
    def lost_records(self) -> int:
        """Return the number of calls that were overwritten before they could be copied."""
        return self._reader.lost_records

    def close(self) -> None:
        self._reader.close()
        os.close(self._file)


def record(source: Path, folder: Path, go_on: Callable[[], bool]) -> dict[str, Recording]:
    """Copy the ring ``source``, or all rings of a run directory and those that appear, while ``go_on()``.

    Return the recordings by the ring's file name, closed. A ring whose file disappears has been copied up to its last
    poll. Files that are no rings are skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recordings: dict[str, Recording | None] = {}  # None: no ring
    last = False
    while not last:
        # The last poll comes after the end of the recording was decided, so nothing that came before it is missed.
        last = not go_on()
        for ring in _rings(source):
            if ring.name not in recordings:
                with contextlib.suppress(FileNotFoundError):
                    recordings[ring.name] = _opened(ring, folder / ring.name)
        _poll(recordings.values())
        if not last:
            time.sleep(POLL_SECONDS)
    kept = {name: recording for name, recording in recordings.items() if recording is not None}
    for recording in kept.values():
        recording.close()
    return kept


def _opened(ring: Path, copy: Path) -> Recording | None:
    try:
        return Recording(ring, copy)
    except RingFormatError:
        return None


def _poll(recordings: Iterable[Recording | None]) -> None:
    for recording in recordings:
        if recording is not None:
            recording.poll(time.monotonic())


def _rings(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    for folder in (source / RINGS_DIR, source):
        if rings := sorted(folder.glob("*.ring")):
            return rings
    return []
