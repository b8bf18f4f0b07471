"""Ten thousand random pauses: ``python -m benchmarks.shim.pauses [OF_THE_MODEL] [PER_REAL_JOB] [KIND-RANKS-SECONDS…]``.

First on the model of blocking and enqueuing libraries (tests/unit/shim/pause_model.py) with 2 … 6 ranks, then on real
Gloo jobs (tests/gpu/programs/paused.py), whose losses must come out the same, bit for bit. Every other
pause of a job asks for an iteration's start, the others equalise the counts: the times of both are of the same run.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.integration.shim.pausing import Job, Outcome, pause_at_random
from tests.unit.shim.pause_model import Model, pause_once, run_to_end
from tests.unit.shim.pause_rules import Cut, Phase

# Kind, ranks, seconds of computation and iterations for about ten pauses.
JOBS = (
    ("groups", 2, 0.0, 20),
    ("groups", 3, 0.0, 7),
    ("groups", 4, 0.0, 7),
    ("groups", 5, 0.0, 7),
    ("groups", 6, 0.0, 7),
    ("pipeline", 2, 0.0, 6),
    ("pipeline", 3, 0.0, 3),
    ("pipeline", 4, 0.0, 3),
    ("pipeline", 6, 0.0, 3),
    ("ddp", 2, 0.0, 12),
    # Iterations long enough for their period to be found in a second: half of the pauses ask for an iteration's start.
    ("groups", 3, 0.02, 20),
    ("groups", 4, 0.02, 20),
    ("pipeline", 3, 0.02, 20),
    ("pipeline", 4, 0.02, 20),
    ("ddp", 2, 0.02, 20),
    ("evaluating", 2, 0.02, 20),
    ("anyone", 3, 0.02, 20),
)
DEADLINE_SECONDS = 20.0
_NUMBERS = re.compile(r"\d+")


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


def of_a_job(
    kind: str, size: int, compute_seconds: float, iterations: int, pauses: int, more: Mapping[str, str] | None = None
) -> int:
    """Pause a job at random moments, and print what happened; returns how many pauses closed.

    The job is Gloo's unless ``more``, for the ranks' environment, says that they compute on GPUs.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        job = Job(Path(folder), kind, size, iterations, compute_seconds, more)
        try:
            job.wait_for_first_run()
            began = time.monotonic()
            gap = 0.004 + 2 * compute_seconds  # anywhere in an iteration
            outcomes = pause_at_random(
                job, seed=size, at_most=pauses, deadline_seconds=DEADLINE_SECONDS, gap_seconds=gap
            )
            seconds = time.monotonic() - began
            same = job.finish()
        finally:
            job.kill()
    # The job's end meets the last pause: a rank that has ended never comes to its gate.
    if outcomes and not outcomes[-1].closed:
        outcomes.pop()
    closed = [outcome for outcome in outcomes if outcome.closed]
    library = "NCCL" if more else "Gloo"
    print(
        f"{library}, {kind}, {size} ranks, {compute_seconds * 1e3:.0f} ms of computation: {len(outcomes)} pauses in "
        f"{seconds:.0f} s, {len(closed)} closed, {len(outcomes) - len(closed)} ended at the deadline, "
        f"{sum(outcome.moved for outcome in outcomes)} calls begun behind closed gates; "
        f"losses {'the same, bit for bit' if same else 'DIFFER'}"
    )
    print_cuts("iteration start preferred", [outcome for outcome in closed if outcome.preferred])
    print_cuts("counts equalised", [outcome for outcome in closed if not outcome.preferred])
    return len(closed)


def print_cuts(asked_for: str, closed: list[Outcome]) -> None:
    """Print where closed pauses stopped, and how long that took."""
    if not closed:
        return
    times = np.asarray([outcome.seconds_to_cut for outcome in closed]) * 1e3
    starts = sum(outcome.cut is Cut.ITERATION_START for outcome in closed)
    why = Counter(_NUMBERS.sub("n", outcome.fallback) for outcome in closed if outcome.preferred and outcome.fallback)
    print(
        f"  {asked_for}: {len(closed)}, of them {starts} at an iteration's start; to the cut {np.median(times):.1f} ms "
        f"(p99 {np.percentile(times, 99):.1f}, most {times.max():.1f}); cut moved on "
        f"{sum(outcome.moves for outcome in closed)} times; otherwise {dict(why)}",
        flush=True,
    )


def main() -> None:
    model = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    real = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    if model:
        of_the_model(model)
    kinds = set(sys.argv[3:])
    closed = sum(
        of_a_job(kind, size, seconds, iterations * real // 10, 10**6 if seconds == 0 else real)
        for kind, size, seconds, iterations in JOBS
        if not kinds or f"{kind}-{size}-{seconds:g}" in kinds
    )
    print(f"Gloo, all jobs: {closed} pauses closed")


if __name__ == "__main__":
    main()
