"""Define and parse the ring: one file per rank, written by that rank alone, read by the agent with ``pread``.

Layout (native endian, little on every machine we run on)::

    offset 0    header, HEADER_BYTES long
       0  u64  magic         RING_MAGIC ("FALCRING")
       8  u32  version       RING_VERSION; a reader refuses any other
      12  u32  header_bytes  HEADER_BYTES
      16  u32  record_bytes  RECORD_BYTES
      20  u32  capacity      slots, a power of two
      24  u32  pid           of the writer, in its own pid namespace
      28  u32  generation    the life of the job's process group
      32  i32  rank          -1 where the environment does not say
      36  i32  world_size    -1 likewise
      40  i32  local_rank    -1 likewise
      44  u32  flags         0
      48  u64  start_unix_ns the writer's wall clock when it made the file
      56  u64  start_ns      CLOCK_MONOTONIC at the same moment
      64  u64  head          slots reserved so far (fetch-add); alone in its cache line
     128  u64  counters_offset  of the table of counters; 0 in rings of earlier shims, which have none
     136  u32  counters         slots of that table, a power of two
     140  u32  counter_bytes    COUNTER_BYTES
     192  u64  gate_waited      the last pause (control file: ``gate``) that made a thread wait
     200  u64  gate_opened      the last pause that this rank gave up on its own
     208  u32  waiting          threads that wait at the gate now
     212  u32  gate_reason      GateReason of gate_opened
     216  u64  table_seen       table_epoch of the control file that the waiting thread last met
     224  u32  device_times     DeviceTimes; 0 as well in rings of earlier shims
     228  u32  device_reason    NoDeviceTimes
     232  u32  device_code      of the CUDA driver's last error; 0: none
     236  u32  device_faults    questions that the driver did not answer
     240  u32  full             bits of Full: tables that had no room once
    offset HEADER_BYTES: capacity records of RECORD_BYTES; call number i (from 0) lies in slot i % capacity.
    offset counters_offset: counters, in no order; they count calls in progress, too, which records do not.

A writer thread reserves call number i, stores ``seq = 0``, fills the record, and publishes it with a release store of
``seq = i + 1``. A slot with a smaller ``seq`` is a hole (reserved, not published yet, or its writer died); a larger one
means that the reader was lapped; a wrong ``check`` means torn. Records never change after publication.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

RING_MAGIC = int.from_bytes(b"FALCRING", "little")
RING_VERSION = 1
HEADER_BYTES = 4096
RECORD_BYTES = 64
DEFAULT_CAPACITY = 32768
COUNTER_BYTES = 64
STATUS_BYTES = 244  # of the header, up to and with its last field
MOST_CAPACITY = 2 * DEFAULT_CAPACITY  # slots of a ring that a training process writes
MOST_COUNTERS = 65_536
MOST_BYTES = 1 << 40  # of a ring file; a recording of weeks is smaller

POINT_TO_POINT = 1 << 31
"""Point-to-point calls are numbered (``comm_seq``) apart from the collectives of their communicator, which all members
count alike: they stand under its id with this bit, with a descriptor of their own."""
GRAPH = 1 << 30
"""A graph launch stands under the number of its graph with this bit."""
EXCHANGE = 1 << 29
"""A group of sends and receives by which members exchange data (NCCL's all-to-all of unequal parts) is one record:
ALL_TO_ALL, the bytes of all its transfers, and their number in one direction as ``peer_or_root``. Such records stand
under the id of their communicator with this bit, since a member that has nothing to send or receive leaves none: they
are numbered apart from the collectives, which all members count alike. Counters count the single transfers."""
FREED_KEY = (1 << 64) - 1
"""Of a counter that is in use no more, since its communicator is gone."""
_WORD = (1 << 64) - 1
_FRACTION = 0x9E3779B97F4A7C15  # of 2^64: the golden section

RECORD_DTYPE = np.dtype(
    [
        ("seq", "<u8"),  # call number + 1
        ("t_start_ns", "<u8"),  # CLOCK_MONOTONIC at the call's entry
        ("duration_ns", "<u8"),  # 0 for a call that returns when enqueued
        ("comm", "<u8"),  # communicator id, unique within the process
        ("bytes", "<u8"),  # payload of this rank; for DESCRIPTOR the parent communicator's id
        ("comm_seq", "<u4"),  # call number within the communicator, from 0
        ("group", "<u4"),  # group call number (NCCL), 0 outside; for DESCRIPTOR the communicator's size
        ("peer_or_root", "<i4"),  # -1 where neither exists; for DESCRIPTOR this rank within the communicator
        ("stream", "<u2"),
        ("flags", "<u2"),
        ("op", "u1"),
        ("dtype", "u1"),
        ("kind", "u1"),
        ("pad", "u1"),
        ("check", "<u4"),
    ]
)
if RECORD_DTYPE.itemsize != RECORD_BYTES:  # the wire format is a promise
    raise AssertionError("ring record is not 64 bytes")

COUNTER_DTYPE = np.dtype(
    [
        ("key", "<u8"),  # counter_key(); 0: free, FREED_KEY: free again
        ("entered", "<u8"),  # calls that were begun
        ("finished", "<u8"),  # calls that are done: blocking ones when they return, enqueued ones as far as is known
        ("reserved", "<u8", (5,)),
    ]
)

RecordArray = npt.NDArray[np.void]
CounterArray = npt.NDArray[np.void]


class Kind(enum.IntEnum):
    """The meaning of a record."""

    BLOCKING = 1  # a call that returned when it was done: start and duration are both real (Gloo)
    ENQUEUED = 2  # a call that returned when it was enqueued (NCCL)
    COMPLETED = 3  # device completion of the ENQUEUED record with the same (comm, comm_seq)
    DESCRIPTOR = 4  # a communicator came to life
    GRAPH_LAUNCH = 5
    ASYNC_ERROR = 6  # a communicator failed; ``bytes`` has the library's code
    # A set-up call failed and is made again after ``duration_ns``: ``group`` says which retry of it, from 1, ``bytes``
    # the library's code (Gloo: 0), ``peer_or_root`` this rank within the communicator.
    RETRY = 7
    # The result of an all-reduce was hashed (XXH64, seed 0) when the call had returned: ``group`` has the low half of
    # the hash, ``peer_or_root`` the high half, ``bytes`` how much was hashed, ``duration_ns`` how long that took.
    # ``comm_seq`` is the number of the call on which all members agree: the tag that the program gave it, where its
    # tags differ.
    VERIFIED = 8


class Traffic(enum.IntEnum):
    """The calls that a counter counts."""

    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    GRAPH = 4
    RECV_ANY = 5  # receives from anyone, of all peers together: begun, and arrived, when RECV counts them too


class GateReason(enum.IntEnum):
    """The reason why a rank opened its gate on its own."""

    NONE = 0
    DEADLINE = 1
    AGENT_DEAD = 2
    UNREADABLE = 3


class DeviceTimes(enum.IntEnum):
    """Whether the device's times of calls are taken."""

    NOT_ASKED = 0  # no call was to be timed
    ON = 1
    OFF = 2


class NoDeviceTimes(enum.IntEnum):
    """The reason why the device's times are not taken."""

    NONE = 0
    NO_DRIVER = 1  # libcuda.so.1 is not loaded
    OLD_DRIVER = 2  # it lacks a function
    NO_THREAD = 3  # the helper could not be started
    FAULTS = 4  # the driver answered by errors, ``device_code`` is the last
    EXIT = 5  # the process ends


class Full(enum.IntFlag):
    """Tables of the shim that had no room: what came then is seen without its communicator, or not counted."""

    COMMUNICATORS = 1
    COUNTERS = 2


class Op(enum.IntEnum):
    """The operation of a call."""

    UNKNOWN = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BARRIER = 5
    BROADCAST = 6
    REDUCE = 7
    GATHER = 8
    SCATTER = 9
    SEND = 10
    RECV = 11


class Flag(enum.IntFlag):
    """Bits of ``flags``."""

    FAILED = 1  # the call ended by an exception (a peer died) or an error: its duration is not a transfer's
    ENDED = 2  # DESCRIPTOR: the communicator was destroyed
    CAPTURED = 4  # ENQUEUED into a graph: it runs when the graph is launched
    SOLE = 8  # VERIFIED: the process is sure to have had no other communicator of this rank and size


class DType(enum.IntEnum):
    """Element type of the payload."""

    UNKNOWN = 0
    INT8 = 1
    UINT8 = 2
    INT32 = 3
    UINT32 = 4
    INT64 = 5
    UINT64 = 6
    FLOAT16 = 7
    BFLOAT16 = 8
    FLOAT32 = 9
    FLOAT64 = 10
    FLOAT8_E4M3 = 11
    FLOAT8_E5M2 = 12


# Only here do all members wait for the last to arrive; roots leave a broadcast early, receivers always wait.
SYNCHRONISING_OPS = frozenset({Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL, Op.BARRIER})

_HEADER = struct.Struct("<QIIIIIIiiiIQQQ")
_PLACE = struct.Struct("<QII")
_GATE = struct.Struct("<QQIIQ")
_DEVICE = struct.Struct("<5I")
_MIX = np.uint64(_FRACTION)


class RingFormatError(ValueError):
    """The file is not a ring of this version; the message has what was found and what to do."""


class RingHeader(msgspec.Struct, frozen=True):
    """The fixed part of a ring file; times in ns."""

    capacity: int
    pid: int
    generation: int
    rank: int
    world_size: int
    local_rank: int
    start_unix_ns: int
    start_ns: int
    head: int


def parse_header(raw: bytes) -> RingHeader:
    """Decode the first HEADER_BYTES of a ring file.

    Raises:
        RingFormatError: not a ring, another version, or an impossible capacity.
    """
    if len(raw) < _HEADER.size:
        raise RingFormatError(f"ring header is {len(raw)} bytes, want at least {_HEADER.size}: not a ring file")
    (
        magic,
        version,
        header_bytes,
        record_bytes,
        capacity,
        pid,
        generation,
        rank,
        world_size,
        local_rank,
        _flags,
        start_unix_ns,
        start_ns,
        head,
    ) = _HEADER.unpack_from(raw)
    if magic != RING_MAGIC:
        raise RingFormatError("bad magic: not a ring file")
    if version != RING_VERSION or header_bytes != HEADER_BYTES or record_bytes != RECORD_BYTES:
        raise RingFormatError(
            f"ring has layout version {version} ({record_bytes}-byte records), this reader knows {RING_VERSION}: "
            "use the shim and the agent of one release"
        )
    # A slot is found by a bit mask.
    if capacity == 0 or capacity & (capacity - 1):
        raise RingFormatError(f"ring capacity {capacity} is not a power of two")
    # The file is the training process's: a count that no job can reach is damage, and no progress.
    if head > MOST_BYTES:
        raise RingFormatError(f"ring counts {head} calls: its header is damaged")
    return RingHeader(
        capacity=capacity,
        pid=pid,
        generation=generation,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        start_unix_ns=start_unix_ns,
        start_ns=start_ns,
        head=head,
    )


class RingStatus(msgspec.Struct, frozen=True):
    """The place of the counters, the rank's state at the gate, and what its shim does not see."""

    counters_offset: int
    counters: int
    gate_waited: int
    gate_opened: int
    waiting: int
    gate_reason: GateReason
    table_seen: int
    device_times: DeviceTimes = DeviceTimes.NOT_ASKED
    device_reason: NoDeviceTimes = NoDeviceTimes.NONE
    device_code: int = 0
    device_faults: int = 0
    full: Full = Full(0)


def parse_status(raw: bytes) -> RingStatus:
    """Decode the first STATUS_BYTES of a ring whose header was accepted.

    Raises:
        RingFormatError: too short, or counters of another layout.
    """
    if len(raw) < STATUS_BYTES:
        raise RingFormatError(f"ring status is {len(raw)} bytes, want {STATUS_BYTES}")
    offset, counters, counter_bytes = _PLACE.unpack_from(raw, 128)
    if offset and counter_bytes != COUNTER_BYTES:
        raise RingFormatError(f"ring has counters of {counter_bytes} bytes, this reader knows {COUNTER_BYTES}")
    # A training process may have written anything here: sizes are checked before memory is read by them.
    if offset > MOST_BYTES or counters > MOST_COUNTERS:
        raise RingFormatError(f"ring has {counters} counters at byte {offset}: its header is damaged")
    waited, opened, waiting, reason, table_seen = _GATE.unpack_from(raw, 192)
    # A newer shim may write values that this agent does not know: they count as none, and the rest is read.
    known = GateReason(reason) if reason < len(GateReason) else GateReason.NONE
    times, why, code, faults, full = _DEVICE.unpack_from(raw, 224)
    return RingStatus(
        offset,
        counters,
        waited,
        opened,
        waiting,
        known,
        table_seen,
        DeviceTimes(times) if times < len(DeviceTimes) else DeviceTimes.NOT_ASKED,
        NoDeviceTimes(why) if why < len(NoDeviceTimes) else NoDeviceTimes.NONE,
        code,
        faults,
        Full(full & (Full.COMMUNICATORS | Full.COUNTERS)),
    )


def counter_key(comm: int, traffic: Traffic, peer: int = 0) -> int:
    """Make a counter's key: communicator id (24 bits), Traffic (8 bits), peer (32 bits, 0 for collectives)."""
    return comm << 40 | traffic << 32 | peer


class CounterKey(NamedTuple):
    """The parts of a counter's key; ``traffic`` is a number, since a later shim may have more kinds."""

    comm: int
    traffic: int
    peer: int


def parse_counter_key(key: int) -> CounterKey:
    """Return the parts that ``counter_key`` put together."""
    return CounterKey(key >> 40, key >> 32 & 0xFF, key & 0xFFFFFFFF)


def is_verified(number: int, every: int) -> bool:
    """Check whether the shim hashes the result of an all-reduce: one of each ``every`` numbers in a row.

    Its place among them looks random, so that it is not the same call in each iteration; all ranks compute the same.
    """
    return number % every == ((number // every + 1) * _FRACTION & _WORD) // (1 << 32) % every


def result_hash(record: np.void) -> int:
    """Return the hash in a VERIFIED record."""
    return (int(record["peer_or_root"]) & 0xFFFFFFFF) << 32 | int(record["group"])


def are_exchanges(comms: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Check which records' communicators mean exchanges: [n] → [n]."""
    found: npt.NDArray[np.bool_] = comms // np.uint64(EXCHANGE) == 1
    return found


def pack_header(header: RingHeader) -> bytes:
    """Encode a header, padded to HEADER_BYTES (recorders and tests; the shim writes its own in C++)."""
    packed = _HEADER.pack(
        RING_MAGIC,
        RING_VERSION,
        HEADER_BYTES,
        RECORD_BYTES,
        header.capacity,
        header.pid,
        header.generation,
        header.rank,
        header.world_size,
        header.local_rank,
        0,
        header.start_unix_ns,
        header.start_ns,
        header.head,
    )
    return packed.ljust(HEADER_BYTES, b"\0")


def checks(records: RecordArray) -> npt.NDArray[np.uint32]:
    """Compute the check word of each record: shape [n], dtype RECORD_DTYPE → uint32 [n].

    ``h = seq; for each of the 7 following u64 words w (the last with check = 0): h = (h ^ w) * 0x9E3779B97F4A7C15;
    h ^= h >> 32`` in arithmetic modulo 2^64; the low 32 bits of h are stored. The shim computes the same.
    """
    words = np.ascontiguousarray(records).view("<u8").reshape(-1, RECORD_BYTES // 8).T.copy()
    words[7] &= np.uint64(0xFFFFFFFF)
    mixed = words[0]
    for word in words[1:]:  # whole numbers in arrays wrap without a warning
        mixed ^= word
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(32)
    low: npt.NDArray[np.uint32] = mixed.astype(np.uint32)
    return low
