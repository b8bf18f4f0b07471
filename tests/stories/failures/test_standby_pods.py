"""Pods that stand by without a replica, on a fake clock: made beside a healthy job, and taken by whoever needs one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from falcon_core.recovery.failstop.standby_pods import AFTER_SECONDS, AGAIN_SECONDS
from falcon_core.wire.launcher.launch import LaunchStandby
from tests.world.running import operator, run, runs, shown, state, trained
from tests.world.world import World


def training(*, spares: int = 2, wanted: int = 1, **recovery: Any) -> World:
    return World(spares=spares, spec={"recovery": {"standbyReplicas": wanted, **recovery}})


async def standing(world: World, wanted: int = 1) -> None:
    """Run until so many pods stand by."""

    def stand(world: World) -> bool:
        return sum(pod.ready for pod in world.intent.membership.standbys) == wanted

    await trained(world)
    await run(world, operator, stand, seconds=AFTER_SECONDS + 20)


async def for_seconds(world: World, seconds: float) -> None:
    end = world.clock.seconds + seconds
    await run(world, operator, lambda w: w.clock.seconds >= end, seconds=seconds + 5)


async def test_a_pod_stands_by_on_a_claimed_spare_once_training_has_settled() -> None:
    world = training()
    await trained(world)
    assert world.clock.seconds < AFTER_SECONDS
    assert len(world.made) == 3
    await standing(world)
    [standby] = world.intent.membership.standbys
    assert (standby.number, world.pods[standby.pod_name].node) == (3, standby.node)
    assert standby.pod_name.startswith("gpt2-3-")
    assert [spare.node for spare in world.pool.status.spares if spare.claimed_by] == [standby.node]
    assert world.plan is not None
    assert world.plan.standby_pods == [standby.pod_uid]
    assert len(world.plan.members) == 3
    await for_seconds(world, 60)
    assert (len(world.made), world.generation) == (4, 1), "one is enough, and nothing is restarted for it"
    found = shown(world, "StandbyReady")
    assert found is not None
    assert (found.status, found.message) == (
        "True",
        f"1 of 1 standby pods ready ({standby.pod_name} on {standby.node})",
    )


async def test_a_lost_nodes_replica_goes_on_in_it_and_another_is_made() -> None:
    world = training()
    await standing(world)
    [standby] = world.intent.membership.standbys
    made = len(world.made)
    world.kill_node("node-c")
    await run(world, operator, runs(2), seconds=60)
    member = world.intent.membership.members[2]
    assert (member.pod_name, member.number) == (standby.pod_name, 3)
    assert world.pods[member.pod_name].ranks.keys() == {2}
    assert len(world.made) == made, "no pod was made for the restart"
    await standing(world)
    [another] = world.intent.membership.standbys
    assert another.number == 4, "the lost pod may still be there, with its host name"
    assert {spare.node for spare in world.pool.status.spares if spare.claimed_by} == {"spare-1", "spare-2"}


async def test_a_slow_node_is_left_for_it_without_a_wait() -> None:
    world = training()
    await standing(world)
    [standby] = world.intent.membership.standbys
    world.node_of(1).slow = 3.0
    await run(world, operator, lambda w: w.intent.membership.replacements, seconds=120)
    [move] = world.intent.membership.replacements
    assert (move.pod_name, move.prepared) == (standby.pod_name, True)
    await run(world, operator, runs(2), seconds=60)
    assert world.intent.membership.members[1].pod_name == standby.pod_name


async def test_it_is_a_place_for_a_replica_where_the_pool_has_no_other_spare() -> None:
    world = training(spares=1)
    await standing(world)
    world.kill_node("node-a")
    await run(world, operator, runs(2), seconds=60)
    assert world.node_of(0).name == "spare-1"
    await for_seconds(world, AFTER_SECONDS + 5)
    found = shown(world, "StandbyReady")
    assert found is not None
    assert (found.status, found.reason) == ("False", "Preparing")
    assert "0 of 1 standby pods ready; WarmPool spares has no ready spare" in found.message


async def test_one_on_a_cordoned_node_goes_and_another_is_made() -> None:
    world = training()
    await standing(world)
    [standby] = world.intent.membership.standbys
    world.nodes[standby.node].cordoned = True
    await run(world, operator, lambda w: standby.pod_name not in w.pods, seconds=AGAIN_SECONDS + 10)
    await standing(world)
    assert world.intent.membership.standbys[0].node != standby.node
    assert world.generation == 1


@pytest.mark.parametrize("cause", ["node", "pod"])
async def test_one_that_is_lost_is_made_again_after_a_while(cause: str) -> None:
    world = training()
    await standing(world)
    [standby] = world.intent.membership.standbys
    if cause == "node":
        world.kill_node(standby.node)
    else:
        world.pods[standby.pod_name].exit_code = 1
    await for_seconds(world, 5)
    assert not any(pod.ready for pod in world.intent.membership.standbys)
    assert world.generation == 1, "training does not notice"
    world.pods.pop(standby.pod_name) if cause == "node" else None  # as the garbage collection of pods does
    await run(
        world,
        operator,
        lambda w: any(pod.ready for pod in w.intent.membership.standbys),
        seconds=AGAIN_SECONDS + 10,
    )
    [another] = world.intent.membership.standbys
    assert another.pod_name != standby.pod_name
    assert world.generation == 1


async def test_what_the_ranks_import_is_asked_once_and_handed_on() -> None:
    world = training(standby="Imports")
    world.standby = LaunchStandby(ready=1, wanted=1)
    await standing(world)
    await for_seconds(world, 90)  # news that changes no state is written once in a while
    assert world.imports is not None
    assert world.imports.packed == b"imports"
    assert world.plan is not None
    assert world.plan.imports_of == "", "the standby pod has imported it all"
    found = shown(world, "StandbyReady")
    assert found is not None
    assert ", 1 with all imports done; all 3 ranks have a standby" in found.message


@pytest.mark.parametrize("spec", [{"standby": "None"}, {"standby": "Imports"}])
async def test_nothing_is_asked_where_no_rank_has_a_standby(spec: dict[str, str]) -> None:
    world = training(**spec)
    await standing(world)
    assert world.plan is not None
    assert world.plan.imports_of == ""
    assert world.imports is None


async def test_fewer_are_wanted_and_it_gives_its_spare_back() -> None:
    world = training(wanted=2)
    await standing(world, 2)
    assert world.job is not None
    world.edit_spec(recovery=replace(world.job.spec.recovery, standby_replicas=0))
    await for_seconds(world, 10)
    assert len(world.pods) == 3
    assert not any(spare.claimed_by for spare in world.pool.status.spares)


async def test_a_suspended_job_holds_none() -> None:
    world = training()
    await standing(world)
    world.edit_spec(suspend=True)
    await run(world, operator, state("Suspended"))
    await for_seconds(world, 10)
    assert not world.pods
    assert not any(spare.claimed_by for spare in world.pool.status.spares)
    world.edit_spec(suspend=False)
    await standing(world)


async def test_an_operator_that_dies_after_any_call_takes_it_once() -> None:
    first = training()
    await standing(first)
    begun = first.calls + 1
    first.kill_node("node-c")
    await run(first, operator, runs(2), seconds=60)
    assert first.calls > begun
    for crash_at in range(begun, first.calls + 1):
        world = training()
        await standing(world)
        [standby] = world.intent.membership.standbys
        world.crash_at = crash_at
        world.kill_node("node-c")
        await run(world, operator, lambda w: runs(2)(w) and w.node_of(2).name != "node-c", seconds=60)
        assert world.intent.membership.members[2].pod_name == standby.pod_name, crash_at
        assert world.status.counters.replacements == 1, crash_at


async def test_an_operator_that_lost_its_trainingrun_keeps_the_ranks() -> None:
    world = training()
    await standing(world)
    world.trainingrun = None
    await run(world, operator, lambda w: w.status.state == "Running" and len(w.intent.membership.members) == 3)
    assert world.generation == 1
    await standing(world)
    assert len([pod for pod in world.pods.values() if pod.node]) == 4
