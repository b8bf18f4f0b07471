"""Nodes that the job has left come back when they are well, and serve as the last resort when nothing else is there."""

from __future__ import annotations

import msgspec
import pytest

from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.base.ports import Occupant
from falcon_operator.intent.placement.last_resort import PLACE_SECONDS
from falcon_operator.pool.burn_in_result import MOST_TESTS, SLOW_TESTS
from tests.world.running import idle, operator, run, state, steps, trained
from tests.world.world import Node, World

replace = msgspec.structs.replace


def take_spares(world: World) -> None:
    """Make every spare that is left unavailable."""
    spares = [
        replace(spare, state="Testing") if spare.state == "Ready" else spare for spare in world.pool.status.spares
    ]
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=spares))


def pass_time(world: World, seconds: int) -> None:
    """Let training go on while the operator does nothing."""
    for _ in range(seconds):
        world.tick(1.0)


async def left_slow(world: World, factor: float) -> Node:
    """Replace a slow node, and return it."""
    await trained(world)
    slow = world.node_of(2)
    slow.slow = factor
    await run(
        world,
        operator,
        lambda w: w.exclusions and w.exclusions[0].test != "Pending",
        seconds=120,
    )
    await run(world, operator, state("Running"))
    assert world.node_of(2).spare
    return slow


async def test_a_fenced_node_that_grows_well_is_tested_again_and_comes_back() -> None:
    world = World()
    slow = await left_slow(world, 3.0)
    assert TAINT_FENCED in slow.taints
    pass_time(world, 600)
    tested_again = 4  # twice each time
    await run(
        world,
        operator,
        lambda w: len(w.tested) == tested_again and w.exclusions[0].test == "Failed",
        seconds=60,
    )
    assert TAINT_FENCED in slow.taints, "still slow"
    result = world.status.diagnoses[0].result
    slow.slow = 1.0
    pass_time(world, 600)
    await run(world, operator, lambda _: True)
    assert len(world.tested) == tested_again, "the distance has doubled"
    pass_time(world, 600)
    await run(world, operator, lambda w: w.exclusions == [], seconds=30)
    assert slow.taints == {}
    assert f"{slow.name} fenced: " in result
    assert world.status.diagnoses[0].result.count(" was fenced at ") == 1, "the failure is reported once, and is over"
    assert f"{slow.name} can be used again" in world.status.diagnoses[0].result
    assert ("NodeReturned", True) in [(reason, slow.name in note) for reason, note in world.events]
    world.kill_node(world.node_of(0).name)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(0) is slow)


async def test_a_node_that_a_tenant_slows_is_not_fenced() -> None:
    world = World()
    world.tenants["node-c"] = [Occupant(namespace="team", name="greedy")]
    slow = await left_slow(world, 3.0)
    assert slow.name == "node-c"
    assert (slow.taints, world.exclusions[0].test) == ({}, "Unavailable")
    assert world.tested == [slow.name] * MOST_TESTS
    assert "team/greedy on the node" in world.status.diagnoses[0].result
    del world.tenants["node-c"]
    slow.slow = 1.0
    pass_time(world, 600)
    await run(world, operator, lambda w: w.exclusions == [], seconds=30)


@pytest.mark.parametrize(
    "pod",
    [
        Occupant(namespace="ml", name="burner", requests=False),
        Occupant(namespace="ml", name="burner-x7", owner="DaemonSet"),
        Occupant(namespace="ml", name="burner", role="burn-in"),
        Occupant(namespace="ml", name="another-job-0", role="trainer"),
        Occupant(namespace="another", name="job-0", role="trainer"),
        Occupant(namespace="another", name="burner", role="burn-in"),
    ],
    ids=lambda pod: f"{pod.namespace}-{pod.role or pod.owner or 'pod'}",
)
async def test_a_tenant_cannot_have_a_node_fenced_by_slowing_its_test(pod: Occupant) -> None:
    world = World()
    world.tenants["node-c"] = [pod]
    slow = await left_slow(world, 3.0)
    assert (slow.taints, world.exclusions[0].test) == ({}, "Unavailable")
    assert pod.name in world.status.diagnoses[0].result


async def test_who_leaves_after_a_test_was_there_all_the_same() -> None:
    world = World()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 3.0
    world.tenants[slow.name] = [Occupant(namespace="ml", name="burner")]
    looks = 0

    def fenced(world: World) -> bool:
        nonlocal looks
        looks += bool(world.tested)
        if looks == 3:  # the end of the first test has been seen
            del world.tenants[slow.name]
        return TAINT_FENCED in slow.taints

    await run(world, operator, fenced, seconds=180)
    assert len(world.tested) == 1 + SLOW_TESTS, "the disturbed test still counts for nothing"


async def test_a_node_is_compared_with_its_own_kind_of_machine() -> None:
    world = World()
    for node in world.nodes.values():
        node.labels = {"node.kubernetes.io/instance-type": "fast" if node.spare else "plain"}
    slow = await left_slow(world, 3.0)
    assert (slow.taints, world.exclusions[0].test) == ({}, "Unavailable")
    assert [verdict.outcome for verdict in world.intent.verdicts] == ["NoPeers"]


async def test_a_pool_that_does_not_serve_the_job_tests_no_node_for_it() -> None:
    world = World()
    await trained(world)
    world.pool = replace(world.pool, spec=replace(world.pool.spec, allowed_namespaces=["another"]))
    lost = world.node_of(2)
    world.nodes["node-z"] = Node("node-z", False)
    world.kill_node(lost.name)
    lost.ready = False
    await run(world, operator, lambda w: w.exclusions != [], seconds=60)
    lost.dead, lost.ready = False, True
    await run(world, operator, state("Running"), seconds=900, ticks=5)
    assert world.tested == []


async def test_a_slow_node_is_better_than_a_dead_node() -> None:
    world = World()
    slow = await left_slow(world, 1.4)
    assert (slow.taints, world.exclusions[0].test) == ({}, "Passed")
    assert "a replacement's cost (13 s + 3 s for a spare that a failure may need)" in steps(world.status.diagnoses[0])
    take_spares(world)
    world.kill_node(world.node_of(0).name)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(0) is slow)
    stop, first = world.status.diagnoses[:2]
    assert f"node {slow.name}, evicted from the job before, is used again" in steps(stop)
    assert f"{slow.name} can be used again since" in first.result, "it passed its test: no probation without a choice"
    assert slow.name not in [exclusion.node for exclusion in world.exclusions]


async def test_a_fenced_node_is_no_last_resort() -> None:
    world = World()
    slow = await left_slow(world, 3.0)
    take_spares(world)
    world.kill_node(world.node_of(0).name)
    await run(world, operator, lambda w: "no ready spare" in w.status.summary)
    await idle(world, operator, 60)
    assert "no ready spare" in world.status.summary
    assert TAINT_FENCED in slow.taints


async def test_a_node_without_room_is_left_again_and_a_spare_taken() -> None:
    world = World(spares=2)
    slow = await left_slow(world, 1.4)
    ready = world.pool
    take_spares(world)
    slow.taints["somebody"] = "else's"  # no further pod fits there; only the scheduler knows it
    world.kill_node(world.node_of(0).name)
    await run(world, operator, lambda w: len(w.made) == 5)
    waited = world.clock.seconds
    no_room = ["no room for the job's pod"]
    await run(world, operator, lambda w: [exclusion.reason for exclusion in w.exclusions][-1:] == no_room)
    assert world.clock.seconds - waited > PLACE_SECONDS - 1
    world.pool = ready
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(0).spare)
