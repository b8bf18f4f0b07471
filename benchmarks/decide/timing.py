"""Times every look at a described job with one code; what a look concludes is stored for the next look."""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from benchmarks.decide.description import Job, Look, read_job, read_look

WARM_UPS: Final = 2
TOO_LONG_SECONDS: Final = 10.0  # of CPU: such a look is taken once


class Code(Protocol):
    """One code under comparison, and what it has stored of the job."""

    def snapshot(self, look: Look) -> Any:
        """Return a new snapshot: what is cached in it belongs to one look."""
        ...

    def decide(self, snap: Any) -> Any: ...

    def store(self, decision: Any) -> None: ...

    def sizes(self) -> dict[str, int]:
        """Return the bytes of what is stored, by object."""
        ...


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one look."""

    what: str
    cpu_ms: float
    wall_ms: float
    times: int  # it was taken
    summary: str  # what the status says then


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The times that a code needed for one case; the first look only lets the code know the healthy job."""

    looks: list[Timing]
    bytes: dict[str, int]  # stored after the last look


def measure(code: Code, folder: Path, job: Job, repetitions: int) -> Report:
    """Time all looks."""
    looks = []
    for name in job.looks:
        look = read_look(folder, name)
        timing, decision = _time(code, look, repetitions)
        code.store(decision)
        looks.append(timing)
    return Report(looks=looks, bytes=code.sizes())


def _time(code: Code, look: Look, repetitions: int) -> tuple[Timing, Any]:
    cpu: list[float] = []
    wall: list[float] = []
    decision = None
    gc.collect()
    while len(cpu) < WARM_UPS + repetitions and not (cpu and cpu[0] > TOO_LONG_SECONDS):
        snap = code.snapshot(look)
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        decision = code.decide(snap)
        wall.append(time.perf_counter() - wall_start)
        cpu.append(time.process_time() - cpu_start)
    counted = slice(WARM_UPS, None) if len(cpu) > WARM_UPS else slice(None)
    assert decision is not None
    timing = Timing(
        what=look.what,
        cpu_ms=statistics.median(cpu[counted]) * 1e3,
        wall_ms=statistics.median(wall[counted]) * 1e3,
        times=len(cpu[counted]),
        summary=decision.status.summary,
    )
    return timing, decision


def main(code_of: Any) -> None:
    """Measure the case in the folder that the command line names; writes the report as JSON to standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args()
    job = read_job(options.folder)
    report = measure(code_of(job), options.folder, job, options.repetitions)
    sys.stdout.buffer.write(msgspec.json.encode(report))
