"""The ranks' output through falcon-launch beside a bare pipe: MB/s, and the launcher's CPU at 100 MB/s.

    make venv shim && SHIM_OUT=… python -m benchmarks.launch.output      # SHIM_OUT: where `make shim` put it

Lines of 200 bytes. Through and bare take turns, so that both see the same machine; medians. MB are 10⁶ bytes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import IO, Final

from benchmarks.launch.processes import cpu_seconds, launched

RUNS: Final = 7
BYTES: Final = 1_000_000_000
PACED_BYTES: Final = 500_000_000
PACED_BYTES_PER_SECOND: Final = 100_000_000
LINE: Final = "x" * 199

PACED: Final = f"""
import os, time
block = b"{LINE}\\n" * 5000
began, written = time.monotonic(), 0
while written < {PACED_BYTES}:
    if written > (time.monotonic() - began) * {PACED_BYTES_PER_SECOND}:
        time.sleep(0.002)
        continue
    left = memoryview(block)
    while left:
        left = left[os.write(1, left):]
    written += len(block)
time.sleep(1000)
"""


def producer(count: int) -> list[str]:
    return ["sh", "-c", f"yes {LINE} | head -c {count}; exec sleep 1000"]


def seconds_to_read(stream: IO[bytes] | None, count: int) -> float:
    """Return the seconds from the first bytes to the last."""
    assert stream is not None
    left = count - len(os.read(stream.fileno(), 1 << 20))
    began = time.monotonic()
    while left > 0:
        left -= len(os.read(stream.fileno(), 1 << 20))
    return time.monotonic() - began


def bare() -> float:
    """Return MB/s of one producer on a pipe of its own."""
    with subprocess.Popen(producer(BYTES), stdout=subprocess.PIPE) as process:
        seconds = seconds_to_read(process.stdout, BYTES)
        process.kill()
    return BYTES / seconds / 1e6


def through(procs: int) -> tuple[float, float]:
    """Return MB/s of all ranks together, and the launcher's CPU seconds a GB."""
    with launched(*producer(BYTES // procs)) as launcher:
        launcher.wait(state="Idle")
        launcher.run(procs=procs)
        seconds = seconds_to_read(launcher.process.stdout, BYTES // procs * procs)
        return BYTES / seconds / 1e6, cpu_seconds(launcher.process.pid) / (BYTES / 1e9)


def paced() -> tuple[float, float]:
    """Return MB/s that arrived, and the launcher's CPU in cores."""
    with launched(sys.executable, "-c", PACED) as launcher:
        launcher.wait(state="Idle")
        launcher.run()
        seconds = seconds_to_read(launcher.process.stdout, PACED_BYTES)
        return PACED_BYTES / seconds / 1e6, cpu_seconds(launcher.process.pid) / seconds


def main() -> None:
    plain, single, four = [], [], []
    for _ in range(RUNS):
        plain.append(bare())
        single.append(through(1))
        four.append(through(4))
    base = statistics.median(plain)
    print(f"bare pipe: {base:.0f} MB/s (from {min(plain):.0f} to {max(plain):.0f})")
    for name, runs in (("one rank", single), ("four ranks, lines kept whole", four)):
        rate, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
        rates = [run[0] for run in runs]
        print(
            f"{name}: {rate:.0f} MB/s (from {min(rates):.0f} to {max(rates):.0f}), {rate / base:.2f} of the bare pipe, "
            f"{cpu:.2f} CPU seconds a GB"
        )
    rate, cores = (statistics.median(column) for column in zip(*(paced() for _ in range(3)), strict=True))
    print(f"one rank at {rate:.0f} MB/s: {100 * cores:.1f} % of a core")


if __name__ == "__main__":
    main()
