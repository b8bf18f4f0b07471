"""One large job: its cost while it is well and while a hundred of its ranks are slow, and how soon they are named."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.scale import meter
from benchmarks.scale.parts import hour
from benchmarks.scale.room import SECOND, Body, Room, room, say

PODS: Final = 1_250
FEW: Final = 3  # pods of the job with which a diagnosis is compared
RANKS: Final = 8
SLOW_RANKS: Final = 100
FACTOR: Final = 2.0  # as long as before
SETTLE_SECONDS: Final = 20.0
DIAGNOSIS_SECONDS: Final = 180.0
_JOB: Final = "pretraining"


class Onset(msgspec.Struct, frozen=True, kw_only=True):
    """How soon a slowdown was named."""

    pods: int
    slow_ranks: int
    seconds: float  # from the first slow iteration to the first diagnosis in the TrainingJob's status


class OneJob(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    costs: list[meter.Cost]
    few: Onset
    many: Onset
    hour: hour.Hour


async def measure(programs: Path, pods: int, seconds: float) -> OneJob:
    """Measure a job of so many pods, for so many seconds in each state."""
    few, _, _ = await _job(programs, FEW, 1, 0.0)
    many, costs, writes = await _job(programs, pods, SLOW_RANKS, seconds)
    return OneJob(costs=costs, few=few, many=many, hour=await hour.measure(writes))


async def _job(
    programs: Path, pods: int, slow_ranks: int, seconds: float
) -> tuple[Onset, list[meter.Cost], hour.Writes]:
    with tempfile.TemporaryDirectory(prefix="falcon-scale-") as folder:
        async with room(programs, Path(folder)) as found:
            await found.begin([_JOB], pods, RANKS, mode="Observe")
            await asyncio.sleep(SETTLE_SECONDS)
            costs = []
            if seconds:
                costs.append(await meter.measure(found, f"one job, {pods} × {RANKS} ranks, well", seconds))
                say(costs[-1].row())
            onset = await _slow_down(found, pods, slow_ranks)
            if not seconds:
                return onset, [], hour.Writes(seconds=1.0, puts=[])
            costs.append(await meter.measure(found, f"the same, {slow_ranks} ranks slow", seconds))
            say(costs[-1].row())
            return onset, costs, await hour.record(found.etcd, 20.0)


async def _slow_down(found: Room, pods: int, slow_ranks: int) -> Onset:
    """Slow ranks of as many pods down, as far as there are pods."""
    named: list[float] = []

    def take(body: Body) -> None:
        if not named and any(note.get("rank") is not None for note in body.get("status", {}).get("diagnoses", [])):
            named.append(time.time())

    async with found.watch("trainingjobs", take):
        await asyncio.sleep(1.0)
        step = pods * RANKS // slow_ranks
        training = found.trainings[_JOB]
        # each with another offset within its pod, so that the slow ranks are no pattern
        ranks = [min(index * step + index % RANKS, pods * RANKS - 1) for index in range(slow_ranks)]
        since = training.slow_down(ranks, FACTOR, time.time_ns()) / SECOND
        await found.until(lambda: named, seconds=DIAGNOSIS_SECONDS, every=0.05)
    onset = Onset(pods=pods, slow_ranks=slow_ranks, seconds=named[0] - since)
    assert math.isfinite(onset.seconds)
    say(f"{pods} pods: named {onset.seconds:.2f} s after the first slow iteration")
    return onset
