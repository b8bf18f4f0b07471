"""What a job's owner reads where the shim sees less than all."""

from __future__ import annotations

from falcon_operator.api.common import Condition
from falcon_operator.status.tracking import UNSEEN_SECONDS
from tests.world.running import condition, operator, run, trained
from tests.world.world import World


def tracking(world: World) -> Condition:
    return next(entry for entry in world.status.conditions if entry.type == "Tracking")


async def test_a_job_whose_calls_are_all_seen_has_no_line_about_it() -> None:
    world = World()
    await trained(world)
    assert condition(world.status, "Tracking") == ""


async def test_a_rank_whose_device_is_not_seen_is_named_with_the_reason_until_it_is_seen() -> None:
    world = World()
    await trained(world)
    world.sights = {1: "DriverFails", 2: "CountersFull"}
    await run(world, operator, lambda w: condition(w.status, "Tracking") == "False")
    seen = tracking(world)
    assert seen.reason == "HostOnly"
    assert "rank 1: CUDA's driver returns only errors; rank 2: it has more peers" in seen.message
    assert world.status.state == "Running", "it is watched less, and trains as before"
    world.sights = {}
    await run(world, operator, lambda w: condition(w.status, "Tracking") == "True")
    assert tracking(world).reason == "Full"


async def test_ranks_without_a_ring_are_told_when_there_was_time_to_make_one() -> None:
    world = World()
    world.unseen = {0, 1, 2}
    await run(world, operator, lambda w: condition(w.status, "Tracking") == "False", seconds=300)
    assert world.clock.seconds >= UNSEEN_SECONDS
    seen = tracking(world)
    assert (seen.reason, seen.message[:23]) == ("None", "ranks 0, 1, 2: Falcon s")
    assert "NCCL_PROFILER_PLUGIN" in seen.message
    world.unseen = set()
    await run(world, operator, lambda w: condition(w.status, "Tracking") == "True")
