"""Ring files of jobs that do not exist."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from falcon_core.wire import ring
from tests.unit.signals.members import Job

COMM = 7


def write_ring(path: Path, records: ring.RecordArray, *, rank: int, world_size: int, generation: int = 1) -> Path:
    """A file that holds all of the records."""
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
    path.write_bytes(ring.pack_header(header) + told.tobytes() + bytes((capacity - len(told)) * ring.RECORD_BYTES))
    return path


def job_rings(folder: Path, job: Job) -> list[Path]:
    """One file a rank, with the descriptor of the communicator that all are in."""
    files = []
    for rank in range(job.ranks):
        described = np.zeros(1, dtype=ring.RECORD_DTYPE)
        described["kind"], described["comm"], described["group"] = ring.Kind.DESCRIPTOR, COMM, job.ranks
        described["peer_or_root"] = rank
        records = np.concatenate((described, job.records(rank)))
        files.append(write_ring(folder / f"g1-r{rank}-{100 + rank}.ring", records, rank=rank, world_size=job.ranks))
    return files
