"""The reconciler's shell: what it writes and when, and what a broken call leaves undone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from falcon_operator.base.ports import Manifest, PodView
from falcon_operator.bus.leader_key import BusUnavailable
from falcon_operator.job.carry_out import BROKEN_SECONDS, LEAST_SECONDS
from falcon_operator.job.decide import QUIET_SECONDS
from falcon_operator.job.reconciler import (
    DISPLAY_SECONDS,
    FIGURES_SECONDS,
    WELL_RUN_SECONDS,
)
from falcon_operator.status.limits import essence
from tests.world.running import Metrics, operator, run, trained
from tests.world.world import World

replace = msgspec.structs.replace


async def test_figures_are_written_now_and_then_and_turning_points_at_once() -> None:
    world = World()
    await trained(world, 60)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    before, begun = world.calls, world.clock.seconds
    while world.clock.seconds < begun + 30:
        world.tick()
        await reconciler.reconcile("ml", "gpt2")
    assert 1 <= world.calls - before <= 30 / DISPLAY_SECONDS + 1
    world.end_rank(0, signal=9)
    await reconciler.reconcile("ml", "gpt2")
    world.tick()
    await reconciler.reconcile("ml", "gpt2")
    assert world.status.state == "Recovering"


async def test_figures_are_shown_in_time_though_nothing_else_happens() -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    shown, shown_at = world.status.iterations, world.clock.monotonic()
    for _ in range(20):
        again = await reconciler.reconcile("ml", "gpt2")
        assert again is not None
        world.tick(again)  # what the reconciler asks for, and nothing else
        if world.status.iterations != shown:
            shown, shown_at = world.status.iterations, world.clock.monotonic()
        assert world.clock.monotonic() - shown_at <= FIGURES_SECONDS + QUIET_SECONDS


def run_version(world: World) -> str:
    assert world.trainingrun is not None
    return str(world.trainingrun["metadata"]["resourceVersion"])


async def test_a_job_that_is_well_costs_a_few_writes_an_hour() -> None:
    world = World()
    await trained(world, 60)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    begun, version, written = world.clock.seconds, run_version(world), 0
    statuses, shown = 0, world.status
    while world.clock.seconds < begun + WELL_RUN_SECONDS:
        world.tick()
        await reconciler.reconcile("ml", "gpt2")
        written, version = written + (run_version(world) != version), run_version(world)
        statuses, shown = statuses + (world.status != shown), world.status
    assert written <= 1
    figures = WELL_RUN_SECONDS / FIGURES_SECONDS
    assert figures - 2 <= statuses <= figures


async def test_the_loss_of_an_incident_is_stored_more_often() -> None:
    world = World()
    await trained(world, 60)
    world.node_of(1).slow = 1.6
    await run(world, operator, lambda w: w.status.state == "Degraded")
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    begun, stored = world.clock.seconds, set()
    while world.clock.seconds < begun + 2 * FIGURES_SECONDS + 10 and world.status.state == "Degraded":
        world.tick()
        await reconciler.reconcile("ml", "gpt2")
        stored.add(run_version(world))
    assert len(stored) >= 3


class Ages(Metrics):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def reports_used(self, ages_seconds: Iterable[float]) -> None:
        self.seconds += ages_seconds


async def test_each_report_is_counted_once_with_its_age() -> None:
    world, ages = World(), Ages()
    await trained(world)
    reconciler = operator(world, ages)
    await reconciler.reconcile("ml", "gpt2")
    assert len(ages.seconds) == len(world.received)
    ages.seconds.clear()
    await reconciler.reconcile("ml", "gpt2")
    assert ages.seconds == []
    world.end_rank(0, signal=9)  # reported at once
    world.tick()
    world.clock.seconds += 0.4
    await reconciler.reconcile("ml", "gpt2")
    assert ages.seconds
    assert max(ages.seconds) == pytest.approx(0.4)


async def test_a_job_that_is_gone_is_forgotten_once() -> None:
    world = World()
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    world.job = None
    assert await reconciler.reconcile("ml", "gpt2") is None
    assert await reconciler.reconcile("ml", "gpt2") is None
    assert [key.uid for key in world.bus.forgotten] == ["job-uid"]


async def test_a_namesake_is_another_job() -> None:
    world = World()
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    assert world.job is not None
    world.job = replace(world.job, metadata=replace(world.job.metadata, uid="other"))
    await reconciler.reconcile("ml", "gpt2")
    assert [key.uid for key in world.bus.forgotten] == ["job-uid"]


async def test_a_job_in_deletion_is_left_alone() -> None:
    world = World()
    assert world.job is not None
    world.job = replace(world.job, metadata=replace(world.job.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    assert await operator(world).reconcile("ml", "gpt2") is None
    assert (world.made, world.calls) == ([], 0)


async def test_a_pod_that_the_server_refuses_is_reported_and_tried_again() -> None:
    world = World()
    await trained(world)
    world.refuse_pods = "exceeded quota"
    world.pod_of(0).deleting_at = world.clock.seconds
    world.broken_at = world.clock.seconds
    await run(world, operator, lambda w: "exceeded quota" in w.status.summary)
    world.refuse_pods = ""
    await run(world, operator, lambda w: w.status.state == "Running")


async def test_the_plan_follows_the_intent_and_what_is_shown_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    done: list[str] = []

    def noted(name: str, call: Any) -> Any:
        async def note(*arguments: Any) -> Any:
            done.append(name)
            return await call(*arguments)

        return note

    monkeypatch.setattr(world.kube, "write_run", noted("intent", world.kube.write_run))
    monkeypatch.setattr(world.kube, "write_job_status", noted("status", world.kube.write_job_status))
    monkeypatch.setattr(world.kube, "record_event", noted("event", world.kube.record_event))
    monkeypatch.setattr(world.bus, "publish_plan", noted("plan", world.bus.publish_plan))
    world.end_rank(0, signal=9)
    world.tick()
    await reconciler.reconcile("ml", "gpt2")
    assert done == ["intent", "plan", "status", "event"]


async def test_a_plan_that_cannot_be_published_holds_nothing_else_up_and_is_published_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")

    async def refuse(*_: Any) -> None:
        raise BusUnavailable("neither etcd nor a gateway takes it")

    with monkeypatch.context() as patched:
        patched.setattr(world.bus, "publish_plan", refuse)
        world.end_rank(0, signal=9)
        world.tick()
        assert await reconciler.reconcile("ml", "gpt2") == BROKEN_SECONDS
        assert world.status.state == "Recovering"
    world.tick()
    await reconciler.reconcile("ml", "gpt2")
    assert world.plans[-1].phase == "Stop"


async def test_something_urgent_ends_a_long_turn_and_the_next_looks_make_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    reconciler = operator(world)
    create = world.kube.create_pod

    async def create_slowly(manifest: Manifest) -> PodView:
        world.clock.seconds += LEAST_SECONDS
        return await create(manifest)

    monkeypatch.setattr(world.kube, "create_pod", create_slowly)
    looks = []
    for _ in range(10):
        before = len(world.made)
        again = await reconciler.reconcile("ml", "gpt2", lambda: True)
        looks.append((len(world.made) - before, again))
    assert world.job is not None
    replicas = world.job.spec.replicas
    assert sum(made for made, _ in looks) == replicas, "nothing is left for good"
    assert [made for made, _ in looks[: replicas + 1]] == [0] + [1] * replicas, "the first turn ends at once"
    assert [again for _, again in looks[:replicas]] == [0.0] * replicas


async def test_the_essence_has_no_figures() -> None:
    world = World()
    await trained(world)
    world.node_of(1).slow = 1.6
    await run(world, operator, lambda w: w.status.state == "Degraded")
    first = world.status
    later = first.iterations.count + 8
    await run(world, operator, lambda w: w.status.iterations.count > later)
    assert world.status.diagnoses[0].state == "Open"
    assert world.status != first
    assert essence(world.status) == essence(first)
