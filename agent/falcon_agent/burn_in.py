"""A test of this machine alone: how fast it multiplies matrices and copies memory, and whether its disk works."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from falcon_core.wire.burn_in import BurnInReport

_SIZE = 384  # of the matrices: 1.2 MB each, beyond the first caches
_COPY_BYTES = 32 << 20


def burn_in(seconds: float, folder: Path) -> BurnInReport:
    """Run for about ``seconds``; ``folder`` is where a small file is written and read back."""
    left = np.random.default_rng(1).standard_normal((_SIZE, _SIZE))
    right = left.T.copy()
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    gemm: list[float] = []
    copy: list[float] = []
    ends = time.monotonic() + seconds
    left @ right  # warm: the library starts its machinery at the first call
    while not gemm or time.monotonic() < ends:
        gemm.append(_seconds_of(lambda: left @ right))
        if len(gemm) % 20 == 1:
            copy.append(_seconds_of(lambda: np.copyto(target, source)))
    # The mean rate, not the fastest block's: a quota stops every block sometimes, and some not at all.
    return BurnInReport(
        gflops=round(2 * _SIZE**3 / statistics.fmean(gemm) / 1e9, 3),
        copy_gb_per_second=round(2 * _COPY_BYTES / statistics.fmean(copy) / 1e9, 3),
        disk_error=_disk_error(folder),
    )


def _seconds_of(work: object) -> float:
    assert callable(work)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _disk_error(folder: Path) -> str:
    content = os.urandom(1 << 20)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if Path(file.name).read_bytes() != content:
                return f"a file written to {folder} reads back differently"
    except OSError as error:
        return f"a file cannot be written to {folder}: {error}"
    return ""
