"""Checkpoints on demand, on a fake clock: a planned restart waits for them, a failure does not."""

from __future__ import annotations

import pytest

from falcon_core.recovery.checkpoint_on_demand import URGENT_SECONDS
from falcon_core.times import SAVE_SECONDS
from falcon_core.wire.saves.checkpoint import Held
from tests.world.running import operator, reasons, run, runs, state, trained
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
