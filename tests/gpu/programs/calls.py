"""What a call costs on the host, and how long the device works on it: ``calls.py FOLDER ROUNDS``. Needs a GPU.

Writes to FOLDER, for benchmarks.shim.gpu: ``calls-<rank>.json`` with the median host time of an all-reduce in ns, the
CPU seconds of each thread by name while calls were outstanding and the seconds of that, and the device times of the
last CALLS all-reduces, in ns and in order, as PyTorch's profiler (CUPTI) has them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

import job
import torch
import torch.distributed as dist

CALLS = 50  # of a burst: not so many that the device's queue is full
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> dict[str, float]:
    """Return the CPU time of this process's threads, by their names."""
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        found[name] = found.get(name, 0.0) + sum(map(int, fields.split()[11:13])) * TICK_SECONDS
    return found


def burst(value: torch.Tensor) -> list[int]:
    times = []
    for _ in range(CALLS):
        began = time.perf_counter_ns()
        dist.all_reduce(value)
        times.append(time.perf_counter_ns() - began)
    torch.cuda.synchronize()
    return times


def device_times(value: torch.Tensor) -> list[int]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        burst(value)
    kernels = [event for event in profiled.events() if event.name.startswith("ncclDevKernel")]
    kernels.sort(key=lambda event: event.time_range.start)
    return [round(1e3 * event.time_range.elapsed_us()) for event in kernels]


def main(folder: str, rounds: int) -> None:
    job.begin()
    value = torch.ones(1 << 20)
    burst(value)
    before, began = cpu_seconds(), time.monotonic()
    times = [each for _ in range(rounds) for each in burst(value)]
    seconds = time.monotonic() - began
    used = {name: spent - before.get(name, 0.0) for name, spent in cpu_seconds().items()}
    figures = {
        "host_ns": statistics.median(times),
        "seconds": seconds,
        "cpu_seconds": used,
        "device_ns": device_times(value),
    }
    Path(folder, f"calls-{dist.get_rank()}.json").write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]))
