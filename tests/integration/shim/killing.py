"""A ring's writer killed by SIGKILL in a tight loop of appends, while a reader drains it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import msgspec
import numpy as np

from falcon_agent.rings.ring_reader import HOLE_SECONDS, RingReader
from falcon_core.wire.ring import RecordArray

DRIVER = Path(os.environ.get("SHIM_TEST_OUT", "")) / "ring_stress"
THREADS = 3
CAPACITY = 4096
# A thread leaves two slots at most that cannot be read: the slot in which it dies, and, where the other threads lapped
# it in the middle of an append, the slot that it then spoilt for them. It never leaves two spoilt slots: when it
# reserves again, the head is past the first spoilt slot, so that a slot that it spoils then has overwritten the first.
MOST_HOLES = 2 * THREADS
DEAD_READS = 2 * MOST_HOLES + 2  # each hole takes two: one that meets it, one that gives it up


class Killed(msgspec.Struct, frozen=True):
    """The reader's findings on one life of a writer."""

    records: int
    torn: int  # passed on although their payload does not add up
    out_of_order: int  # passed on twice or backwards
    lost: int  # overwritten before they were read
    holes: int  # reserved by a thread that died before it published, or spoilt by one that was lapped
    unaccounted: int  # of all reserved slots, those that are neither read, lost nor holes
    slowest_read_seconds: float


def _torn(records: RecordArray) -> int:
    return int((records["bytes"] != records["comm"] * np.uint64(1000003) + records["comm_seq"]).sum())


def kill_once(folder: Path, seed: int) -> Killed:
    """Start one writer of THREADS threads and kill it after 2 … 20 ms.

    The reader drains during its life and after its death until nothing is left.
    """
    process = subprocess.Popen(
        [str(DRIVER), str(folder), str(THREADS), "0", str(CAPACITY)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    reader = RingReader(Path(process.stdout.readline().strip()))
    killed_at = time.monotonic() + random.Random(seed).uniform(0.002, 0.02)
    taken = torn = backwards = last = 0
    slowest = 0.0
    dead_reads = 0
    while dead_reads < DEAD_READS:
        alive = process.poll() is None
        start = time.monotonic()
        # Once the writer is dead each read comes a hole's patience later.
        batch = reader.read(start if alive else start + (dead_reads + 1) * 2 * HOLE_SECONDS)
        slowest = max(slowest, time.monotonic() - start)
        taken += len(batch.records)
        torn += _torn(batch.records)
        numbers = np.concatenate([[last], batch.records["seq"].astype(np.int64)])
        backwards += int((np.diff(numbers) <= 0).sum())
        last = int(numbers[-1])
        dead_reads += not alive
        if alive and time.monotonic() >= killed_at:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
    head = int.from_bytes(Path(reader.path).read_bytes()[64:72], "little")
    reader.close()
    Path(reader.path).unlink()
    process.stdout.close()
    unaccounted = head - taken - reader.lost_records - reader.holes
    return Killed(taken, torn, backwards, reader.lost_records, reader.holes, unaccounted, slowest)
