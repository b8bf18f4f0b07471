"""What the anomaly service costs: CPU time of a chunk and of a look, and its memory, with two hours of a job's series.

``python -m benchmarks.anomaly_service [--ranks 64]``; ``--check`` fails beyond 250 MiB or a twentieth of a core.

All of the service's modules are loaded, and its own classes take encoded chunks as gateways pass them on; streams and
HTTP are left out. Series are noise round a level, the same for all ranks: no verdict is expected.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from falcon_anomaly import process  # for its memory
from falcon_anomaly.inbox import Arrival
from falcon_anomaly.jobs import BUDGET_SECONDS, LOOK_SECONDS, Jobs
from falcon_core.wire.overview import encode_overview
from falcon_core.wire.series import WINDOWS, Phase, Window, encode_chunk

METRICS: Final = (
    "cpu", "run_delay", "cpu_throttled", "cpu_pressure", "memory_pressure", "io_pressure", "memory", "threads",
    "open_files", "network_in", "network_out", "retransmits", "disk:/data", "inodes:/data", "iteration", "computation",
    "wait", "loss", "grad_norm", "error_lines",
)  # fmt: skip
MINUTES: Final = 120
LOOKS: Final = 5
MOST_MIB: Final = 250.0
MOST_SHARE: Final = 0.05  # of a core, for 64 ranks


def chunk(rank: int, minute: int, noise: np.random.Generator) -> bytes:
    """Return a minute of a rank's series."""
    values = 1 + 0.02 * noise.standard_normal((len(METRICS), WINDOWS))
    series = {
        name: [Window(each, 0.95 * each, 1.05 * each) for each in row]
        for name, row in zip(METRICS, values, strict=True)
    }
    series["error_lines"] = [Window(0.0, 0.0, 0.0)] * WINDOWS
    return encode_chunk({rank: series}, [Phase.TRAINING] * WINDOWS, generation=1, number=minute, age_ms=50)


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--check", action="store_true", help="fail beyond the limits for 64 ranks")
    args = parser.parse_args()
    assert process.EXIT_FAILED == 1
    empty = resident_mib()
    jobs, noise = Jobs(1 << 30, time.thread_time), np.random.default_rng(1)
    spent, sent = 0.0, 0
    looks: list[float] = []
    for minute in range(MINUTES + LOOKS):
        for rank in range(args.ranks):
            payload = chunk(rank, minute, noise)
            began = time.thread_time()
            jobs.take(Arrival("bench", "job", "uid", f"pod-{rank}", payload, 60.0 * minute))
            spent, sent = spent + time.thread_time() - began, sent + 1
        if minute >= MINUTES:
            began = time.thread_time()
            jobs.look(60.0 * minute + 30.0)
            looks.append(time.thread_time() - began)
    a_chunk, a_look = spent / sent, statistics.median(looks)
    share = a_look / LOOK_SECONDS + a_chunk * args.ranks / 60.0
    mib = resident_mib()
    print(
        f"{args.ranks} ranks x {len(METRICS)} metrics x 2 h: a chunk {a_chunk * 1e3:.2f} ms, a look {a_look:.3f} CPU s"
    )
    began = time.thread_time()
    overview = jobs.overview("uid", 7200.0, 60.0 * (MINUTES + LOOKS))
    took = time.thread_time() - began
    if overview is not None:
        size = len(encode_overview(overview))
        print(f"an overview {took:.3f} CPU s for {overview.compared} of {overview.metrics} metrics, {size} bytes")
    print(f"{100 * share:.1f} % of a core; looks may take {100 * BUDGET_SECONDS / LOOK_SECONDS:.0f} %")
    print(f"resident {mib:.0f} MiB, of it {jobs.byte_size / 2**20:.0f} MiB of series; empty {empty:.0f} MiB")
    print(f"verdicts: {sum(len(job.verdicts) for job in jobs.answer(60.0 * (MINUTES + LOOKS)).jobs)}")
    return int(args.check and (mib > MOST_MIB or share > MOST_SHARE))


if __name__ == "__main__":
    sys.exit(main())
