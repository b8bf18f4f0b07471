"""Ten thousand random consistent pauses: ``python -m benchmarks.shim.pauses [OF_THE_MODEL] [PER_REAL_JOB]``.

First on the model of blocking and enqueuing libraries (tests/unit/shim/pause_model.py) with 2 … 6 ranks, then on real
Gloo jobs (tests/integration/shim/programs/paused.py), whose losses must come out the same, bit for bit.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from falcon_core.recovery.pause import Phase
from tests.integration.shim.pausing import Job, pause_at_random
from tests.unit.shim.pause_model import Model, pause_once, run_to_end

# Kind, ranks, iterations for about ten pauses.
JOBS = (
    ("groups", 2, 20),
    ("groups", 3, 7),
    ("groups", 4, 7),
    ("groups", 5, 7),
    ("groups", 6, 7),
    ("pipeline", 2, 6),
    ("pipeline", 3, 3),
    ("pipeline", 4, 3),
    ("pipeline", 6, 3),
    ("ddp", 2, 12),
)
DEADLINE_SECONDS = 20.0


def of_the_model(count: int) -> None:
    for blocking in (True, False):
        pauses = closed = moved = undrained = hung = seed = 0
        while pauses < count // 2:
            model = Model(seed, ranks=2 + seed % 5, blocking=blocking, length=400)
            seed += 1
            while not any(rank.at > len(rank.calls) * 0.8 for rank in model.ranks):
                paused = pause_once(model)
                pauses += 1
                closed += paused.phase is Phase.CLOSED
                moved += paused.moved
                undrained += paused.undrained
                for _ in range(model.chance.randrange(300)):
                    model.tick()
            hung += not run_to_end(model)
        print(
            f"model, {'blocking' if blocking else 'enqueuing'}: {pauses} pauses in {seed} programs, {closed} closed, "
            f"{pauses - closed} ended at the deadline, {moved} calls begun behind closed gates, {undrained} left on a "
            f"device, {hung} programs hung"
        )


def of_a_job(kind: str, size: int, iterations: int) -> int:
    """Pauses that closed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        job = Job(Path(folder), kind, size, iterations)
        try:
            job.wait_for_first_run()
            began = time.monotonic()
            outcomes = pause_at_random(job, seed=size, at_most=10**6, deadline_seconds=DEADLINE_SECONDS)
            seconds = time.monotonic() - began
            same = job.finish()
        finally:
            job.kill()
    # The job's end meets the last pause: a rank that has ended never comes to its gate.
    if outcomes and not outcomes[-1].closed:
        outcomes.pop()
    times = np.asarray([outcome.seconds_to_cut for outcome in outcomes if outcome.closed]) * 1e3
    print(
        f"Gloo, {kind}, {size} ranks: {len(outcomes)} pauses in {seconds:.0f} s, {len(times)} closed, "
        f"{len(outcomes) - len(times)} ended at the deadline, {sum(outcome.moved for outcome in outcomes)} calls begun "
        f"behind closed gates; to the cut {np.median(times):.1f} ms (p99 {np.percentile(times, 99):.1f}, "
        f"most {times.max():.1f}); losses {'the same, bit for bit' if same else 'DIFFER'}",
        flush=True,
    )
    return len(times)


def main() -> None:
    model = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    real = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    if model:
        of_the_model(model)
    closed = sum(of_a_job(kind, size, iterations * real // 10) for kind, size, iterations in JOBS)
    print(f"Gloo, all jobs: {closed} pauses closed")


if __name__ == "__main__":
    main()
