"""Define and pack the control file: one per pod, written by the agent alone, mapped read-only by each rank's shim.

Layout (native endian, CONTROL_BYTES long)::

     0  u64  magic         CONTROL_MAGIC ("FALCCTRL")
     8  u32  version       CONTROL_VERSION; the shim ignores any other and tracks as if there were no file
    12  u32  mode          low byte Mode; ARMED while a pause is on: one load a call
    16  u64  epoch         grows with every change
    24  u64  heartbeat_ns  CLOCK_MONOTONIC, renewed by the agent during a pause: a gate whose agent is silent for 2 s,
                           or whose beat lies as far ahead, opens
    32  u64  deadline_ns   CLOCK_MONOTONIC: the gate opens then, whatever happens
    40  u64  gate          number of the pause; a rank that opened its gate waits for no other pause with that number
    48  u64  table_epoch   odd while the table is being written
    56  u32  entries       of the table
    60  u32  sample_every  track mode: device events in one cycle of so many; 0 none
    64  u32  cycle_calls   device calls in a cycle
    68  u32  verify_every  one in so many all-reduces has its result hashed (``ring.is_verified``); 0 none
    HEADER_BYTES: entries of ENTRY_BYTES: u64 key (ring.counter_key), u64 target (calls entered), u32 pid of the rank,
                  u32 and u64 zero

A call of a rank waits before it is counted while **every** entry of its pid is met; a rank without entries never waits.
Absent file: ``Mode.TRACK``. The file appears under its name only when complete and keeps its size for life.
"""

from __future__ import annotations

import enum
import struct

import msgspec

CONTROL_MAGIC = int.from_bytes(b"FALCCTRL", "little")
CONTROL_VERSION = 1
CONTROL_BYTES = 1 << 19  # a send and a receive for each of a thousand peers, of eight ranks
HEADER_BYTES = 128
ENTRY_BYTES = 32
MAX_ENTRIES = (CONTROL_BYTES - HEADER_BYTES) // ENTRY_BYTES
ARMED = 0x100

MODE_OFFSET = 12
HEARTBEAT_OFFSET = 24
GATE_OFFSET = 40
TABLE_EPOCH_OFFSET = 48
SAMPLING_OFFSET = 60

_HEADER = struct.Struct("<QIIQQQQQIIII")
_ENTRY = struct.Struct("<QQIIQ")


class Mode(enum.IntEnum):
    """The shim's work in a call."""

    OFF = 0  # count calls, record none: their numbers stay right, and the gate works
    TRACK = 1  # record every call
    PROFILE = 2  # and have the device time each


class Target(msgspec.Struct, frozen=True):
    """One line of the gate's table."""

    pid: int
    key: int  # ring.counter_key
    calls: int  # entered


def pack_control(
    mode: Mode,
    epoch: int,
    *,
    armed: bool = False,
    heartbeat_ns: int = 0,
    deadline_ns: int = 0,
    gate: int = 0,
    table_epoch: int = 0,
    targets: tuple[Target, ...] = (),
    sample_every: int = 0,
    cycle_calls: int = 0,
    verify_every: int = 0,
) -> bytes:
    """Encode the whole file.

    Raises:
        ValueError: more targets than the table holds.
    """
    if len(targets) > MAX_ENTRIES:
        raise ValueError(f"{len(targets)} targets; the control file holds {MAX_ENTRIES}")
    header = _HEADER.pack(
        CONTROL_MAGIC,
        CONTROL_VERSION,
        mode | (ARMED if armed else 0),
        epoch,
        heartbeat_ns,
        deadline_ns,
        gate,
        table_epoch,
        len(targets),
        sample_every,
        cycle_calls,
        verify_every,
    )
    table = b"".join(_ENTRY.pack(target.key, target.calls, target.pid, 0, 0) for target in targets)
    return (header.ljust(HEADER_BYTES, b"\0") + table).ljust(CONTROL_BYTES, b"\0")


def pack_sampling(sample_every: int, cycle_calls: int, verify_every: int = 0) -> bytes:
    """Pack the three fields at ``SAMPLING_OFFSET``."""
    return struct.pack("<III", sample_every, cycle_calls, verify_every)
