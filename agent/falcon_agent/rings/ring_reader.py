"""Drain one rank's ring with ``pread``. The file is never mapped: a truncated file must not kill the agent.

A training process may write anything there, at any time. What is no ring is refused by name, before or after it was
opened, and no file makes a reader wait or take more memory than a ring has.

If a slot's record is not published yet, the reader waits for it. After HOLE_SECONDS its writer counts as dead, and the
slot is skipped and counted. If the writer has overwritten records before they were read, the reader knows how many.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import numpy as np

from falcon_core.wire.ring import (
    COUNTER_BYTES,
    COUNTER_DTYPE,
    FREED_KEY,
    HEADER_BYTES,
    MOST_CAPACITY,
    RECORD_BYTES,
    RECORD_DTYPE,
    STATUS_BYTES,
    CounterArray,
    RecordArray,
    RingFormatError,
    RingHeader,
    RingStatus,
    checks,
    parse_header,
    parse_status,
)

HOLE_SECONDS = 1.0
_HEADER_READ = 128  # the fixed fields and the head
_MOST = 1 << 60  # of times (ns), bytes and counts: 36 years, an exabyte; sums of a few fit into 64 bits


class Batch(msgspec.Struct, frozen=True):
    """Records in their order; ``lost`` records before them were overwritten."""

    records: RecordArray  # shape [n], dtype RECORD_DTYPE
    lost: int


class RingReader:
    """A ring file, read from the oldest record that it still holds."""

    def __init__(self, path: Path, *, recorded: bool = True) -> None:
        """Open the file.

        ``recorded``: False for a ring that a training process writes, which has a limited capacity; links to such a
        file are not followed.

        Raises:
            OSError: the file cannot be opened.
            RingFormatError: it is no ring, or of another version.
        """
        # Without O_NONBLOCK, opening a FIFO would wait for its writer.
        no_link = 0 if recorded else os.O_NOFOLLOW
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | no_link)
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise RingFormatError("not a regular file: not a ring file")
            self.header: RingHeader = parse_header(os.pread(self._file, _HEADER_READ, 0))
            if not recorded and self.header.capacity > MOST_CAPACITY:
                raise RingFormatError(f"ring has {self.header.capacity} slots, at most {MOST_CAPACITY} are read")
        except BaseException:
            os.close(self._file)
            raise
        self.path = path
        self.lost_records = 0
        self.holes = 0
        self._next = 0
        self._hole: tuple[int, float] | None = None  # number of the slot that is waited for, and since when

    def close(self) -> None:
        os.close(self._file)

    def read(self, now_seconds: float) -> Batch:
        """Read what was published since the last read; ``now_seconds`` is on any monotonic clock.

        Raises:
            OSError: the file cannot be read any more.
            RingFormatError: the header is not the ring's any more.
        """
        head = self._head()
        capacity = self.header.capacity
        # The writer never waits. Slots that it has overwritten since the last read are gone.
        lost = max(0, head - capacity - self._next)
        self._next += lost
        records = self._slots(self._next, head)
        # A slot is whole if it has the expected number and its check value is right.
        expected = np.arange(self._next + 1, self._next + 1 + len(records), dtype=np.uint64)
        whole = (records["seq"] == expected) & (checks(records) == records["check"])
        overwritten = records["seq"] > expected  # lapped while we read
        usable = whole | overwritten
        # Stop at the first slot that is not published yet: records are handed on in order.
        end = len(records) if bool(usable.all()) else int(np.argmin(usable))
        if end < len(records):
            # A slot that stays empty belongs to a writer that died in between: waiting for ever would blind the agent
            # to the rank.
            end = self._pass_hole(end, whole, overwritten, now_seconds)
        else:
            self._hole = None
        taken = records[:end]
        if not bool(whole[:end].all()):
            taken = taken[whole[:end]]
        # A training process can write anything into its ring; such figures would overflow later sums.
        if any(bool((taken[name] > _MOST).any()) for name in ("t_start_ns", "duration_ns", "bytes")):
            raise RingFormatError("ring has calls at impossible times, or of impossible sizes")
        gone = lost + int(overwritten[:end].sum())
        self.lost_records += gone
        self._next += end
        return Batch(taken, gone)

    def _head(self) -> int:
        now = parse_header(os.pread(self._file, _HEADER_READ, 0))
        if now != msgspec.structs.replace(self.header, head=now.head):
            raise RingFormatError("the header has changed since the ring was opened")
        if now.head < self._next:
            raise RingFormatError(f"ring counts {now.head} calls, and had {self._next} before")
        return now.head

    def status(self) -> RingStatus | None:
        """Read the status of the ring's writer; None if it cannot be read."""
        try:
            return parse_status(os.pread(self._file, STATUS_BYTES, 0))
        except RingFormatError:
            return None

    def counters(self) -> CounterArray | None:
        """Read the counters that are in use: [n], dtype COUNTER_DTYPE; None if the ring has none that can be read."""
        status = self.status()
        if status is None or not status.counters_offset:
            return None
        raw = os.pread(self._file, status.counters * COUNTER_BYTES, status.counters_offset)
        table = np.frombuffer(raw[: len(raw) // COUNTER_BYTES * COUNTER_BYTES], dtype=COUNTER_DTYPE)
        used = (table["key"] != 0) & (table["key"] != FREED_KEY)
        # A training process may have written anything here: impossible counts are left out.
        counters: CounterArray = table[used & (table["entered"] <= _MOST) & (table["finished"] <= _MOST)]
        return counters

    def _pass_hole(
        self,
        first: int,
        whole: np.ndarray[tuple[int], np.dtype[np.bool_]],
        over: np.ndarray[tuple[int], np.dtype[np.bool_]],
        now: float,
    ) -> int:
        """Return the index up to which to read: the hole, or the next record after it if its writer counts as dead."""
        number = self._next + first
        if self._hole is None or self._hole[0] != number:
            self._hole = (number, now)  # a new hole: the slot of the hole before is published now
        if now - self._hole[1] < HOLE_SECONDS:
            return first
        self._hole = None
        usable = whole | over
        later = np.flatnonzero(usable[first:])
        end = first + (int(later[0]) if len(later) else len(usable) - first)
        self.holes += end - first
        return end

    def _slots(self, first: int, last: int) -> RecordArray:
        """Read the records of call numbers [first, last), whatever their slots contain."""
        capacity = self.header.capacity
        raw = b""
        while first < last:
            slot = first % capacity
            count = min(last - first, capacity - slot)
            part = os.pread(self._file, count * RECORD_BYTES, HEADER_BYTES + slot * RECORD_BYTES)
            raw += part[: len(part) // RECORD_BYTES * RECORD_BYTES]
            if len(part) < count * RECORD_BYTES:
                break  # the file was truncated
            first += count
        return np.frombuffer(raw, dtype=RECORD_DTYPE)
