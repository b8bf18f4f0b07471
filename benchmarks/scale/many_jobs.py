"""Many jobs that are well: what they cost, and how that grows with their number."""

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


async def measure(programs: Path, steps: Sequence[int], seconds: float) -> list[meter.Cost]:
    """Measure with so many jobs, step by step, for so many seconds each."""
    costs = []
    with tempfile.TemporaryDirectory(prefix="falcon-scale-") as folder:
        async with room(programs, Path(folder)) as found:
            for jobs in steps:
                names = [f"job-{number}" for number in range(len(found.trainings), jobs)]
                await found.begin(names, PODS, RANKS)
                await asyncio.sleep(SETTLE_SECONDS)
                costs.append(await meter.measure(found, f"{jobs} jobs × {PODS} pods × {RANKS} ranks, well", seconds))
                say(costs[-1].row())
    return costs
