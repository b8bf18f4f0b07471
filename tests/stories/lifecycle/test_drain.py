"""Nodes that are cordoned, drained or about to go, on a fake clock: the job leaves them before anything fails."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.errors.judge import platform_judge
from falcon_core.recovery.drain import APART_SECONDS, GIVE_WAY_SECONDS, SETTLE_SECONDS
from falcon_operator.api.common import LABEL_JOB_UID
from falcon_operator.intent.observation.evictions import hold
from tests.world.running import condition, operator, run, runs, state, steps, trained
from tests.world.world import World

TAINTS = ("spot/notice",)
replace = msgspec.structs.replace


def message(world: World, type_: str) -> str:
    return next(entry.message for entry in world.status.conditions if entry.type == type_)


def moves(world: World) -> bool:
    return condition(world.status, "Moving") == "True"


async def held(world: World) -> list[str]:
    """Return what the eviction of each replica's pod would be refused with, "" where it is admitted."""
    assert world.job is not None
    pods = {pod.name: pod for pod in await world.kube.list_pods("ml", {LABEL_JOB_UID: world.job.metadata.uid})}
    nodes = await world.kube.nodes()
    said = []
    for rank in range(3):
        pod, now = pods[world.pod_of(rank).name], world.clock.unix()
        found = hold(world.job, world.intent.recovery, pod, nodes.get(pod.node), TAINTS, platform_judge(""), now)
        said.append(found.why if found is not None else "")
    return said


async def test_a_cordoned_node_is_left_in_one_planned_restart_and_is_neither_excluded_nor_tested() -> None:
    world = World()
    await trained(world)
    kept = {world.pod_of(0).uid, world.pod_of(1).uid}
    node = world.node_of(2)
    node.cordoned = True
    await run(world, operator, lambda w: len(w.made) == 4)
    assert world.status.state == "Running", "training goes on while the pod is prepared"
    await run(world, operator, runs(2))
    assert world.node_of(2).name == "spare-1"
    assert {world.pod_of(0).uid, world.pod_of(1).uid} == kept
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    (note,) = world.status.diagnoses
    assert (note.cause, note.node, note.why) == ("NodeLeaves", node.name, f"node {node.name} is cordoned")
    assert "training again" in note.result
    assert "prepared pods took over" in steps(note)
    assert (world.exclusions, world.tested, node.taints) == ([], [], {})
    assert condition(world.status, "Moving") == "False"
    assert [reason for reason, _ in world.events] == ["Started", "Moving", "Started", "Moved"]
    assert world.status.counters.replacements == 1


async def test_a_cordon_that_is_lifted_soon_moves_nobody_and_one_lifted_later_costs_no_restart() -> None:
    world = World()
    await trained(world)
    node = world.node_of(2)
    node.cordoned = True
    await run(world, operator, moves)
    node.cordoned = False
    await run(world, operator, lambda w: not moves(w))
    assert len(world.made) == 3
    node.cordoned = True
    await run(world, operator, lambda w: len(w.made) == 4)
    node.cordoned = False
    await run(world, operator, lambda w: len(w.pods) == 3 and not w.intent.membership.replacements)
    assert (world.generation, world.node_of(2).name) == (1, node.name)
    assert world.pool.status.spares[0].state == "Testing", "the claim was given back"


async def test_nodes_cordoned_together_share_a_restart() -> None:
    world = World(spares=2)
    await trained(world)
    for rank in (0, 2):
        world.node_of(rank).cordoned = True
    await run(world, operator, runs(2))
    assert {world.node_of(0).name, world.node_of(2).name} == {"spare-1", "spare-2"}
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert len(world.status.diagnoses) == 1


async def test_rolling_cordons_cause_no_storm_of_restarts() -> None:
    world = World(spares=3)
    await trained(world)
    world.node_of(2).cordoned = True
    await run(world, operator, runs(2))
    began = world.clock.seconds
    world.node_of(1).cordoned = True
    await run(world, operator, lambda w: w.clock.seconds > began + 60, seconds=70)
    world.node_of(0).cordoned = True
    await run(world, operator, runs(3), seconds=APART_SECONDS + 60)
    assert world.clock.seconds - began > APART_SECONDS - 30
    assert {world.node_of(rank).name for rank in range(3)} == {"spare-1", "spare-2", "spare-3"}


