"""Open and close the gates of a pod's ranks in the control file (``wire.launcher.control``), in place: ranks map it.

A pause lasts as long as the agent beats, and until its deadline at most; the shim enforces both.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from falcon_core.wire.launcher import control
from falcon_core.wire.launcher.control import Target, pack_control

_BEFORE = struct.Struct("<12xI24xQQ")  # the mode, the gate and the table's epoch
_SAMPLING = struct.Struct("<III")


class Gates:
    """The gates behind one control file, which exists."""

    def __init__(self, path: Path) -> None:
        """Take the gates over. Numbers go on where the last agent stopped.

        A rank that has given up a pause ignores further pauses with its number.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        mode, self.number, table = _BEFORE.unpack(os.pread(self._file, _BEFORE.size, 0))
        self._mode = control.Mode(mode & 0xFF)
        self.table = table + table % 2
        self._is_armed = False
        if mode & control.ARMED:
            self.open()

    def close(self) -> None:
        os.close(self._file)

    def aim(self, targets: Sequence[Target], deadline_ns: int, now_ns: int) -> None:
        """Let ranks stop where all of their targets are met, or stop them elsewhere. Times: CLOCK_MONOTONIC.

        The table is written under an odd epoch, then under the even one; the gate is armed last.

        Raises:
            ValueError: more targets than the table holds.
        """
        if not self._is_armed:
            self.number += 1
        # Another part of the agent sets these three fields in the same file: keep them.
        sampling = _SAMPLING.unpack(os.pread(self._file, _SAMPLING.size, control.SAMPLING_OFFSET))
        content = pack_control(
            self._mode,
            self.number,
            armed=self._is_armed,
            heartbeat_ns=now_ns,
            deadline_ns=deadline_ns,
            gate=self.number,
            table_epoch=self.table + 1,
            targets=tuple(targets),
            sample_every=sampling[0],
            cycle_calls=sampling[1],
            verify_every=sampling[2],
        )
        # An odd epoch says that the table is being written: ranks that read it now try again.
        self._write(control.TABLE_EPOCH_OFFSET, "<Q", self.table + 1)
        os.pwrite(self._file, content, 0)
        self.table += 2
        self._write(control.TABLE_EPOCH_OFFSET, "<Q", self.table)
        if not self._is_armed:
            self._write(control.MODE_OFFSET, "<I", self._mode | control.ARMED)
            self._is_armed = True

    def beat(self, now_ns: int) -> None:
        """Show the ranks that the agent is alive."""
        self._write(control.HEARTBEAT_OFFSET, "<Q", now_ns)

    def open(self) -> None:
        """Let all ranks go on."""
        self._write(control.MODE_OFFSET, "<I", self._mode)
        self._is_armed = False

    def _write(self, offset: int, layout: str, value: int) -> None:
        os.pwrite(self._file, struct.pack(layout, value), offset)
