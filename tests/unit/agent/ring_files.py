"""Ring files of invented jobs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from falcon_core.wire import ring
from tests.unit.signals.members import Job

COMM = 7


def write_ring(
    path: Path,
    records: ring.RecordArray,
    *,
    rank: int,
    world_size: int,
    generation: int = 1,
    counters: Mapping[int, tuple[int, int]] | None = None,
) -> Path:
    """Write a ring file that holds all of the records.

    ``counters``: the entered and finished counts by key; None writes a file as an earlier shim did, without counters.
    """
    numbered = records.copy()
    numbered["seq"] = np.arange(1, len(numbered) + 1)
    numbered["check"] = ring.checks(numbered)
    capacity = 1 << max(4, len(numbered).bit_length())
    header = ring.RingHeader(
        capacity=capacity,
        pid=100 + rank,
        generation=generation,
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        start_unix_ns=1_700_000_000_000_000_000,
        start_ns=rank * 12_345_678_901,  # the clock's reading at that moment: Job's clocks are as far apart
        head=len(numbered),
    )
    empty_slots = bytes((capacity - len(numbered)) * ring.RECORD_BYTES)
    raw = bytearray(ring.pack_header(header) + numbered.tobytes() + empty_slots)
    if counters is not None:
        table = np.zeros(len(counters) + 1, dtype=ring.COUNTER_DTYPE)  # the last entry is free
        for place, (key, (entered, finished)) in enumerate(counters.items()):
            table[place]["key"], table[place]["entered"], table[place]["finished"] = key, entered, finished
        struct.pack_into("<QII", raw, 128, len(raw), len(table), ring.COUNTER_BYTES)
        raw += table.tobytes()
    path.write_bytes(raw)
    return path


def descriptor(comm: int, size: int, place: int) -> ring.RecordArray:
    """Return the record that announces a new communicator."""
    record: ring.RecordArray = np.zeros(1, dtype=ring.RECORD_DTYPE)
    record["kind"], record["comm"], record["group"] = ring.Kind.DESCRIPTOR, comm, size
    record["peer_or_root"] = place
    return record


def job_rings(folder: Path, job: Job) -> list[Path]:
    """Write one ring file for each rank, with the descriptor of the communicator that all ranks share."""
    files = []
    for rank in range(job.ranks):
        records = np.concatenate((descriptor(COMM, job.ranks, rank), job.records(rank)))
        files.append(write_ring(folder / f"g1-r{rank}-{100 + rank}.ring", records, rank=rank, world_size=job.ranks))
    return files