@pytest.mark.parametrize("notice", ["taint", "condition"])
async def test_an_urgent_notice_is_answered_at_once_and_soon_after_another_move(notice: str) -> None:
    world = World(spares=2)
    await trained(world)
    world.node_of(2).cordoned = True
    await run(world, operator, runs(2))
    began = world.clock.seconds
    if notice == "taint":
        world.node_of(0).taints["spot/notice"] = ""
    else:
        world.pod_of(0).disruption = "preempted"
    await run(world, operator, runs(3), seconds=SETTLE_SECONDS)
    assert world.node_of(0).name.startswith("spare-")
    assert world.clock.seconds - began < SETTLE_SECONDS


async def test_a_pod_that_is_evicted_while_its_successor_is_prepared_is_taken_over_by_that() -> None:
    world = World()
    await trained(world)
    world.node_of(2).cordoned = True
    await run(world, operator, lambda w: len(w.made) == 4)
    world.pod_of(2).deleting_at = world.clock.seconds
    await run(world, operator, runs(2))
    assert (len(world.made), world.node_of(2).name) == (4, "spare-1")


async def test_a_failure_takes_the_prepared_pods_along() -> None:
    world = World()
    await trained(world)
    world.node_of(2).cordoned = True
    await run(world, operator, lambda w: len(w.made) == 4)
    world.end_rank(0, signal=9)
    await run(world, operator, runs(2))
    await run(world, operator, lambda w: not moves(w) and w.status.state == "Running")
    assert world.node_of(2).name == "spare-1"


async def test_in_a_restart_for_a_failure_a_cordoned_node_is_left_where_a_spare_is_ready() -> None:
    world = World(spares=2)
    await trained(world)
    node = world.node_of(2)
    node.cordoned = True
    world.end_rank(0, signal=9)
    await run(world, operator, runs(2))
    assert world.node_of(2).name.startswith("spare-"), "one spare is left for the rank that has failed"


@pytest.mark.slow
async def test_without_a_spare_the_job_stays_says_so_and_evictions_wait_for_ten_minutes() -> None:
    world = World()
    await trained(world)
    spare = world.pool.status.spares[0]
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=[replace(spare, state="Testing")]))
    assert not world.has_budget, "an earlier release's"
    assert await held(world) == ["", "", ""], "no move is under way"
    world.node_of(2).cordoned = True
    assert "is about to leave" in (await held(world))[2], "the drain evicts before the operator has seen the cordon"
    await run(world, operator, lambda w: moves(w) and "no ready spare" in message(w, "Moving"))
    assert "evictions are held off until" in message(world, "Moving")
    assert (world.status.state, world.generation) == ("Running", 1)
    held_off = await held(world)
    assert "evictions wait until" in held_off.pop()
    assert held_off == ["", ""], "another node of the job stays in use"
    seconds = GIVE_WAY_SECONDS + 10
    await run(world, operator, lambda w: "no longer held off" in message(w, "Moving"), seconds=seconds)
    assert await held(world) == ["", "", ""]
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=[spare]))
    await run(world, operator, runs(2))


async def test_a_job_may_ignore_drains() -> None:
    world = World(spec={"recovery": {"onDrain": "Ignore"}})
    await trained(world)
    world.node_of(2).cordoned = True
    end = world.clock.seconds + 2 * SETTLE_SECONDS
    await run(world, operator, lambda w: w.clock.seconds > end)
    assert (world.generation, moves(world)) == (1, False)
    assert await held(world) == ["", "", ""]
    assert len(world.made) == 3


async def test_a_slow_node_takes_no_spare_while_a_move_is_prepared_and_is_replaced_afterwards() -> None:
    world = World(spares=2)
    await trained(world)
    world.node_of(0).cordoned = True
    world.node_of(2).slow = 3.0
    await run(world, operator, lambda w: {w.node_of(0).name, w.node_of(2).name} == {"spare-1", "spare-2"}, seconds=180)
    await run(world, operator, state("Running"), seconds=90)
    assert len(world.pods) == 3


@pytest.mark.parametrize("at", range(1, 40))
async def test_an_operator_that_dies_at_any_call_moves_the_job_once(at: int) -> None:
    world = World()
    await trained(world)
    world.node_of(2).cordoned = True
    world.crash_at = world.calls + at
    await run(world, operator, runs(2))
    assert (len(world.made), world.claims, world.node_of(2).name) == (4, 1, "spare-1")
