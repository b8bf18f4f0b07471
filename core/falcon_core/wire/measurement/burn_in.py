"""Define the result of a node's test (a burn-in): JSON in its container's termination message, at most 4096 bytes.

The agent's ``burn-in`` command writes the report, the kubelet carries it into the pod's status, and the operator reads
it there. Fields are only added, with defaults, so that agent and operator may be one minor version apart.
"""

from __future__ import annotations

import msgspec

BURN_IN_VERSION = 1


class BurnInReport(msgspec.Struct, frozen=True, kw_only=True):
    """A test's results, and what kept the test from its CPUs meanwhile. None: the counter could not be read.

    Rates are means over the whole test, shares lie between 0 and 1.
    """

    version: int = BURN_IN_VERSION
    gflops: float  # matrix multiplication, GFLOP/s of all threads together
    threads: int = 1
    copy_gb_per_second: float | None = None  # memory copied by a thread, bytes read and written together, GB/s
    disk_error: str = ""  # empty: a file was written and read back
    run_delay: float | None = None  # share of the threads' time in which they could have run and had no CPU
    throttled: float | None = None  # the part of ``run_delay`` that the container's own quota accounts for
    stolen: float | None = None  # share of the machine's busy time that the hypervisor gave to other machines
    cpu_pressure: float | None = None  # share of the time in which a task of the machine waited for a CPU


def encode_report(report: BurnInReport) -> bytes:
    """Encode as a line of JSON."""
    return msgspec.json.encode(report)


def decode_report(message: str) -> BurnInReport:
    """Read a report. Raises ValueError where the text is none; the message names the fault."""
    return msgspec.json.decode(message, type=BurnInReport)


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the benchmark executor in the pool's own image (``falcon_start.bench``)."""

    scores: dict[str, float] = {}  # rates by name, the higher the better


def decode_bench(message: str) -> BenchReport:
    """Read a bench's report. Raises ValueError where the text is none."""
    return msgspec.json.decode(message, type=BenchReport)
