"""A pod is lost while the ranks of the others train on: it is made again, and its ranks join them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from falcon_core.wire.reporting.groups import GroupReport
from tests.stories.failures.test_starts import _waiting
from tests.stories.lifecycle.test_elastic import revive
from tests.stories.lifecycle.test_rank_groups import group, lose, meet, rejoin
from tests.world.running import condition, idle, operator, reasons, run, shown, state, steps, trained
from tests.world.world import Node, World


async def living(*, free: bool = True, **spec: Any) -> World:
    """Return a world in which three ranks train that go on without a lost one; ``free``: a fourth node is there."""
    world = World(replicas=3, spares=0, spec=spec)
    world.edit_spec(warm_pool_ref=None)
    world.living = True
    if free:
        world.nodes["node-d"] = Node("node-d", False)
    await trained(world)
    meet(world)
    await run(world, operator, lambda w: w.status.group is not None, seconds=20)
    return world


def lose_node(world: World, rank: int = 1) -> str:
    """Let a node be lost, as the cluster reports after a while."""
    node = world.node_of(rank)
    world.kill_node(node.name)
    node.ready = False
    return node.name


def delete_pod(world: World, rank: int = 1) -> None:
    world.pod_of(rank).deleting_at = world.clock.seconds


def remade(world: World) -> bool:
    """Check whether rank 1 runs in another pod."""
    pods = [pod for pod in world.pods.values() if 1 in pod.ranks and pod.state == "Running" and not world._is_dead(pod)]
    return len(world.made) > 3 and bool(pods)


async def replaced(world: World) -> None:
    """Run the story of a lost node to its end."""
    lose_node(world)
    lose(world)
    await run(world, operator, remade, seconds=60)
    rejoin(world)
    await run(world, operator, lambda w: w.status.ready == "3/3" and w.intent.recovery.stop is None, seconds=60)


async def test_a_lost_node_restarts_no_rank_of_the_others() -> None:
    world = await living()
    name = lose_node(world)
    lose(world)
    await run(world, operator, lambda w: w.intent.recovery.stop is not None, seconds=60)
    assert world.status.state == "Running"
    assert world.status.ready == "2/3"
    assert "2 of 3 ranks train" in world.status.summary
    assert condition(world.status, "Recovering") != "True"
    words = "2 of 3 ranks of generation 1 train"
    await run(world, operator, lambda w: (found := shown(w, "Ready")) and found.message == words, seconds=5)
    assert condition(world.status, "Elastic") == "False"
    assert "the other pods' ranks train on" in steps(world.status.diagnoses[0])
    await run(world, operator, remade, seconds=60)
    assert world.node_of(1).name == "node-d"
    rejoin(world)
    await run(world, operator, lambda w: w.status.ready == "3/3" and w.intent.recovery.stop is None, seconds=60)
    await idle(world, operator, 30)
    assert (world.generation, world.status.counters.restarts, world.status.counters.replacements) == (1, 0, 1)
    assert len(world.made) == 4
    assert {(plan.generation, plan.world_size, len(plan.members)) for plan in world.plans if plan.phase == "Run"} == {
        (1, 3, 3)
    }
    assert name in [exclusion.node for exclusion in world.exclusions]
    assert world.status.diagnoses[0].state == "Resolved"
    assert reasons(world).count("Started") == 1
    found = world.status.group
    assert found is not None
    assert [lost.node for lost in found.lost] == [name], "the node that the rank was lost with, and not its new one"


async def test_a_pod_that_is_deleted_is_made_again_while_the_others_train() -> None:
    world = await living()
    pod = world.pod_of(1)
    delete_pod(world)
    lose(world)
    await run(world, operator, remade, seconds=60)
    assert world.pod_of(1).name != pod.name
    rejoin(world)
    await run(world, operator, lambda w: w.status.ready == "3/3" and w.intent.recovery.stop is None, seconds=60)
    assert (world.generation, len(world.made)) == (1, 4)


async def test_a_lost_pod_waits_for_its_node_while_the_others_train() -> None:
    world = await living(free=False)
    name = lose_node(world)
    lose(world)
    await idle(world, operator, 300)
    assert (world.generation, world.status.state, world.status.ready) == (1, "Running", "2/3")
    assert "no node yet" in world.status.summary
    revive(world, name)
    await run(world, operator, remade, seconds=300)
    rejoin(world)
    await run(world, operator, lambda w: w.status.ready == "3/3" and w.intent.recovery.stop is None, seconds=60)
    assert world.generation == 1


@pytest.mark.parametrize("loss", [lose_node, delete_pod])
async def test_all_ranks_restart_where_the_group_does_not_go_on(loss: Callable[[World], Any]) -> None:
    world = await living()
    loss(world)
    await idle(world, operator, 25)
    assert world.generation == 1
    await run(world, operator, lambda w: w.generation == 2 and w.status.state == "Running", seconds=60)
    assert world.status.counters.restarts == 1


async def test_the_loss_of_the_first_pod_restarts_all_at_once() -> None:
    world = await living()
    world.groups[0] = GroupReport(group(world, [0, 1, 2], [1, 2], missing=(0,)))
    lose_node(world, rank=0)
    await run(world, operator, lambda w: w.generation == 2, seconds=20)
    await run(world, operator, state("Running"), seconds=60)


async def test_all_ranks_restart_where_another_rank_has_failed_too() -> None:
    world = await living()
    lose_node(world)
    lose(world)
    world.end_rank(2, exit_code=1)
    await run(world, operator, lambda w: w.generation == 2, seconds=20)


async def test_all_ranks_restart_where_fewer_pods_than_the_owner_allows_would_train() -> None:
    world = await living(elastic={"minReplicas": 3})
    lose_node(world)
    lose(world)
    await run(world, operator, lambda w: w.generation == 2, seconds=20)


async def test_a_second_pod_is_lost_before_the_first_one_is_back() -> None:
    world = await living(free=False)
    lose_node(world)
    lose(world)
    await idle(world, operator, 20)
    lose_node(world, rank=2)
    world.groups[0] = GroupReport(group(world, [0, 1, 2], [0, 2], [0], missing=(1, 2)))
    await idle(world, operator, 40)
    assert (world.generation, world.status.state, world.status.ready) == (1, "Running", "1/3")


async def test_a_hang_of_the_others_is_ended_while_a_pod_is_missing() -> None:
    world = await living(free=False, mitigation={"mode": "Enforce"})
    name = lose_node(world)
    lose(world)
    await idle(world, operator, 20)
    world.hanging = True
    await run(world, operator, lambda w: w.generation == 2, seconds=700, ticks=10)
    assert [note.cause for note in world.status.diagnoses if note.state != "Resolved"] == ["Hang"]
    world.hanging = False
    revive(world, name)
    await run(world, operator, lambda w: w.status.state == "Running", seconds=300)


async def test_a_pod_that_does_not_start_again_is_moved_while_the_others_train() -> None:
    world = await living()
    world.nodes["node-d"].stuck = _waiting("ImagePullBackOff")
    lose_node(world)
    lose(world)
    await run(world, operator, lambda w: any(pod.node == "node-d" for pod in w.pods.values()), seconds=20)
    world.nodes["node-e"] = Node("node-e", False)
    await run(world, operator, remade, seconds=1000, ticks=10)
    assert world.node_of(1).name == "node-e"
    assert world.generation == 1


async def test_a_job_that_is_suspended_meanwhile_ends_its_pods() -> None:
    world = await living(free=False)
    lose_node(world)
    lose(world)
    await idle(world, operator, 20)
    world.edit_spec(suspend=True)
    await run(world, operator, state("Suspended"), seconds=120)
    assert not world.intent.membership.members


async def calls_of(story: Callable[[World], Awaitable[None]]) -> tuple[int, int]:
    world = await living()
    first = world.calls + 1
    await story(world)
    return first, world.calls


async def test_an_operator_that_dies_after_any_call_makes_one_pod_and_restarts_none() -> None:
    first, last = await calls_of(replaced)
    assert last - first >= 4
    for crash_at in range(first, last + 1):
        world = await living()
        world.crash_at = crash_at
        await replaced(world)
        assert world.calls >= crash_at
        assert (world.generation, len(world.made)) == (1, 4), crash_at
        assert len(world.status.diagnoses) == 1, crash_at
