"""Stories of the check before the start: who is measured, which machine is left, and what people read of it."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.api import Condition
from falcon_operator.status.checks import TYPE
from tests.unit.operator.telling import operator, run, runs, steps, trained
from tests.unit.operator.world import World

ENFORCE: dict[str, Any] = {"preflight": {"mode": "Enforce"}}


def found(world: World) -> Condition | None:
    return next((each for each in world.status.conditions if each.type == TYPE), None)


def numbers(world: World) -> list[int]:
    return sorted({number for number, _ in world.measured})


async def test_without_it_nothing_is_measured() -> None:
    world = World()
    await trained(world)
    assert (world.measured, found(world)) == ([], None)
    assert not any(plan.check for plan in world.plans)


async def test_equal_machines_start_after_one_round_and_are_not_measured_again() -> None:
    world = World(spec=ENFORCE)
    await trained(world)
    assert sorted(world.measured) == [(1, "node-a"), (1, "node-b"), (1, "node-c")]
    condition = found(world)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "AllAlike")
    world.end_rank(1, signal=9)
    await run(world, operator, runs(2))
    assert numbers(world) == [1], "the same pods: nothing is new"


async def test_a_slow_machine_is_left_before_the_first_step() -> None:
    world = World(spec=ENFORCE)
    world.nodes["node-b"].rate = 0.5
    await trained(world)
    assert world.generation == 1
    assert {pod.node for pod in world.pods.values()} == {"node-a", "node-c", "spare-1"}
    assert numbers(world) == [1, 2, 3], "the round that found it, the one that confirmed it, and the newcomer's"
    (exclusion,) = world.exclusions
    assert exclusion.node == "node-b"
    assert "0.50 of its peers' rate (fp32)" in exclusion.reason
    condition = found(world)
    assert condition is not None
    assert condition.status == "True"
    assert not any("slow" in diagnosis.what.lower() for diagnosis in world.status.diagnoses)
    (plan,) = (plan for plan in world.plans if plan.phase == "Run")
    assert plan.check == 0


async def test_a_machine_that_is_slow_once_is_measured_again_and_kept() -> None:
    world = World(spec=ENFORCE)
    world.nodes["node-b"].rate = 0.5
    await run(world, operator, lambda w: (1, "node-b") in w.measured)
    world.nodes["node-b"].rate = 1.0
    await trained(world)
    assert numbers(world) == [1, 2]
    assert world.exclusions == []


async def test_wrong_results_need_no_second_round() -> None:
    world = World(spec=ENFORCE)
    world.nodes["node-c"].wrong = "device 3 (H200): its bf16 products are wrong"
    await trained(world)
    assert numbers(world) == [1, 2]
    (exclusion,) = world.exclusions
    assert exclusion.node == "node-c"
    assert "device 3 (H200): its bf16 products are wrong" in exclusion.reason


@pytest.mark.parametrize(
    ("spec", "spares", "words"),
    [
        ({"preflight": {"mode": "Report"}}, 1, "since spec.preflight.mode is Report"),
        (ENFORCE, 0, "WarmPool spares has no ready spare"),
    ],
    ids=["only reported", "no spare"],
)
async def test_the_job_starts_all_the_same(spec: dict[str, Any], spares: int, words: str) -> None:
    world = World(spec=spec, spares=spares)
    world.nodes["node-b"].rate = 0.5
    await trained(world)
    assert world.exclusions == []
    condition = found(world)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "BadMachine")
    assert "node node-b" in condition.message
    assert words in condition.message
    assert any("BadMachine" in event for event in world.events)


async def test_a_machine_without_a_result_holds_nobody_up_for_ever() -> None:
    world = World(spec=ENFORCE)
    world.mute = {"node-a"}
    await run(world, operator, lambda w: w.status.state == "Running", seconds=120)
    condition = found(world)
    assert condition is not None
    assert condition.reason == "Incomplete"
    assert "no answer" in condition.message


async def test_a_newcomer_is_checked_together_with_the_others() -> None:
    world = World(spec=ENFORCE, spares=2)
    await trained(world)
    world.nodes["spare-1"].rate = 0.3
    world.kill_node("node-b")
    await run(world, operator, runs(2), seconds=120)
    assert {world.node_of(rank).name for rank in range(3)} == {"node-a", "node-c", "spare-2"}


async def test_a_pod_that_goes_during_a_round_ends_the_round() -> None:
    world = World(spec=ENFORCE)
    world.mute = {"node-a"}
    await run(world, operator, lambda w: (1, "node-b") in w.measured)
    world.kill_node("node-c")
    world.nodes["node-c"].ready = False
    world.mute = set()
    await run(world, operator, lambda w: w.status.state == "Running", seconds=120)
    assert {world.node_of(rank).name for rank in range(3)} == {"node-a", "node-b", "spare-1"}


async def test_an_operator_that_dies_anywhere_ends_up_the_same() -> None:
    for call in range(1, 14):
        world = World(spec=ENFORCE)
        world.nodes["node-b"].rate = 0.5
        world.crash_at = call
        await trained(world)
        assert {pod.node for pod in world.pods.values()} == {"node-a", "node-c", "spare-1"}, call


@pytest.mark.parametrize(
    ("rate", "rounds", "node"),
    [(1.0, [1, 2], "node-b"), (0.5, [1, 2, 3, 4], "spare-1")],
    ids=["the machine is well", "it is sick"],
)
async def test_a_failure_that_points_at_a_machine_is_followed_by_a_check(
    rate: float, rounds: list[int], node: str
) -> None:
    world = World(spec=ENFORCE)
    await trained(world)
    world.nodes["node-b"].rate = rate
    world.end_rank(1, exit_code=1, last_words="RuntimeError: CUDA error: an illegal memory access was encountered")
    await run(world, operator, runs(2))
    assert numbers(world) == rounds
    assert world.node_of(1).name == node
    (note,) = world.status.diagnoses
    assert (note.error_class, "node-b" in steps(note)) == ("IllegalMemoryAccess", node != "node-b")


@pytest.mark.parametrize(
    "end",
    [{"signal": 9}, {"exit_code": 1, "last_words": "ValueError: bad"}],
    ids=["killed", "an error of the program's own"],
)
async def test_other_failures_are_not_held_up(end: dict[str, Any]) -> None:
    world = World(spec=ENFORCE)
    await trained(world)
    world.end_rank(1, **end)
    await run(world, operator, runs(2))
    assert numbers(world) == [1]
