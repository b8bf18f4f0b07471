"""Processes that end in every way while a communicator lives: ``ends.py COUNT`` prints how each way ended, as JSON.

Each process is a rank alone, made by a fork of this one, which has imported PyTorch and touched no device. With CUDA
its calls are still on the device when it ends. A process that has not ended after a minute counts as ``hangs``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import job
import torch
import torch.distributed as dist

PATIENCE_SECONDS = 60.0


def fail() -> None:
    raise RuntimeError("as a training script fails")


def end_by_signal(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


WAYS: dict[str, Callable[[], object]] = {
    "returns": lambda: None,
    "leaves the group first": dist.destroy_process_group,
    "aborts its communicators first": lambda: job.CUDA and dist.distributed_c10d._abort_process_group(),
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(4),
    "exception": fail,
    "SIGTERM": lambda: end_by_signal(signal.SIGTERM),
    "SIGABRT": lambda: end_by_signal(signal.SIGABRT),
    "SIGKILL": lambda: end_by_signal(signal.SIGKILL),
}


def live(way: str) -> None:
    """Make calls, and end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # tracebacks and NCCL's words on the end
    job.begin()
    value = torch.ones(1 << 16)
    for _ in range(200):
        dist.all_reduce(value)
    WAYS[way]()


def end_of(pid: int) -> str:
    """Wait for a process, and say how it ended."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return signal.Signals(-code).name if code < 0 else f"code {code}"
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def main(count: int) -> None:
    ends: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    rings = Path(os.environ["FALCON_RING_DIR"])
    seen = 0
    for number in range(count):
        way = list(WAYS)[number % len(WAYS)]
        pid = os.fork()
        if pid == 0:
            return live(way)
        ends[way][end_of(pid)] += 1
        for ring in rings.glob(f"*-{pid}.ring"):
            seen += 1
            ring.unlink()
    print(json.dumps({"ends": ends, "rings": seen}), flush=True)
    return None


main(int(sys.argv[1]))
