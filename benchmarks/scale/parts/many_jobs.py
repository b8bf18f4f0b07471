"""Many jobs that are well: what they cost, and how that grows with their number.

12 800 agents need a core for themselves, which a machine of two cores does not have beside what is measured. So the
largest steps are played more slowly: every agent waits ``SLOWER`` times as long between two beats and two reports. What
gateway, etcd and operator use is multiplied by that. This is more than they would use at full speed, since a part of it
does not depend on the agents. A step that is played at both speeds says how much more.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.scale import meter
from benchmarks.scale.room import room, say

PODS: Final = 64
RANKS: Final = 8
SETTLE_SECONDS: Final = 45.0  # figures of the jobs' first iterations are written out by then
SETTLE_SECONDS_A_JOB: Final = 0.6  # at least: what came while pods were made is worked off by then
SLOWER: Final = 1.4  # a report is still newer than ``FRESH_SECONDS``, and a beat younger than the gateway's silence
AT_ONCE: Final = 50  # jobs that begin together


async def measure(programs: Path, steps: Sequence[int], seconds: float, *, slower: float = 1.0) -> list[meter.Cost]:
    """Measure with so many jobs, step by step, for so many seconds each."""
    costs = []
    with tempfile.TemporaryDirectory(prefix="falcon-scale-") as folder:
        async with room(programs, Path(folder), slower=slower) as found:
            for jobs in steps:
                while (begun := len(found.trainings)) < jobs:
                    names = [f"job-{number}" for number in range(begun, min(jobs, begun + AT_ONCE))]
                    await found.begin(names, PODS, RANKS)
                await asyncio.sleep(max(SETTLE_SECONDS, jobs * SETTLE_SECONDS_A_JOB))
                costs.append(await meter.measure(found, f"{jobs} jobs × {PODS} pods × {RANKS} ranks, well", seconds))
                say(costs[-1].row())
    return costs
