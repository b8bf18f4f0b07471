"""The control file: one per pod, written by the agent alone, mapped read-only by every rank's shim.

Layout (native endian, CONTROL_BYTES long)::

     0  u64  magic    CONTROL_MAGIC ("FALCCTRL")
     8  u32  version  CONTROL_VERSION; the shim ignores any other and tracks as if there were no file
    12  u32  mode     Mode
    16  u64  epoch    grows with every change
    24  …    zero     reserved (the gate's table of targets)

Absent file: ``Mode.TRACK``. The file appears under its name only when complete and keeps its size for life.
"""

from __future__ import annotations

import enum
import struct

CONTROL_MAGIC = int.from_bytes(b"FALCCTRL", "little")
CONTROL_VERSION = 1
CONTROL_BYTES = 4096
_HEADER = struct.Struct("<QIIQ")


class Mode(enum.IntEnum):
    """What the shim does in a call."""

    OFF = 0  # forward, record nothing
    TRACK = 1  # record every call


def pack_control(mode: Mode, epoch: int) -> bytes:
    """Encode the whole file."""
    return _HEADER.pack(CONTROL_MAGIC, CONTROL_VERSION, mode, epoch).ljust(CONTROL_BYTES, b"\0")
