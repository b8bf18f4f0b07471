"""An elastic job goes on with fewer replicas where no node is free, and gets them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from falcon_core.wire.saves.checkpoint import Held
from falcon_operator.api.elastic import ElasticStatus
from falcon_operator.api.warmpool import WarmPool
from tests.stories.failures.test_nodes import add_spare
from tests.world.running import condition, idle, operator, reasons, run, shown, state, steps, trained
from tests.world.world import Node, World

EVENTS = (["Shrunk", "Grown"], ["Grown"], ["Shrunk"])  # an Event may be left out by a crash, and none comes twice
replace = msgspec.structs.replace


def elastic_world(*, replicas: int = 3, mode: str = "Enforce", pool: bool = False, **fields: Any) -> World:
    """Return a world with an elastic job; ``fields``: of its spec."""
    spec = {"mitigation": {"mode": mode}, **fields, "elastic": {"minReplicas": 2, **fields.get("elastic", {})}}
    world = World(replicas=replicas, spares=0, spec=spec)
    if not pool:
        world.edit_spec(warm_pool_ref=None)
    return world


def lose(world: World, rank: int) -> str:
    """Kill the node of a rank, which the API server notices as well; return its name."""
    node = world.node_of(rank)
    world.kill_node(node.name)
    node.ready = False
    return node.name


def revive(world: World, name: str) -> None:
    world.nodes[name].dead, world.nodes[name].ready = False, True
    world.nodes[name].ready_changed = world.clock.unix()


async def shrunk(world: World, rank: int = 1) -> str:
    """Run until the job trains with two of its three replicas; return the lost node."""
    await trained(world)
    name = lose(world, rank)
    await run(world, operator, lambda w: w.status.ready == "2/2" and w.status.state == "Running", seconds=120)
    return name


async def test_without_a_free_node_the_job_goes_on_with_fewer_replicas() -> None:
    world = elastic_world()
    await shrunk(world)
    assert world.plan is not None
    assert world.plan.world_size == 2
    assert [(each.replica, each.first_rank) for each in world.plan.members] == [(0, 0), (1, 1)]
    size = world.status.elastic
    assert size is not None
    assert (size.replicas, size.wanted) == (2, 3)
    assert size.why == "no node for 1 of 3 replicas"
    assert size.next == "nodes for 1 more: 0/4 nodes are available"
    assert condition(world.status, "Elastic") == "False"
    assert world.status.summary == "all ranks train, with 2 of 3 replicas"
    assert reasons(world).count("Shrunk") == 1
    assert "begin again with fewer replicas" in steps(world.status.diagnoses[0])
    assert world.status.diagnoses[0].state == "Resolved"


async def test_a_node_that_returns_brings_the_replica_back() -> None:
    world = elastic_world(checkpoint={"intervalSeconds": 60})
    name = await shrunk(world)
    await idle(world, operator, 10)
    revive(world, name)
    await run(world, operator, lambda w: w.status.ready == "3/3" and w.status.state == "Running", seconds=400)
    assert world.plan is not None
    assert world.plan.world_size == 3
    assert reasons(world).count("Grown") == 1
    assert condition(world.status, "Elastic") == "True"
    size = world.status.elastic
    assert size is not None
    assert (size.replicas, size.wanted, size.next) == (3, 3, "")
    assert len({pod.node for pod in world.pods.values() if pod.node}) == 3
    assert not world.intent.membership.joining


async def test_a_free_node_is_used_before_fewer_replicas_are_thought_of() -> None:
    """The node's loss is known late: what was lost until then says nothing about how soon another node comes."""
    world = elastic_world()
    await trained(world)
    world.nodes["node-d"] = Node("node-d", False)
    lost = world.node_of(1)
    world.kill_node(lost.name)
    await idle(world, operator, 30)
    lost.ready = False
    await run(world, operator, lambda w: size(w) == ("3/3", "Running") and w.generation > 1, seconds=60)
    assert world.node_of(1).name == "node-d"
    assert "Shrunk" not in reasons(world)
    assert {plan.world_size for plan in world.plans} == {3}


async def test_in_observe_nothing_is_done_and_the_price_is_shown() -> None:
    world = elastic_world(mode="Observe")
    await trained(world)
    lose(world, 1)
    await run(world, operator, state("Recovering"), seconds=60)
    await idle(world, operator, 60)
    assert world.generation == 2
    assert len(world.intent.membership.members) == 3
    found = shown(world, "Elastic")
    assert found is not None
    assert found.reason == "WouldShrink"
    assert "2 of 3 replicas would pay now (a restart of 10 s brings the others back)" in found.message
    assert "2 of 3 replicas would pay" in world.status.diagnoses[0].next
    assert "Shrunk" not in reasons(world)


