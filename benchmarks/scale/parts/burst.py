"""Nodes that are lost: how soon the operator decides, one at a time and two hundred at once.

A node that dies takes its agent's stream along, and some time later Kubernetes marks it as not ready. Both witnesses
are needed for a fence.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.scale.room import Body, Room, room, say
from benchmarks.scale.training import Pod

BURST_JOBS: Final = 20
BURST_PODS: Final = 16
LOST: Final = 200  # nodes at once, the same number in each of the burst's jobs
SINGLES: Final = 40  # jobs that lose one node each, one after the other
SINGLE_PODS: Final = 2
RANKS: Final = 8
SETTLE_SECONDS: Final = 15.0
SILENCE_SECONDS: Final = 5.0  # from the stream's end until the agent counts as silent, with time to spare
BETWEEN_SECONDS: Final = 1.0  # two single losses
DECIDED_SECONDS: Final = 120.0
UNBOUNDED: Final = "1000000"  # fences in a window: what is measured is not the breaker


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, in seconds."""

    jobs: int
    lost: int
    excluded: list[float]  # from the loss to the exclusion in the TrainingRun, in order
    fenced: list[float]  # single losses, from the second witness to the fence in the TrainingRun, in order


class _Decisions:
    """When the TrainingRuns first named nodes as excluded, and as fenced: unix seconds by node."""

    def __init__(self) -> None:
        self.excluded: dict[str, float] = {}
        self.fenced: dict[str, float] = {}

    def take(self, run: Body) -> None:
        now = time.time()
        for exclusion in run.get("spec", {}).get("exclusions", []):
            self.excluded.setdefault(exclusion["node"], now)
            if exclusion.get("fenced"):
                self.fenced.setdefault(exclusion["node"], now)


async def measure(programs: Path, jobs: int = BURST_JOBS, pods: int = BURST_PODS, singles: int = SINGLES) -> Burst:
    """Measure single losses first, then ``LOST`` at once across so many jobs of so many pods."""
    decisions = _Decisions()
    with tempfile.TemporaryDirectory(prefix="falcon-scale-") as folder:
        async with room(programs, Path(folder), FALCON_FENCE_LIMIT=UNBOUNDED) as found:
            await found.begin([f"single-{number}" for number in range(singles)], SINGLE_PODS, RANKS)
            await found.begin([f"burst-{number}" for number in range(jobs)], pods, RANKS)
            await asyncio.sleep(SETTLE_SECONDS)
            async with found.watch("trainingruns", decisions.take):
                await asyncio.sleep(2.0)
                witnessed = await _lose_single_nodes(found, decisions, singles)
                fenced = sorted(decisions.fenced[node] - at for node, at in witnessed.items())
                say(f"{len(fenced)} nodes one by one: fences decided within {fenced[-1]:.3f} s")
                lost = [pod for number in range(jobs) for pod in _some(found, f"burst-{number}", LOST // jobs)]
                began = time.time()
                await _lose(found, lost)
                nodes = [found.nodes[pod.uid] for pod in lost]
                await found.until(lambda: all(node in decisions.excluded for node in nodes), seconds=DECIDED_SECONDS)
                excluded = sorted(decisions.excluded[node] - began for node in nodes)
                say(f"{len(nodes)} nodes at once: excluded within {excluded[-1]:.2f} s")
    return Burst(jobs=jobs, lost=len(nodes), excluded=excluded, fenced=fenced)


def _some(found: Room, job: str, count: int) -> Sequence[Pod]:
    """Return some of a job's pods, not the first, where the ranks meet."""
    return found.trainings[job].pods[1 : 1 + count]


async def _lose(found: Room, pods: Sequence[Pod]) -> None:
    """Let agents and nodes go at the same time."""
    for pod in pods:
        found.of(pod).end(pod)
    await found.agents.drain()
    await found.kubelets.lose([found.nodes[pod.uid] for pod in pods])


async def _lose_single_nodes(found: Room, decisions: _Decisions, singles: int) -> dict[str, float]:
    """Lose a node of each single job. Return when its second witness was there, unix seconds by node."""
    witnessed: dict[str, float] = {}

    async def lose(number: int) -> None:
        await asyncio.sleep(number * BETWEEN_SECONDS)
        [pod] = _some(found, f"single-{number}", 1)
        found.of(pod).end(pod)
        await found.agents.drain()
        await asyncio.sleep(SILENCE_SECONDS)
        node = found.nodes[pod.uid]
        assert node not in decisions.excluded, "a silent agent alone proves nothing"
        await found.kubelets.lose([node])
        witnessed[node] = time.time()

    await asyncio.gather(*(lose(number) for number in range(singles)))
    await found.until(lambda: all(node in decisions.fenced for node in witnessed), seconds=DECIDED_SECONDS)
    return witnessed
