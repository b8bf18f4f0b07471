"""Run an operator over a world until something holds, and read what the user is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from falcon_operator.api.common import Condition
from falcon_operator.api.trainingjob import DiagnosisStatus, TrainingJob, TrainingJobStatus
from falcon_operator.base.ports import Conflict, JobFindings, PodSettings, SeriesAnswer
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.job.reconciler import Decided, JobReconciler
from tests.world.world import Crash, World


class Settings:
    namespace = "falcon-system"
    pods = PodSettings(agent_image="agent", gateways="gateway:7443", departure_taints=("spot/notice",))


class Metrics:
    def __init__(self) -> None:
        self.standstills: list[tuple[str, str, float]] = []

    def event(self, reason: str) -> None: ...

    def stood_still(self, cause: str, error_class: str, seconds: float) -> None:
        self.standstills.append((cause, error_class, seconds))

    def iterations(self, name: tuple[str, str], current: float | None, healthy: float | None) -> None: ...

    def checkpoint(self, name: tuple[str, str], newest: tuple[int, float, float] | None) -> None: ...

    def restored(self, seconds: float) -> None: ...

    def reports_used(self, ages_seconds: Iterable[float]) -> None: ...

    def failure_unshown(self, kind: str) -> None: ...


async def at_once(decided: Callable[[Snapshot], Decided], snap: Snapshot) -> Decided:
    """Decide in this thread: a story has one job, and a thread for each of its looks takes a third of its time."""
    return decided(snap)


def operator(
    world: World,
    metrics: Metrics | None = None,
    *,
    settings: Settings | None = None,
    findings: Callable[[str], JobFindings | None] = lambda _: JobFindings(),
    series: Callable[[TrainingJob], SeriesAnswer | None] = lambda _: None,
) -> JobReconciler:
    settings, metrics = settings or Settings(), metrics or Metrics()
    return JobReconciler(world.kube, world.bus, settings, metrics, world.clock, findings, series, in_thread=at_once)


def state(wanted: str) -> Any:
    return lambda world: world.status.state == wanted


def condition(status: TrainingJobStatus, type_: str) -> str:
    return next((entry.status for entry in status.conditions if entry.type == type_), "")


def reasons(world: World) -> list[str]:
    """Return the reasons of all Events, oldest first."""
    return [reason for reason, _ in world.events]


def phases(world: World) -> list[str]:
    """Return the phases of the probes that were ordered, oldest first."""
    return [order.phase for order in world.paused.orders]


def steps(diagnosis: DiagnosisStatus) -> str:
    """Return what was done about an incident, in one text."""
    return "; ".join(step.what for step in diagnosis.done)


async def run(
    world: World,
    operator: Callable[[World], Any],
    until: Callable[[World], Any],
    *,
    seconds: float = 60.0,
    ticks: int = 2,
) -> None:
    """Let time pass until ``until`` is true; the operator is restarted when it crashes.

    ``ticks``: of a tenth of a second, from look to look; ``until`` is asked after each look.
    """
    end = world.clock.seconds + seconds
    reconciler = operator(world)
    while world.clock.seconds < end:
        for _ in range(ticks):
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


async def idle(world: World, operator: Callable[[World], Any], seconds: float) -> None:
    """Let time pass in which nothing is to happen.

    The operator looks twice a second: the real one waits for two seconds and more (``job.decide.LOOK_SECONDS``), and a
    tenth of a second is for what changes.
    """
    end = world.clock.seconds + seconds
    await run(world, operator, lambda w: w.clock.seconds >= end, seconds=seconds + 1, ticks=5)


async def trained(world: World, iterations: int = 30) -> None:
    """Run until the job has been well for a while."""
    await run(world, operator, lambda w: w.status.state == "Running" and w.iterations >= iterations)


def runs(generation: int) -> Callable[[World], bool]:
    """Return the check that the job is well again in this generation."""

    def look(world: World) -> bool:
        return world.status.state == "Running" and world.generation == generation

    return look


def shown(world: World, type_: str) -> Condition | None:
    """Return a condition of the job; None where it is not shown."""
    return next((each for each in world.status.conditions if each.type == type_), None)


async def shown_after(world: World, type_: str, seconds: float = 20.0) -> Condition | None:
    """Let so much time pass, and return a condition of the job."""
    later = world.clock.seconds + seconds
    await run(world, operator, lambda w: w.clock.seconds > later, seconds=seconds + 10)
    return shown(world, type_)