def saved(world: World, step: int) -> list[Held]:
    """Return that two ranks have saved a step to a folder just now."""
    return [Held(rank, step, round(1000 * world.clock.unix()), in_folder=True) for rank in range(2)]


def size(world: World) -> tuple[str, str]:
    return world.status.ready, world.status.state


def runs_with(ready: str) -> Callable[[World], bool]:
    return lambda world: size(world) == (ready, "Running")


async def test_a_free_node_is_used_at_once_while_little_would_be_done_again() -> None:
    world = elastic_world(checkpoint={"intervalSeconds": 600})
    await shrunk(world)
    world.nodes["node-d"] = Node("node-d", False)
    begun = world.clock.seconds
    await run(world, operator, runs_with("3/3"), seconds=60)
    assert world.clock.seconds - begun < 30


async def test_the_job_grows_behind_the_next_checkpoint_where_much_would_be_done_again() -> None:
    world = elastic_world(checkpoint={"intervalSeconds": 100, "memory": "64Mi"})
    await shrunk(world)
    await idle(world, operator, 60)
    world.nodes["node-d"] = Node("node-d", False)
    await idle(world, operator, 15)
    assert world.status.ready == "2/2"
    assert world.status.elastic is not None
    assert "the next checkpoint: a restart with 3 replicas now costs" in world.status.elastic.next
    world.held = saved(world, step=500)
    await run(world, operator, runs_with("3/3"), seconds=20)
    assert reasons(world).count("Grown") == 1


async def test_only_the_listed_sizes_are_chosen() -> None:
    world = elastic_world(replicas=4, elastic={"sizes": [2, 4]}, checkpoint={"intervalSeconds": 60})
    await trained(world)
    name = lose(world, 3)
    await run(world, operator, runs_with("2/2"), seconds=120)
    await run(world, operator, lambda w: sum(each.ready for each in w.intent.membership.joining) == 1, seconds=60)
    revive(world, name)
    await run(world, operator, runs_with("4/4"), seconds=400)
    assert [plan.world_size for plan in world.plans if plan.phase == "Run"][-1] == 4
    assert {plan.world_size for plan in world.plans if plan.phase == "Run"} == {2, 4}


async def test_a_pod_that_is_ready_takes_a_lost_one_s_place_at_once() -> None:
    world = elastic_world(replicas=4, elastic={"sizes": [2, 4]})
    await trained(world)
    lose(world, 3)
    await run(world, operator, runs_with("2/2"), seconds=120)
    await run(world, operator, lambda w: any(each.ready for each in w.intent.membership.joining), seconds=60)
    lose(world, 0)
    begun = world.clock.seconds
    await run(world, operator, lambda w: size(w) == ("2/2", "Running") and len(w.status.diagnoses) == 2, seconds=60)
    assert world.clock.seconds - begun < 15
    assert world.status.elastic is not None
    assert world.status.elastic.replicas == 2


async def test_a_pod_that_is_lost_in_the_same_look_takes_no_place() -> None:
    world = elastic_world(replicas=4, elastic={"sizes": [2, 4]})
    await trained(world)
    lose(world, 3)
    await run(world, operator, runs_with("2/2"), seconds=120)
    await run(world, operator, lambda w: any(each.ready for each in w.intent.membership.joining), seconds=60)
    (ready,) = [each for each in world.intent.membership.joining if each.ready]
    lose(world, 0)
    world.kill_node(ready.node)
    world.nodes[ready.node].ready = False
    await run(world, operator, lambda w: w.intent.membership.excluded_nodes, seconds=60, ticks=300)
    assert ready.pod_name not in [member.pod_name for member in world.intent.membership.members]


async def test_one_loss_after_the_other_shrinks_to_the_least_and_no_further() -> None:
    world = elastic_world(replicas=4)
    await trained(world)
    lose(world, 0)
    await run(world, operator, runs_with("3/3"), seconds=120)
    lose(world, 0)
    await run(world, operator, runs_with("2/2"), seconds=120)
    lose(world, 0)
    await run(world, operator, state("Recovering"), seconds=60)
    await idle(world, operator, 60)
    assert world.status.state == "Recovering"
    assert len(world.intent.membership.members) == 2
    assert world.status.elastic is not None
    assert world.status.elastic.next == "a node: too few have one for any size that the job may have (2, 3, 4)"


async def test_another_size_has_another_iteration_time_and_nothing_is_slow() -> None:
    world = elastic_world(checkpoint={"intervalSeconds": 60})
    world.exchange = {3: 0.0, 2: 0.15}
    await trained(world, iterations=60)
    name = lose(world, 1)
    await run(world, operator, runs_with("2/2"), seconds=120)
    await idle(world, operator, 60)
    assert world.status.state == "Running"
    assert [note.severity for note in world.status.diagnoses] == ["SEV1"]
    assert world.status.healthy_iteration == "400ms"
    revive(world, name)
    await run(world, operator, runs_with("3/3"), seconds=400)
    await idle(world, operator, 30)
    assert world.status.healthy_iteration == "250ms"
    assert {"Straggler", "SlowLink", "JobChanged"}.isdisjoint(reasons(world))


