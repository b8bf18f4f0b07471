"""The operator is killed right after each of its mutating calls; the story ends as if it had not been."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from falcon_operator.pool.burn_in_result import SLOW_TESTS
from tests.world.running import operator, run, trained
from tests.world.world import World


async def replaced(world: World) -> None:
    """Run the story of a straggler whose node is replaced."""
    slow = world.node_of(2)
    slow.slow = 3.0
    await run(world, operator, lambda w: w.claims == 1 and w.generation == 2 and w.status.state == "Running")
    # What is left are tests of the node, one after the other: the operator need not look five times a second.
    await run(world, operator, lambda w: "fenced" in w.status.diagnoses[0].result, seconds=120, ticks=10)


async def lost(world: World) -> None:
    """Run the story of a node that dies."""
    dead = world.node_of(2).name
    world.kill_node(dead)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(2).name == "spare-1", seconds=120)


async def calls_of(story: Callable[[World], Awaitable[None]]) -> tuple[int, int]:
    """Return the numbers of the first and the last mutating call of the story itself."""
    world = World()
    await trained(world)
    first = world.calls + 1
    await story(world)
    return first, world.calls


@pytest.mark.parametrize("story", [replaced, lost])
async def test_a_crash_after_any_call_changes_nothing(story: Callable[[World], Awaitable[None]]) -> None:
    first, last = await calls_of(story)
    assert last - first >= 6
    for crash_at in range(first, last + 1):
        world = World()
        await trained(world)
        world.crash_at = crash_at
        await story(world)
        assert world.calls >= crash_at
        status = world.status
        assert status.counters.replacements == 1, crash_at
        assert world.claims == 1, crash_at
        assert len(world.made) == 4, crash_at
        await run(
            world, operator, lambda w: len([p for p in w.pods.values() if p.node and not w.nodes[p.node].dead]) == 3
        )
        assert world.generation == 2, crash_at
        assert len(status.diagnoses) == 1, crash_at
        assert world.tested.count("node-c") <= SLOW_TESTS, crash_at


async def test_a_crash_while_the_job_starts_makes_no_second_pod() -> None:
    world = World()
    await trained(world)
    for crash_at in range(1, world.calls + 1):
        world = World()
        world.crash_at = crash_at
        await trained(world)
        assert len(world.made) == 3, crash_at
        assert world.generation == 1, crash_at
