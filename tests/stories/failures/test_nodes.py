"""A job never stands still beside a node that it may use."""

from __future__ import annotations

from typing import Any

import msgspec

from falcon_operator.api.warmpool import ClaimLimits, SpareStatus
from falcon_operator.intent.placement.last_resort import PLACE_SECONDS
from falcon_operator.job.decide import LEAVE_SECONDS
from tests.stories.slowdowns.test_return import left_slow, take_spares
from tests.world.running import idle, operator, reasons, run, state, trained
from tests.world.world import Node, World

replace = msgspec.structs.replace


def add_spare(world: World, name: str, **fields: Any) -> None:
    """Add another ready spare to the pool."""
    world.nodes[name] = Node(name, True)
    spare = SpareStatus(**{"node": name, "state": "Ready", "gemm_gflops": "100", **fields})
    spares = [*(pooled for pooled in world.pool.status.spares if pooled.node != name), spare]
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=spares))


async def resumed(world: World, *, on: str, seconds: float = 90) -> None:
    """Run until replica 0 trains on this node."""
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(0).name == on, seconds=seconds)


async def test_with_an_empty_pool_a_free_node_is_taken_at_once() -> None:
    world = World()
    await trained(world)
    take_spares(world)
    world.nodes["free"] = Node("free", False)
    world.kill_node(world.node_of(0).name)
    await resumed(world, on="free")
    assert world.claims == 0


async def test_a_pod_that_a_taint_has_ended_goes_to_another_node_at_once() -> None:
    """It was pinned to the node that had evicted it, and waited there for half a minute."""
    world = World(spares=0)
    world.nodes["free"] = Node("free", False)
    await trained(world)
    pod, node = world.pod_of(0), world.node_of(0)
    node.taints["team/maintenance"] = ""
    node.ends.add("team/maintenance")
    pod.disruption = "Taint manager: deleting due to NoExecute taint"
    pod.deleting_at = world.clock.seconds
    await resumed(world, on="free", seconds=PLACE_SECONDS)
    assert len(world.made) == 4, "no pod waited in vain"


async def test_without_a_pool_the_pod_waits_and_the_lost_node_is_used_when_it_is_back() -> None:
    world = World(spares=0)
    world.edit_spec(warm_pool_ref=None)
    await trained(world)
    lost = world.node_of(0)
    lost.ready, lost.ready_changed = False, world.clock.unix()
    world.kill_node(lost.name)
    await idle(world, operator, 120)
    assert "1 of 3 pods wait for a node" in world.status.summary
    assert len(world.made) == 4, "no pod was made again in vain"
    lost.dead, lost.ready, lost.ready_changed = False, True, world.clock.unix()
    await resumed(world, on=lost.name, seconds=120)
    assert world.status.counters.replacements == 1


async def test_a_spare_is_taken_after_all_where_the_free_node_has_no_room() -> None:
    world = World()
    await trained(world)
    ready = world.pool
    take_spares(world)
    world.nodes["full"] = Node("full", False)
    world.nodes["full"].taints["somebody"] = "else's"
    world.kill_node(world.node_of(0).name)
    await run(world, operator, lambda w: len(w.made) == 4)
    world.pool = ready
    await resumed(world, on="spare-1")


async def test_a_node_that_is_well_again_is_taken_before_its_probation_ends() -> None:
    world = World()
    await trained(world)
    lost = world.node_of(0)
    world.kill_node(lost.name)
    lost.ready = False
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(0).spare, seconds=60)
    lost.dead, lost.ready = False, True
    await run(world, operator, lambda w: w.exclusions[0].test == "Passed", seconds=60)
    world.kill_node(world.node_of(1).name)
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(1) is lost, seconds=90)
    assert world.clock.seconds - begun < PLACE_SECONDS


async def lost_without_a_spare() -> World:
    """Return a world whose job has lost rank 0's node while no spare was ready."""
    world = World(spec={"schedulingDeadlineSeconds": 60})
    await trained(world)
    take_spares(world)
    lost = world.node_of(0)
    world.kill_node(lost.name)
    await run(world, operator, lambda w: w.exclusions, seconds=60)
    lost.ready = False
    return world


async def test_a_replacement_after_long_training_releases_no_pod_of_its_peers() -> None:
    """The time that the generation before had trained counted for the deadline to find nodes: all were released."""
    world = World(spares=0, spec={"schedulingDeadlineSeconds": 20})
    world.edit_spec(warm_pool_ref=None)
    world.nodes["free"] = Node("free", False)
    await trained(world)
    begun = world.clock.seconds

    def replaced(world: World) -> bool:
        """Slow the node down in the middle of a run: another one would have another operator, with a new clock."""
        if world.intent.membership.generation == 1:
            world.node_of(0).slow = 4.0 if world.clock.seconds > begun + 30 else 1.0
        return world.intent.membership.generation > 1 and world.status.state == "Running"

    await run(world, operator, replaced, seconds=200)
    assert world.intent.membership.generation == 2
    assert world.node_of(0).name == "free"
    assert len(world.made) == 4
    assert "GangReleased" not in reasons(world)