async def test_a_slow_node_is_judged_anew_at_another_size() -> None:
    world = elastic_world(mode="Enforce", replicas=4)
    await trained(world, iterations=60)
    world.node_of(2).slow = 2.0
    await run(world, operator, state("Degraded"), seconds=60)
    slow = world.node_of(2).name
    lose(world, 0)
    await run(world, operator, lambda w: w.status.ready == "3/3" and w.status.state != "Recovering", seconds=120)
    await run(world, operator, state("Degraded"), seconds=120)
    assert world.status.diagnoses[0].node == slow
    assert world.status.diagnoses[0].rank == 1


async def test_a_suspended_job_comes_back_with_all_replicas() -> None:
    world = elastic_world()
    name = await shrunk(world)
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: w.status.state == "Suspended" and not w.alive, seconds=90)
    assert not world.intent.membership.joining
    assert world.status.elastic == ElasticStatus(replicas=0, wanted=3)
    assert world.status.ready == "0/3"
    revive(world, name)
    world.nodes["node-d"] = Node("node-d", False)
    world.edit_spec(suspend=False)
    await run(world, operator, runs_with("3/3"), seconds=120)


async def test_a_job_begins_with_fewer_replicas_when_its_deadline_for_nodes_has_passed() -> None:
    world = elastic_world(schedulingDeadlineSeconds=30, checkpoint={"intervalSeconds": 60})
    world.nodes["node-c"].ready = False
    await run(world, operator, runs_with("2/2"), seconds=60)
    assert world.clock.seconds >= 30
    assert world.intent.gang.releases == 0
    world.nodes["node-c"].ready = True
    await run(world, operator, runs_with("3/3"), seconds=60)


async def test_a_lost_run_is_made_again_at_the_size_that_trains() -> None:
    world = elastic_world()
    await shrunk(world)
    await idle(world, operator, 5)
    generation = world.generation
    world.trainingrun = None
    await idle(world, operator, 10)
    assert size(world) == ("2/2", "Running")
    assert world.generation == generation
    assert world.plan is not None
    assert world.plan.world_size == 2


@pytest.mark.parametrize("silent", [0, 2])
async def test_a_lost_run_is_made_again_only_when_every_pod_has_reported(silent: int) -> None:
    """Two of three are a possible size: the third one, of which nothing is heard yet, is not taken for superfluous."""
    world = elastic_world()
    await trained(world)
    pod = world.pod_of(silent)
    pod.agent_dead_at = world.clock.seconds
    world.received.pop(pod.uid)
    world.alive.discard(pod.uid)
    world.start_bus()
    world.trainingrun = None
    await idle(world, operator, 5)
    assert world.trainingrun is None
    pod.agent_dead_at = None
    await idle(world, operator, 5)
    assert size(world) == ("3/3", "Running")
    assert world.generation == 1
    assert len(world.made) == 3


async def test_the_job_grows_beyond_its_first_size_where_it_may() -> None:
    world = elastic_world(elastic={"maxReplicas": 4}, checkpoint={"intervalSeconds": 60})
    await trained(world)
    world.nodes["node-d"] = Node("node-d", False)
    await run(world, operator, runs_with("4/4"), seconds=60)


async def there_and_back(world: World) -> None:
    """Run the story of a lost node, fewer replicas, and a free node."""
    lose(world, 1)
    await run(world, operator, runs_with("2/2"), seconds=120, ticks=5)
    world.nodes["node-d"] = Node("node-d", False)
    await run(world, operator, runs_with("3/3"), seconds=120, ticks=5)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
async def test_an_operator_that_dies_after_any_call_shrinks_and_grows_once(every: int) -> None:
    first, last, made = await calls_there_and_back()
    assert last - first >= 6
    for crash_at in range(first, last + 1, every):
        world = elastic_world(checkpoint={"intervalSeconds": 600})
        await trained(world)
        world.crash_at = crash_at
        await there_and_back(world)
        assert world.calls >= crash_at
        assert world.generation == 3, crash_at
        assert len(world.made) == made, crash_at
        assert {plan.world_size for plan in world.plans if plan.phase == "Run"} == {2, 3}, crash_at
        assert [reason for reason in reasons(world) if reason in ("Shrunk", "Grown")] in EVENTS, crash_at


