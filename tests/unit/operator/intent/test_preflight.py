"""Stories of the check before the start: who is measured, which machine is left, and what people read of it."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.status.checks import TYPE
from tests.world.running import operator, run, runs, shown, steps, trained
from tests.world.world import World

ENFORCE: dict[str, Any] = {"preflight": {"mode": "Enforce"}}


def linked(world: World) -> list[int]:
    return sorted({number for number, _ in world.linked})


def numbers(world: World) -> list[int]:
    return sorted({number for number, _ in world.measured})


async def test_without_it_nothing_is_measured() -> None:
    world = World()
    await trained(world)
    assert (world.measured, shown(world, TYPE)) == ([], None)
    assert not any(plan.check for plan in world.plans)


async def test_equal_machines_start_after_one_round_and_are_not_measured_again() -> None:
    world = World(spec=ENFORCE)
    await trained(world)
    assert sorted(world.measured) == [(1, "node-a"), (1, "node-b"), (1, "node-c")]
    condition = shown(world, TYPE)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "AllAlike")
    assert "their 3 links in bandwidth and latency" in condition.message
    assert sorted(world.linked) == [(1, "node-a"), (1, "node-b"), (1, "node-c")]
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
    condition = shown(world, TYPE)
    assert condition is not None
    assert condition.status == "True"
    assert not any("slow" in diagnosis.what.lower() for diagnosis in world.status.diagnoses)
    (plan,) = (plan for plan in world.plans if plan.phase == "Run")
    assert (plan.check, plan.check_links, plan.links) == (0, False, None)


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


NOTHING_LEFT = pytest.mark.parametrize(
    ("spec", "spares", "words"),
    [
        ({"preflight": {"mode": "Report"}}, 1, "since spec.preflight.mode is Report"),
        (ENFORCE, 0, "WarmPool spares has no ready spare"),
    ],
    ids=["only reported", "no spare"],
)


async def starts_all_the_same(spec: dict[str, Any], spares: int, **slow: float) -> tuple[World, str]:
    """Run a job whose second node is slow in some way; return what the condition says of it."""
    world = World(spec=spec, spares=spares)
    for what, value in slow.items():
        setattr(world.nodes["node-b"], what, value)
    await trained(world)
    assert world.exclusions == []
    condition = shown(world, TYPE)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "BadMachine")
    return world, condition.message


@NOTHING_LEFT
async def test_the_job_starts_all_the_same(spec: dict[str, Any], spares: int, words: str) -> None:
    world, message = await starts_all_the_same(spec, spares, rate=0.5)
    assert "node node-b" in message
    assert words in message
    assert any("BadMachine" in event for event in world.events)


async def test_a_machine_without_a_result_holds_nobody_up_for_ever() -> None:
    world = World(spec=ENFORCE)
    world.mute = {"node-a"}
    await run(world, operator, lambda w: w.status.state == "Running", seconds=120)
    condition = shown(world, TYPE)
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


# -- links -------------------------------------------------------------------------------------------------------------


async def test_a_machine_whose_links_are_all_slow_is_left_before_the_first_step() -> None:
    world = World(spec=ENFORCE)
    world.nodes["node-b"].bits = 20e6
    await trained(world)
    assert world.generation == 1
    assert {pod.node for pod in world.pods.values()} == {"node-a", "node-c", "spare-1"}
    assert linked(world) == [1, 2, 3], "the round that found it, the one that confirmed it, and the newcomer's"
    (exclusion,) = world.exclusions
    assert exclusion.node == "node-b"
    assert "all its links are slow (20 Mbit/s on the best of its 2 links, 10 Gbit/s on the others)" in exclusion.reason
    assert any(reason == "BadMachine" and "all its links are slow" in note for reason, note in world.events)
    condition = shown(world, TYPE)
    assert condition is not None
    assert condition.status == "True"


async def test_each_round_has_a_token_of_its_own_and_the_stored_intent_keeps_none() -> None:
    world = World(spec=ENFORCE)
    world.nodes["node-b"].bits = 20e6
    await trained(world)
    assert sorted(world.tokens) == [1, 2, 3]
    assert len(set(world.tokens.values())) == 3
    assert {len(token) for token in world.tokens.values()} == {32}
    assert world.intent.preflight.token == ""


@NOTHING_LEFT
async def test_slow_links_are_told_where_nothing_is_left(spec: dict[str, Any], spares: int, words: str) -> None:
    _, message = await starts_all_the_same(spec, spares, bits=20e6)
    assert "20 Mbit/s" in message
    assert words in message


async def test_one_slow_link_between_two_good_machines_is_named_and_nobody_is_left() -> None:
    world = World(spec=ENFORCE)
    world.cables = {frozenset(("node-a", "node-b")): 20e6}
    await trained(world)
    assert linked(world) == [1, 2]
    assert world.exclusions == []
    condition = shown(world, TYPE)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "SlowLink")
    assert "node-a (gpt2-0-" in condition.message
    assert "node-b (gpt2-1-" in condition.message
    assert "20 Mbit/s, the other links 10 Gbit/s" in condition.message
    assert any(reason == "SlowLink" for reason, _ in world.events)


async def test_a_link_that_is_slow_once_is_nobodys() -> None:
    world = World(spec=ENFORCE)
    world.nodes["node-b"].bits = 20e6
    await run(world, operator, lambda w: (1, "node-b") in w.linked)
    world.nodes["node-b"].bits = 10e9
    await trained(world)
    assert linked(world) == [1, 2]
    assert world.exclusions == []


async def test_connections_that_are_refused_are_told_with_the_remedy_and_the_job_starts() -> None:
    world = World(spec=ENFORCE)
    world.nodes["node-b"].refuses = True
    await trained(world)
    assert world.exclusions == []
    condition = shown(world, TYPE)
    assert condition is not None
    assert (condition.status, condition.reason) == ("Unknown", "LinksUnknown")
    assert "2 of the 3 links" in condition.message
    assert "Connection refused" in condition.message
    assert "NetworkPolicy" in condition.message


async def test_a_pod_that_never_tells_of_its_links_holds_nobody_up_for_ever() -> None:
    world = World(spec=ENFORCE)
    world.unlinked = {"node-c"}
    await run(world, operator, lambda w: w.status.state == "Running", seconds=120)
    condition = shown(world, TYPE)
    assert condition is not None
    assert condition.reason == "LinksUnknown"
    assert "no answer in time" in condition.message


async def test_the_one_link_of_two_machines_is_not_measured() -> None:
    world = World(replicas=2, spec=ENFORCE)
    await trained(world)
    assert world.linked == []
    assert not any(plan.check_links or plan.links for plan in world.plans)
    condition = shown(world, TYPE)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "AllAlike")
    assert "there is no other link to compare it with" in condition.message


async def test_an_operator_that_dies_anywhere_in_a_check_of_links_ends_up_the_same() -> None:
    for call in range(1, 16):
        world = World(spec=ENFORCE)
        world.nodes["node-b"].bits = 20e6
        world.crash_at = call
        await trained(world)
        assert {pod.node for pod in world.pods.values()} == {"node-a", "node-c", "spare-1"}, call


async def test_a_pod_that_goes_while_links_are_measured_ends_the_round() -> None:
    world = World(spec=ENFORCE)
    world.unlinked = {"node-a"}
    await run(world, operator, lambda w: (1, "node-b") in w.linked)
    world.kill_node("node-c")
    world.nodes["node-c"].ready = False
    world.unlinked = set()
    await run(world, operator, lambda w: w.status.state == "Running", seconds=120)
    assert {world.node_of(rank).name for rank in range(3)} == {"node-a", "node-b", "spare-1"}


async def test_kinds_of_work_that_were_not_done_stand_in_the_stored_result() -> None:
    world = World(spec=ENFORCE)
    world.skipped = {"fp8": "this PyTorch or this GPU has none"}
    await trained(world)
    assert world.intent.preflight.skipped == ["fp8: this PyTorch or this GPU has none"]
