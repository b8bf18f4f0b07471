"""How a story is told: an operator over a world, and what the tests read of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from falcon_operator.api import DiagnosisStatus, TrainingJobStatus
from falcon_operator.job.reconciler import JobReconciler
from falcon_operator.manifests.instrument import PodSettings
from falcon_operator.ports import Conflict
from tests.unit.operator.world import Crash, World


class Settings:
    namespace = "falcon-system"
    pods = PodSettings(agent_image="agent", etcd_endpoints="https://etcd:2379")


class Metrics:
    def event(self, reason: str) -> None: ...

    def iterations(self, name: tuple[str, str], current: float | None, healthy: float | None) -> None: ...


def operator(world: World) -> JobReconciler:
    return JobReconciler(world.kube, world.bus, Settings(), Metrics(), world.clock)


def state(wanted: str) -> Any:
    return lambda world: world.status.state == wanted


def condition(status: TrainingJobStatus, type_: str) -> str:
    return next((one.status for one in status.conditions if one.type == type_), "")


def steps(diagnosis: DiagnosisStatus) -> str:
    """What was done about an incident, in one text."""
    return "; ".join(step.what for step in diagnosis.done)


async def run(
    world: World,
    operator: Callable[[World], Any],
    until: Callable[[World], Any],
    *,
    seconds: float = 60.0,
) -> None:
    """Let time pass, with the operator looking at every tick and restarted when it crashes, until something is true."""
    end = world.clock.seconds + seconds
    reconciler = operator(world)
    while world.clock.seconds < end:
        world.tick()
        try:
            with contextlib.suppress(Conflict):
                await reconciler.reconcile("ml", "gpt2")
        except Crash:
            reconciler = operator(world)
        if until(world):
            return
    state = world.job.status if world.job else None
    raise AssertionError(f"not within {seconds} s; status: {msgspec.json.format(msgspec.json.encode(state)).decode()}")


async def trained(world: World, iterations: int = 30) -> None:
    """The job has been well for a while."""
    await run(world, operator, lambda w: w.status.state == "Running" and w.iterations >= iterations)


def runs(generation: int) -> Callable[[World], bool]:
    """The job is well again in its ``generation``-th life."""

    def look(world: World) -> bool:
        return world.status.state == "Running" and world.generation == generation

    return look