async def calls_there_and_back() -> tuple[int, int, int]:
    """Return the numbers of the first and the last mutating call of the story, and how many pods it makes."""
    world = elastic_world(checkpoint={"intervalSeconds": 600})
    await trained(world)
    first = world.calls + 1
    await there_and_back(world)
    return first, world.calls, len(world.made)


async def test_a_spare_that_becomes_ready_is_claimed_for_the_missing_replica() -> None:
    world = elastic_world(pool=True, checkpoint={"intervalSeconds": 600})
    await shrunk(world)
    add_spare(world, "spare-9")
    await run(world, operator, runs_with("3/3"), seconds=60)
    assert "spare-9" in [world.node_of(rank).name for rank in range(3)]
    assert world.claims == 1
    await idle(world, operator, 5)
    assert [spare.node for spare in world.pool.status.spares if spare.claimed_by] == ["spare-9"]


async def test_a_job_that_is_not_elastic_waits_and_stores_nothing_of_its_size() -> None:
    world = World(spares=0)
    await trained(world)
    lose(world, 1)
    await run(world, operator, state("Recovering"), seconds=60)
    await idle(world, operator, 60)
    assert len(world.intent.membership.members) == 3
    assert world.status.elastic is None
    assert shown(world, "Elastic") is None
    assert world.trainingrun is not None
    assert {"joining", "resized"}.isdisjoint(world.trainingrun["spec"])


async def test_in_observe_no_pod_is_asked_for_that_could_never_join() -> None:
    world = elastic_world(mode="Observe", elastic={"maxReplicas": 4})
    world.nodes["node-d"] = Node("node-d", False)
    await trained(world)
    await idle(world, operator, 5)
    assert len(world.made) == 3
    assert world.status.elastic is not None
    assert world.status.elastic.next == "spec.mitigation.mode Enforce: until then no further pods are asked for"


async def slow_and_unplaced(world: World) -> None:
    """Run until a rank is slow and the pod that is to replace it finds no node."""
    world.node_of(0).slow = 2.0
    await run(world, operator, lambda w: w.intent.membership.replacements, seconds=200, ticks=5)


async def test_a_pod_that_is_ready_to_join_replaces_a_slow_one() -> None:
    """Each waited for the other: no size with a slow node, and no node for the slow one's next pod."""
    world = elastic_world(checkpoint={"intervalSeconds": 60})
    await shrunk(world)
    await idle(world, operator, 20)
    await slow_and_unplaced(world)
    slow = world.node_of(0).name
    world.nodes["node-d"] = Node("node-d", False)
    await run(world, operator, lambda w: size(w) == ("2/2", "Running") and w.node_of(0).name != slow, seconds=60)
    assert world.node_of(0).name == "node-d"
    assert "ReplacementAbandoned" not in reasons(world)


async def test_a_pod_that_is_ready_to_join_moves_a_replica_from_a_node_that_is_emptied() -> None:
    world = elastic_world(checkpoint={"intervalSeconds": 60})
    await shrunk(world)
    world.node_of(0).cordoned = True
    await idle(world, operator, 1)
    world.nodes["node-d"] = Node("node-d", False)
    await run(world, operator, lambda w: any(pod.ready for pod in w.intent.membership.joining), seconds=10)
    assert world.status.elastic is not None
    assert world.status.elastic.next == "the move away from node-a, which takes the pod that is ready"
    await run(world, operator, lambda w: size(w) == ("2/2", "Running") and w.generation == 3, seconds=60)
    assert world.node_of(0).name == "node-d"


async def test_a_move_that_fewer_replicas_end_leaves_its_node_in_use() -> None:
    world = elastic_world()
    await trained(world, iterations=60)
    await slow_and_unplaced(world)
    slow = world.node_of(0).name
    assert world.intent.membership.excluded_nodes == [slow]
    lose(world, 1)
    await run(world, operator, lambda w: w.status.ready == "2/2" and w.status.state != "Recovering", seconds=120)
    assert world.node_of(0).name == slow
    assert slow not in world.intent.membership.excluded_nodes
    assert slow not in [departure.node for departure in world.intent.recovery.departures]


async def test_a_spare_that_the_pool_does_not_give_keeps_no_pod_from_a_free_node() -> None:
    world = elastic_world(pool=True, checkpoint={"intervalSeconds": 600})
    await shrunk(world)

    async def refuse(*_: object) -> WarmPool:
        return world.pool

    world.kube.write_pool_status = refuse  # type: ignore[method-assign]
    add_spare(world, "spare-9")
    await run(world, operator, claims_in_vain, seconds=90, ticks=5)
    world.nodes["node-d"] = Node("node-d", False)
    await run(world, operator, lambda w: any(pod.node == "node-d" for pod in w.pods.values()), seconds=60, ticks=1)


def claims_in_vain(world: World) -> bool:
    return any(pod.claim_key for pod in world.intent.membership.joining)
