"""A test of this machine alone: how fast it multiplies matrices and copies memory, and whether its disk works."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from falcon_core.wire.burn_in import BurnInReport

_SIZE = 384  # of the matrices: 1.2 MB each, beyond the first caches
_COPY_BYTES = 32 << 20
_COPY_SHARE, _COPY_SECONDS = 0.1, 2.0  # of the test, and at most


def burn_in(seconds: float, folder: Path, threads: int) -> BurnInReport:
    """Run for about ``seconds`` on ``threads`` threads; a small file is written to ``folder`` and read back.

    The matrix library must not make threads of its own (OPENBLAS_NUM_THREADS=1, set before numpy is loaded).
    """
    copy_seconds = min(_COPY_SECONDS, _COPY_SHARE * seconds)
    copied = _copy_gb_per_second(copy_seconds)
    return BurnInReport(
        threads=threads,
        gflops=round(_gflops(seconds - copy_seconds, threads), 3),
        copy_gb_per_second=round(copied, 3),
        disk_error=_disk_error(folder),
    )


def _gflops(seconds: float, threads: int) -> float:
    """The rate of all threads together.

    The mean over the whole time, not the fastest block's: whatever takes CPU away stops every block sometimes, and some
    blocks not at all.
    """
    together = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: _multiply(seconds, together), range(threads)))


def _multiply(seconds: float, together: threading.Barrier) -> float:
    """One thread's GFLOP/s, measured from when all threads are warm."""
    left = np.random.default_rng(1).standard_normal((_SIZE, _SIZE))
    right = left.T.copy()
    result = np.empty_like(left)
    np.matmul(left, right, out=result)  # the library starts its machinery at the first call
    together.wait()
    blocks = 0
    began = time.perf_counter()
    while blocks == 0 or time.perf_counter() - began < seconds:
        np.matmul(left, right, out=result)
        blocks += 1
    return blocks * 2 * _SIZE**3 / (time.perf_counter() - began) / 1e9


def _copy_gb_per_second(seconds: float) -> float:
    """Of one thread; bytes read and written together."""
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    durations: list[float] = []
    ends = time.perf_counter() + seconds
    while not durations or time.perf_counter() < ends:
        durations.append(_seconds_of(lambda: np.copyto(target, source)))
    return 2 * _COPY_BYTES / statistics.fmean(durations) / 1e9


def _seconds_of(work: Callable[[], object]) -> float:
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
