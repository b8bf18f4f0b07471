"""Test this machine alone: how fast it multiplies matrices and copies memory, and whether its disk works."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from falcon_agent.telemetry.cpu import read_counters, run_delay_ns, share
from falcon_core.wire.measurement.burn_in import BurnInReport

_SIZE = 384  # of the matrices: 1.2 MB each, beyond the first caches
_COPY_BYTES = 32 << 20
_COPY_SHARE, _COPY_SECONDS = 0.1, 2.0  # of the test, and at most


def burn_in(seconds: float, folder: Path, threads: int) -> BurnInReport:
    """Test the machine for about ``seconds`` on ``threads`` threads.

    The disk's test writes a small file to ``folder`` and reads it back. The matrix library must not make threads of its
    own (OPENBLAS_NUM_THREADS=1, set before numpy is loaded).
    """
    copy_seconds = min(_COPY_SECONDS, _COPY_SHARE * seconds)
    # Memory first and alone: matrices on all threads would take its bandwidth.
    copied = _copy_gb_per_second(copy_seconds)
    # The counters tell a slow machine from one whose CPU time was taken by others during the test.
    before = read_counters()
    multiplied = _multiply_on_all(seconds - copy_seconds, threads)
    after = read_counters()
    delays = [thread.run_delay_ns for thread in multiplied if thread.run_delay_ns is not None]
    threads_ns = sum(thread.seconds for thread in multiplied) * 1e9
    stolen = share(before.stolen_ticks, after.stolen_ticks, (after.busy_ticks or 0) - (before.busy_ticks or 0))
    return BurnInReport(
        threads=threads,
        gflops=round(sum(thread.gflops for thread in multiplied), 3),
        copy_gb_per_second=round(copied, 3),
        disk_error=_disk_error(folder),
        run_delay=_rounded(share(0, sum(delays), threads_ns) if len(delays) == threads else None),
        throttled=_rounded(share(before.throttled_ns, after.throttled_ns, threads_ns)),
        stolen=_rounded(stolen),
        cpu_pressure=_rounded(share(before.pressure_us, after.pressure_us, threads_ns / threads / 1000)),
    )


class _Multiplied(NamedTuple):
    """The result of one thread."""

    gflops: float
    seconds: float
    run_delay_ns: int | None


def _multiply_on_all(seconds: float, threads: int) -> list[_Multiplied]:
    together = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda _: _multiply(seconds, together), range(threads)))


def _multiply(seconds: float, together: threading.Barrier) -> _Multiplied:
    """Measure the calling thread's rate, from when all threads are warm.

    The rate is the mean over the whole time, not that of the fastest block. Whatever takes CPU away stops every block
    for some of the time, but may leave some single block undisturbed.
    """
    left = np.random.default_rng(1).standard_normal((_SIZE, _SIZE))
    right = left.T.copy()
    result = np.empty_like(left)
    np.matmul(left, right, out=result)  # the library starts its machinery at the first call
    together.wait()
    blocks = 0
    delay_before = run_delay_ns()
    began = time.perf_counter()
    while blocks == 0 or time.perf_counter() - began < seconds:
        np.matmul(left, right, out=result)
        blocks += 1
    took = time.perf_counter() - began
    delay_after = run_delay_ns()
    delay = delay_after - delay_before if delay_before is not None and delay_after is not None else None
    return _Multiplied(blocks * 2 * _SIZE**3 / took / 1e9, took, delay)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _copy_gb_per_second(seconds: float) -> float:
    """Measure how fast a single thread copies memory, in GB/s; bytes read and bytes written both count."""
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
            # A sick disk may take a write without an error and return other bytes.
            if Path(file.name).read_bytes() != content:
                return f"a file written to {folder} reads back differently"
    except OSError as error:
        return f"a file cannot be written to {folder}: {error}"
    return ""
