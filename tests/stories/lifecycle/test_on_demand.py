"""Checkpoints on demand, on a fake clock: a planned restart waits for them, a failure does not."""

from __future__ import annotations

import pytest

from falcon_core.recovery.checkpoint_on_demand import AGAIN_SECONDS, AHEAD_SECONDS, URGENT_SECONDS
from falcon_core.times import SAVE_SECONDS
from falcon_core.wire.reporting.anomalies import Anomaly
from falcon_core.wire.saves.checkpoint import Held
from tests.world.running import idle, operator, reasons, run, runs, state, trained
from tests.world.world import World

MEMORY = {"checkpoint": {"memory": "64Mi"}}


def holding(step: int, *, listens: bool = True) -> list[Held]:
    return [Held(rank, step, 0, 1, in_folder=True, listens=listens) for rank in range(3)]


def alike(step: int) -> list[Held]:
    return [Held(rank, step, 0, 1, listens=True, replicated=True) for rank in range(3)]


async def asked(world: World) -> None:
    """Let a node be cordoned, until the ranks are asked for a checkpoint."""
    await trained(world)
    world.node_of(2).cordoned = True
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 1)
    assert (world.generation, world.status.state) == (1, "Running")


async def test_a_move_waits_for_the_checkpoint_and_begins_with_it() -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await asked(world)
    later = world.clock.seconds + 10
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert world.generation == 1, "it waits"
    world.held = holding(57)
    await run(world, operator, runs(2), seconds=30)
    assert world.node_of(2).name == "spare-1"
    assert ("CheckpointSaved", "all ranks saved step 57 for a planned restart") in world.events
    assert world.plan is not None
    assert world.plan.checkpoint == 0, "the next generation is asked for nothing"


async def test_a_replacement_of_a_slow_node_waits_as_well() -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await trained(world)
    world.node_of(1).slow = 3.0
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 1, seconds=120)
    assert world.generation == 1
    world.held = holding(57)
    await run(world, operator, runs(2), seconds=30)
    assert world.node_of(1).name == "spare-1"


async def test_a_state_that_all_pods_have_is_safe_without_a_folder() -> None:
    """One of three pods leaves: what the same local rank of two others holds is not lost with it."""
    world = World(spec=MEMORY)
    world.held = alike(40)
    await asked(world)
    world.held = alike(57)
    await run(world, operator, runs(2), seconds=30)
    assert ("CheckpointSaved", "all ranks saved step 57 for a planned restart") in world.events


async def test_with_all_pods_it_would_be_lost() -> None:
    world = World(spec=MEMORY)
    world.held = alike(40)
    await trained(world)
    world.edit_spec(suspend=True)
    await run(world, operator, state("Suspended"), seconds=30)
    assert "CheckpointSaved" not in reasons(world)


@pytest.mark.parametrize(("urgent", "most"), [(False, SAVE_SECONDS), (True, URGENT_SECONDS)])
async def test_a_checkpoint_that_does_not_come_is_not_waited_for_for_long(urgent: bool, most: float) -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await asked(world)
    if urgent:
        world.node_of(2).taints["spot/notice"] = ""
    await run(world, operator, runs(2), seconds=most + 10)
    assert "CheckpointMissing" in reasons(world)
    assert "CheckpointSaved" not in reasons(world)


async def test_a_script_that_does_not_listen_is_not_waited_for() -> None:
    world = World(spec=MEMORY)
    world.held = holding(40, listens=False)
    await trained(world)
    world.node_of(2).cordoned = True
    await run(world, operator, runs(2))
    assert [plan.checkpoint for plan in world.plans if plan.checkpoint] == []


async def test_a_failure_ends_the_wait() -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await asked(world)
    world.end_rank(0, signal=9)
    await run(world, operator, runs(2), seconds=15)
    assert not {"CheckpointSaved", "CheckpointMissing"} & set(reasons(world))


async def test_a_suspension_waits_for_it() -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await trained(world)
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 1)
    assert len(world.pods) == 3
    world.held = holding(57)
    await run(world, operator, state("Suspended"), seconds=10)
    assert "CheckpointSaved" in reasons(world)


@pytest.mark.parametrize("at", range(1, 24))
async def test_an_operator_that_dies_at_any_call_asks_once(at: int) -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await trained(world)
    world.node_of(2).cordoned = True
    world.crash_at = world.calls + at
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 1)
    world.held = holding(57)
    await run(world, operator, runs(2))
    assert {plan.checkpoint for plan in world.plans} == {0, 1}


def leaking(world: World, seconds: float, kind: str = "Memory") -> None:
    """Let a process of the first pod reach a limit so many seconds from now."""
    ends = world.clock.seconds + seconds

    def odd(now: float) -> list[Anomaly]:
        left = max(0, round(ends - now))
        return [Anomaly(kind, -1, lasted=3000, used=1, limit=2, left=left, earliest=left, latest=left)]

    world.node_of(0).odd = odd


async def test_ranks_save_before_a_process_runs_out_of_memory_and_nothing_restarts() -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await trained(world)
    leaking(world, AHEAD_SECONDS + 60)
    await idle(world, operator, 40)
    assert world.plan is not None
    assert world.plan.checkpoint == 0, "there is time"
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 1, seconds=40)
    world.held = holding(57)
    await run(world, operator, lambda w: "CheckpointSaved" in reasons(w), seconds=30)
    assert ("CheckpointSaved", "all ranks saved step 57 because a process will soon reach a limit") in world.events
    (note,) = [each for each in world.status.diagnoses if each.cause == "RunsOut"]
    assert note.next.startswith("all ranks saved step 57 because of it; find what grows")
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 2, seconds=AGAIN_SECONDS + 10)
    assert (world.generation, world.status.state) == (1, "Running")


async def test_a_restart_after_a_forecast_asks_for_a_checkpoint_of_its_own() -> None:
    world = World(spec=MEMORY)
    world.held = holding(40)
    await trained(world)
    leaking(world, 300)
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 1, seconds=40)
    world.held = holding(57)
    await run(world, operator, lambda w: "CheckpointSaved" in reasons(w), seconds=30)
    world.node_of(2).cordoned = True
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 2, seconds=60)
    world.held = holding(63)
    await run(world, operator, runs(2), seconds=30)
    assert ("CheckpointSaved", "all ranks saved step 63 for a planned restart") in world.events


@pytest.mark.parametrize(("kind", "mode"), [("Disk", "Enforce"), ("Memory", "Observe")])
async def test_no_checkpoint_fills_a_disk_sooner_and_none_is_asked_for_in_mode_observe(kind: str, mode: str) -> None:
    world = World(spec={**MEMORY, "mitigation": {"mode": mode}})
    world.held = holding(40)
    await trained(world)
    leaking(world, 300, kind)
    await idle(world, operator, 30)
    assert world.plan is not None
    assert world.plan.checkpoint == 0