async def test_a_pod_that_leaves_after_long_training_may_end_by_itself() -> None:
    """The time that the generation before had trained counted for the time that a pod has to end its processes."""
    world = World(spec={"mitigation": {"mode": "Enforce"}})
    await trained(world)
    await idle(world, operator, LEAVE_SECONDS + 10)
    left = world.pod_of(2)
    world.node_of(2).cordoned = True
    await run(world, operator, lambda w: w.intent.membership.generation == 2, seconds=120)
    assert not left.deleting_at or left.state == "Stopped", "its processes save before they end"


async def test_after_a_gang_was_released_the_job_takes_a_spare_again() -> None:
    """Check defect O1: the job's new pods tolerated no spare, and it waited for ever although a spare was ready."""
    world = await lost_without_a_spare()
    await run(world, operator, lambda w: w.intent.gang.releases == 1, seconds=120)
    add_spare(world, "spare-2")
    await run(world, operator, state("Running"), seconds=200)
    assert "spare-2" in [world.node_of(rank).name for rank in range(3)]


async def test_after_a_suspension_the_job_takes_a_spare_again() -> None:
    world = await lost_without_a_spare()
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: w.status.state == "Suspended" and not w.alive, seconds=90)
    add_spare(world, "spare-2")
    world.edit_spec(suspend=False)
    await run(world, operator, state("Running"), seconds=200)
    assert "spare-2" in [world.node_of(rank).name for rank in range(3)]


async def test_a_job_that_has_left_no_node_takes_no_spare() -> None:
    world = World(spec={"schedulingDeadlineSeconds": 600})
    world.nodes["node-c"].ready = False
    await run(world, operator, lambda w: w.clock.seconds > 2 * PLACE_SECONDS, seconds=100)
    assert world.claims == 0


async def test_a_claimed_spare_without_room_is_given_back() -> None:
    world = World(spares=1)
    await trained(world)
    world.nodes["spare-1"].taints["somebody"] = "else's"
    world.kill_node(world.node_of(0).name)
    await run(world, operator, lambda w: w.claims == 1)
    add_spare(world, "spare-2")
    await resumed(world, on="spare-2", seconds=120)
    assert "spare-1" in [exclusion.node for exclusion in world.exclusions]
    held = [spare.node for spare in world.pool.status.spares if spare.claimed_by]
    assert held == ["spare-2"]


async def test_a_pod_whose_node_a_sibling_took_is_unpinned() -> None:
    """Check defect C3: a pod that was to return to its node waits although another pod of the job runs there."""
    world = World()
    await trained(world)
    world.pods[world.pod_of(0).name].exit_code = 137  # the launcher itself ended: a new pod starts on the same node
    await run(world, operator, lambda w: len(w.made) == 4)
    world.nodes["node-a"].taints["somebody"] = "else's"  # the taint stands for the sibling: the node has no room
    await run(world, operator, state("Running"), seconds=120)
    assert world.node_of(0).name == "spare-1"


async def test_over_the_pools_limit_a_dead_node_is_replaced_by_any_other_free_node() -> None:
    world = World()
    await trained(world)
    world.nodes["node-z"] = Node("node-z", False)
    other = SpareStatus(node="spare-8", state="Claimed", claimed_by="ml/other/uid/1")
    world.pool = replace(
        world.pool,
        spec=replace(world.pool.spec, claims=ClaimLimits(per_namespace=1)),
        status=replace(world.pool.status, spares=[*world.pool.status.spares, other]),
    )
    lost = world.node_of(0)
    world.kill_node(lost.name)
    lost.ready = False
    await run(world, operator, state("Recovering"), seconds=60)
    await run(world, operator, state("Running"), seconds=120)
    assert world.node_of(0).name == "node-z", "the spare is left to the others"
    assert world.claims == 0


async def test_the_wait_says_what_for_and_until_when() -> None:
    world = World()
    slow = await left_slow(world, 3.0)
    take_spares(world)
    world.kill_node(world.node_of(0).name)
    await run(world, operator, lambda w: "no ready spare" in w.status.summary)
    waiting = next(entry.message for entry in world.status.conditions if entry.type == "Ready")
    assert f"{slow.name} is tested again at " in waiting
