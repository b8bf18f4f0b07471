"""Read the kernel's log from /dev/kmsg (Linux: Documentation/ABI/testing/dev-kmsg).

A record is ``priority,sequence,microseconds,flags[,more];text``, followed by lines `` KEY=value`` about the device.
What cannot be printed is written as ``\\xNN``. A read returns one record, and EPIPE where the next one was overwritten.
"""

from __future__ import annotations

import os
import re
import select
import time
from pathlib import Path

import msgspec

DEVICE = Path("/dev/kmsg")
LOOK_BACK_SECONDS = 900.0  # at the start: a daemon that was replaced misses nothing
MOST_RECORDS = 20_000  # of one call; a log that is written faster is read on by the next call
_READ_BYTES = 16384  # the kernel's own limit for a record is 8192, and a smaller buffer is an error
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_FACILITY_SHIFT = 3
_KERNEL = 0  # LOG_KERN; no program can write records of this facility


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the log."""

    priority: int  # syslog's: facility × 8 + level
    sequence: int
    seconds: float  # since the start of the machine, without the time in which it slept (CLOCK_MONOTONIC)
    text: str
    device: dict[str, str] = {}  # what the continuation lines say: SUBSYSTEM, DEVICE

    @property
    def level(self) -> int:
        """Return the level, from 0 (emergency) to 7 (debug)."""
        return self.priority & ((1 << _FACILITY_SHIFT) - 1)

    @property
    def of_kernel(self) -> bool:
        """Check whether the kernel itself wrote it: any process that may open the device can write other records."""
        return self.priority >> _FACILITY_SHIFT == _KERNEL


def parse(data: bytes) -> list[Record]:
    """Return the records in what was read. What has no record's form is left out."""
    groups: list[list[bytes]] = []
    for line in data.split(b"\n"):
        # A record's further lines are its dictionary, which the kernel indents by a blank.
        if line.startswith(b" ") and groups:
            groups[-1].append(line)
        elif line:
            groups.append([line])
    return [record for group in groups if (record := _record(group)) is not None]


def _record(lines: list[bytes]) -> Record | None:
    head, semicolon, text = lines[0].partition(b";")
    try:
        priority, sequence, micros, _ = head.split(b",", 3)
        record = Record(
            priority=int(priority),
            sequence=int(sequence),
            seconds=int(micros) / 1e6,
            text=_unescaped(text),
            device=dict(pair for line in lines[1:] if (pair := _pair(line)) is not None),
        )
    except ValueError:
        return None
    return record if semicolon and record.priority >= 0 else None


def _pair(line: bytes) -> tuple[str, str] | None:
    key, equals, value = _unescaped(line[1:]).partition("=")
    return (key, value) if equals else None


def _unescaped(data: bytes) -> str:
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), data).decode(errors="replace")


class Log:
    """The device, read from ``look_back`` seconds before now. Raises OSError where it cannot be opened."""

    def __init__(self, path: Path = DEVICE, look_back: float = LOOK_BACK_SECONDS) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._since = time.monotonic() - look_back
        self.overwritten = 0  # gaps: how often records were lost before they could be read

    def wait(self, seconds: float) -> bool:
        """Wait for a record, or until the time is over. Return whether there is something to read."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def read(self) -> list[Record]:
        """Return what the kernel itself has written since the last call, without waiting. Raises OSError."""
        found: list[Record] = []
        for _ in range(MOST_RECORDS):
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the next read begins with the oldest record that is left
                self.overwritten += 1
                continue
            if not data:
                break
            # Programs can write to this log as well: only the kernel's own records are evidence.
            found += (record for record in parse(data) if record.of_kernel and record.seconds >= self._since)
        return found

    def close(self) -> None:
        """Close the device."""
        os.close(self._fd)


def unix_seconds(record: Record) -> float:
    """Return when the record was written, by the clock of now."""
    return time.time() - (time.monotonic() - record.seconds)
