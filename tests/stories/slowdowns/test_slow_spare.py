"""A replacement that moves the rank to a spare which is slow as well: the rank is followed there, and moves on."""

from __future__ import annotations

import pytest

from falcon_core.model import Cause
from tests.world.running import condition, idle, operator, reasons, run, runs, state, trained
from tests.world.world import World

VICTIM = 1
FIRST_TAKEN = "spare-2"  # of two: the newest that became ready


async def moved(world: World, slowdown: float, spare: float) -> None:
    """Run until the slow rank has been replaced once. The two figures: × the healthy computation, by node."""
    await trained(world)
    world.node_of(VICTIM).slow = slowdown
    world.nodes[FIRST_TAKEN if len(world.pool.status.spares) > 1 else "spare-1"].slow = spare
    await run(world, operator, lambda w: w.generation == 2 and w.status.state == "Recovering", seconds=90)


@pytest.mark.parametrize("spare", [4.0, 2.5, 1.4], ids=["slower", "as slow", "less slow"])
async def test_a_rank_on_a_slow_spare_moves_on_to_a_third_node(spare: float) -> None:
    world = World(spares=2)
    await moved(world, 2.5, spare)
    states: list[str] = []
    summaries: list[str] = []

    def trains(seen: World) -> bool:
        states.append(seen.status.state)
        summaries.append(seen.status.summary.partition("; ")[2])
        return seen.generation == 3 and seen.status.state == "Running"

    await run(world, operator, trains, seconds=240)
    assert world.node_of(VICTIM).name == "spare-1"
    moved_to = f"replaced by {FIRST_TAKEN}"
    assert f"{moved_to}, restarting" not in summaries[summaries.index(f"{moved_to}, measuring whether it helped") :]
    assert {entry.node for entry in world.exclusions} == {"node-b", FIRST_TAKEN}
    newest, first = world.status.diagnoses
    assert (first.node, newest.node, newest.rank) == ("node-b", FIRST_TAKEN, VICTIM)
    assert "did not help" in first.result
    assert newest.slowdown.endswith(f"rank 1 takes {spare:.1f}x its normal compute time")
    assert "iteration 250ms" in newest.result
    assert world.status.counters.replacements == 2


async def test_the_job_on_a_slow_spare_is_degraded_and_says_what_is_missing() -> None:
    world = World(spares=1)
    await moved(world, 2.5, 4.0)
    await run(world, operator, state("Degraded"))
    assert condition(world.status, "Degraded") == "True"

    def stays(seen: World) -> bool:
        assert seen.status.state == "Degraded"
        newest = seen.status.diagnoses[0]
        assert newest.slowdown.endswith("rank 1 takes 4.0x its normal compute time"), "compared with its healthy time"
        return seen.clock.seconds >= end

    await run(world, operator, lambda w: "no ready spare" in w.status.diagnoses[0].next)
    end = world.clock.seconds + 120
    await run(world, operator, stays, seconds=130, ticks=5)
    assert world.generation == 2


async def test_a_spare_that_recovers_is_kept() -> None:
    world = World(spares=1)
    await moved(world, 2.5, 4.0)
    await run(world, operator, state("Degraded"))
    world.nodes["spare-1"].slow = 1.0
    await run(world, operator, runs(2))
    newest = world.status.diagnoses[0]
    assert (newest.node, newest.state) == ("spare-1", "Resolved")
    assert "ended by itself" in newest.result


async def test_work_that_grew_follows_its_rank_and_takes_no_second_node() -> None:
    """It is as slow on the spare, whose machine is as fast as its peers' by itself."""
    world = World(spares=2)
    await trained(world)
    world.heavy[VICTIM] = 2.5
    await run(world, operator, lambda w: w.generation == 2 and w.status.state == "Degraded", seconds=120)
    newest = world.status.diagnoses[0]
    assert (newest.node, newest.cause) == (FIRST_TAKEN, Cause.IMBALANCE.value)
    assert "rank 1 was as slow on its previous node" in newest.next
    await run(world, operator, lambda w: "MachineAsFast" in reasons(w), seconds=400, ticks=5)
    await idle(world, operator, 30)
    assert (world.generation, world.status.state) == (2, "Degraded")
