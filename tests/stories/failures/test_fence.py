"""Fences: who owns them, who may lift them, and when they end."""

from __future__ import annotations

import re

import msgspec
import pytest

from falcon_operator.api.common import TAINT_FENCED, ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import NodeReport
from falcon_operator.intent.placement.exclusion import STEADY_SECONDS, fence_owner
from tests.world.running import idle, operator, run, state, trained
from tests.world.world import Node, World

replace = msgspec.structs.replace


async def fenced(world: World) -> Node:
    """Return a node that the job has left and that the node's test has found slow."""
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 3.0
    await run(world, operator, lambda _: TAINT_FENCED in slow.taints, seconds=120)
    await run(world, operator, state("Running"))
    return slow


def named(name: str, uid: str) -> TrainingJob:
    return TrainingJob(metadata=ObjectMeta(name=name, namespace="a", uid=uid), spec=World().job.spec)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["gpt2", "a-name-of-" + "x" * 40])
def test_a_fence_names_its_owner_as_a_taints_value_may(name: str) -> None:
    uid = "8f14e45f-ceea-467f-a8b1-3c9c0f2d9f3a"
    value = fence_owner(named(name, uid))
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)
    assert value.endswith(uid), "jobs of one name in two namespaces are two owners"
    assert value.startswith(name[:26])


async def test_a_fence_that_somebody_removed_is_respected() -> None:
    world = World()
    slow = await fenced(world)
    assert world.job is not None
    assert slow.taints == {TAINT_FENCED: fence_owner(world.job)}
    await idle(world, operator, 5)
    del slow.taints[TAINT_FENCED]
    await idle(world, operator, 60)
    assert slow.taints == {}
    assert "not fenced: the fence was removed by hand" in world.status.diagnoses[0].result
    assert [exclusion.node for exclusion in world.exclusions] == [slow.name], "the job itself still avoids the node"


async def test_another_jobs_fence_is_not_lifted() -> None:
    world = World()
    slow = await fenced(world)
    slow.taints[TAINT_FENCED] = "gpt2.of-another-namespace"
    slow.slow = 1.0
    for _ in range(700):
        world.tick(1.0)
    await run(world, operator, lambda w: w.exclusions[0].test == "Passed", seconds=60)
    await idle(world, operator, 5)
    assert slow.taints == {TAINT_FENCED: "gpt2.of-another-namespace"}


async def test_a_new_node_of_the_same_name_is_not_excluded() -> None:
    world = World()
    slow = await fenced(world)
    slow.uid, slow.slow, slow.taints = "another-machine", 1.0, {}
    await run(world, operator, lambda w: w.exclusions == [], seconds=5)
    assert slow.taints == {}


async def test_without_a_pool_the_fence_of_a_lost_node_ends_when_it_is_ready_again() -> None:
    world = World(spares=0)
    world.edit_spec(warm_pool_ref=None)
    await trained(world)
    lost = world.node_of(0)
    world.kill_node(lost.name)
    lost.ready, lost.ready_changed = False, world.clock.unix()
    await run(world, operator, lambda _: TAINT_FENCED in lost.taints, seconds=60)
    lost.ready, lost.dead, lost.ready_changed = True, False, world.clock.unix()
    begun = world.clock.seconds
    await run(world, operator, lambda _: TAINT_FENCED not in lost.taints, seconds=90)
    assert world.clock.seconds - begun >= STEADY_SECONDS


async def test_a_test_without_peers_waits_for_the_score_of_a_spare() -> None:
    world = World()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 3.0
    await run(world, operator, lambda w: len(w.made) == 4)
    spares = [replace(spare, state="Testing", gemm_gflops="") for spare in world.pool.status.spares]
    untested = replace(spares[0], node="spare-2")
    world.nodes["spare-2"] = Node("spare-2", True)
    claimed = [replace(spare, gemm_gflops="") for spare in world.pool.status.spares]
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=[*claimed, untested]))
    await run(world, operator, lambda w: bool(w.tested), seconds=60)
    await idle(world, operator, 30)
    assert world.exclusions[0].test == "Pending"
    scored = replace(untested, state="Ready", gemm_gflops="100")
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=[*claimed, scored]))
    await run(world, operator, lambda _: TAINT_FENCED in slow.taints, seconds=60)


async def returned(world: World) -> Node:
    """Return a node that was lost and replaced, and is back."""
    await trained(world)
    lost = world.node_of(2)
    world.kill_node(lost.name)
    lost.ready, lost.ready_changed = False, world.clock.unix()
    await run(world, operator, lambda w: w.exclusions != [] and w.status.state == "Running", seconds=90)
    lost.ready, lost.dead, lost.ready_changed = True, False, world.clock.unix()
    return lost


async def test_a_slow_test_says_nothing_while_spares_are_as_slow_at_the_same_time() -> None:
    """Check a busy host below all machines: the spares were as fast as usual when they joined."""
    world = World(spares=2)
    lost = await returned(world)
    world.busy_host = 3.0
    await run(world, operator, lambda w: w.exclusions[0].test != "Pending", seconds=300)
    assert world.exclusions[0].test == "Unavailable"
    assert "but spares were as slow at the same time (1.0x)" in world.status.diagnoses[0].result
    assert TAINT_FENCED in lost.taints, "a fence stays until a test says that the node is well"
    assert world.tested == 4 * [lost.name]
    await idle(world, operator, 5)
    assert world.burn_ins == {}, "tests and controls go together"


async def test_a_node_that_is_slower_than_a_spare_at_the_same_time_is_slow() -> None:
    world = World(spares=2)
    lost = await returned(world)
    world.busy_host, lost.slow = 2.0, 2.0
    await run(world, operator, lambda w: w.exclusions[0].test != "Pending", seconds=300)
    assert world.exclusions[0].test == "Failed"
    assert world.tested == 2 * [lost.name]


async def test_a_node_that_has_just_booted_is_tested_when_it_has_settled() -> None:
    world = World(spares=2)
    lost = await returned(world)
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.tested == [lost.name], seconds=120)
    assert world.clock.seconds - begun > STEADY_SECONDS - 1


@pytest.mark.slow
async def test_a_node_in_trouble_is_not_released_from_its_fence_before_the_trouble_is_over() -> None:
    """A short test passes on a node whose link is broken."""
    world = World()
    slow = await fenced(world)
    slow.slow = 1.0
    slow.reports = (NodeReport("FalconLinkProblem", "NicLost", "mlx5_0"),)
    await idle(world, operator, 2000)
    assert TAINT_FENCED in slow.taints
    slow.reports = ()
    await run(world, operator, lambda _: TAINT_FENCED not in slow.taints, seconds=1500)
