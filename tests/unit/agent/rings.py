"""Ring files of jobs that do not exist."""

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
    """A file that holds all of the records; ``counters``: entered and finished by key, None as of an earlier shim."""
    told = records.copy()
    told["seq"] = np.arange(1, len(told) + 1)
    told["check"] = ring.checks(told)
    capacity = 1 << max(4, len(told).bit_length())
    header = ring.RingHeader(
        capacity=capacity,
        pid=100 + rank,
        generation=generation,
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        start_unix_ns=1_700_000_000_000_000_000,
        start_ns=rank * 12_345_678_901,  # the clock's reading at that moment: Job's clocks are as far apart
        head=len(told),
    )
    raw = bytearray(ring.pack_header(header) + told.tobytes() + bytes((capacity - len(told)) * ring.RECORD_BYTES))
    if counters is not None:
        table = np.zeros(len(counters) + 1, dtype=ring.COUNTER_DTYPE)  # one is free
        for place, (key, (entered, finished)) in enumerate(counters.items()):
            table[place]["key"], table[place]["entered"], table[place]["finished"] = key, entered, finished
        struct.pack_into("<QII", raw, 128, len(raw), len(table), ring.COUNTER_BYTES)
        raw += table.tobytes()
    path.write_bytes(raw)
    return path


def descriptor(comm: int, size: int, place: int) -> ring.RecordArray:
    """A communicator comes to life."""
    told: ring.RecordArray = np.zeros(1, dtype=ring.RECORD_DTYPE)
    told["kind"], told["comm"], told["group"] = ring.Kind.DESCRIPTOR, comm, size
    told["peer_or_root"] = place
    return told


def job_rings(folder: Path, job: Job) -> list[Path]:
    """One file a rank, with the descriptor of the communicator that all are in."""
    files = []
    for rank in range(job.ranks):
        records = np.concatenate((descriptor(COMM, job.ranks, rank), job.records(rank)))
        files.append(write_ring(folder / f"g1-r{rank}-{100 + rank}.ring", records, rank=rank, world_size=job.ranks))
    return files
