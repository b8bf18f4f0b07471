"""Links that are measured while training stands still, on a fake clock: named, acted upon, and never for long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.world.flows import ring
from tests.world.running import idle, operator, phases, reasons, run, trained
from tests.world.world import World

LADDER = [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": 5}, {"type": "ReplaceNode"}]
SLOW = 5e-9  # seconds a byte beyond healthy ones: 0.2 s for 40 MB, in an iteration of 0.25 s
SLOW_BITS = 40e6


def training(replicas: int = 4, budget: str = "50%", **spec: Any) -> World:
    """Return a job whose ranks all reduce their gradients together, around a ring."""
    body = {"mitigation": {"strategies": LADDER}, "detection": {"pauseBudget": budget}, **spec}
    world = World(replicas=replicas, spec=body)
    world.flows = ring(replicas)
    return world


async def congested(world: World, first: int = 0, second: int = 1) -> None:
    """Let the link between two ranks' nodes become slow once the job trains."""
    await trained(world)
    world.flows.congested[frozenset((world.node_of(first).name, world.node_of(second).name))] = SLOW
    world.paused.slow = {frozenset((first, second)): SLOW_BITS}


def nodes(world: World) -> list[str]:
    return [world.node_of(rank).name for rank in range(len(world.intent.membership.members))]


async def test_the_slow_pair_is_named_and_is_no_pair_of_the_ring_any_more() -> None:
    world = training()
    await congested(world)
    await run(world, operator, lambda w: "LinkLocated" in reasons(w))
    (note,) = world.status.diagnoses
    ends = [world.pod_of(rank) for rank in (0, 1)]
    assert note.where == (
        f"the link between rank 0 (pod {ends[0].name}, node node-a), rank 1 (pod {ends[1].name}, node node-b)"
    )
    assert "40 Mbit/s, the other links 5 Gbit/s" in note.evidence
    assert phases(world) == ["Prepare", "Hold"] or phases(world) == ["Prepare", "Hold", "Release"]
    await run(world, operator, lambda w: "Resolved" in reasons(w), seconds=120)
    after = nodes(world)
    assert abs(after.index("node-a") - after.index("node-b")) == 2, "opposite each other"
    assert reasons(world) == [
        "Started",
        "SlowLink",
        "Validating",
        "LinkLocated",
        "RolesExchanged",
        "Started",
        "Resolved",
    ]
    assert world.status.pauses is not None
    assert world.status.pauses.count == 1
    assert world.status.pauses.milliseconds == round(1e3 * world.paused.pauses[0])
    assert world.paused.pauses[0] < 1.5
    assert world.flows.extra_seconds(dict(enumerate(after))) == 0
    assert "during a pause of" in world.status.diagnoses[0].evidence


async def test_of_three_pods_the_pair_is_named_and_no_other_ring_exists() -> None:
    world = training(3)
    await congested(world)
    await run(world, operator, lambda w: "LinkLocated" in reasons(w))
    await run(world, operator, lambda w: "no other assignment" in w.status.diagnoses[0].next)
    assert world.generation == 1


async def test_a_node_whose_links_are_all_slow_is_named() -> None:
    world = training()
    await congested(world)
    world.paused.slow = {frozenset((0, 1)): SLOW_BITS, frozenset((1, 2)): SLOW_BITS}
    await run(world, operator, lambda w: "LinkLocated" in reasons(w))
    (note,) = world.status.diagnoses
    assert note.node == "node-b"
    assert note.where.startswith("the link of node node-b: ")


@pytest.mark.slow
async def test_links_that_are_alike_name_nobody_and_are_not_measured_again_soon() -> None:
    world = training()
    await congested(world)
    world.paused.slow = {}
    await run(world, operator, lambda w: "LinksAlike" in reasons(w))
    await idle(world, operator, 300)
    assert phases(world) == ["Prepare", "Hold", "Release"]
    assert world.generation == 1
    assert "none of the 4 links is far below its peers" in world.status.diagnoses[0].evidence


async def test_the_budget_is_kept() -> None:
    world = training(budget="1%")
    await congested(world)
    await run(world, operator, lambda w: w.status.diagnoses and "from " in w.status.diagnoses[0].next)
    assert "the links are measured while training is paused, from " in world.status.diagnoses[0].next
    await run(world, operator, lambda w: "Validating" in reasons(w), seconds=400, ticks=5)
    assert world.clock.seconds > 300, "three seconds are one percent of five minutes"


@pytest.mark.parametrize("spec", [{"budget": "0%"}, {"mitigation": {"mode": "Observe", "strategies": LADDER}}])
async def test_nobody_is_stopped_where_that_is_not_allowed(spec: dict[str, Any]) -> None:
    world = training(**spec)
    await congested(world)
    await run(world, operator, lambda w: w.status.diagnoses)
    await idle(world, operator, 60)
    assert world.paused.orders == []


@pytest.mark.slow
async def test_what_cannot_be_paused_is_said_and_tried_three_times() -> None:
    world = training()
    world.paused.why = "its calls are not regular now"
    await congested(world)
    await run(world, operator, lambda w: reasons(w).count("NotValidated") == 3, seconds=300)
    await idle(world, operator, 120)
    assert phases(world) == ["Prepare", "Release"] * 3
    (note,) = world.status.diagnoses
    assert "rank 0: its calls are not regular now" in note.evidence
    assert note.next.startswith("no action: Falcon tried 3 times ")
    assert world.status.pauses is None


async def test_links_between_ranks_on_devices_are_measured_once_all_of_their_calls_are_timed() -> None:
    world = training()
    world.paused.on_device, world.paused.why = True, "it is not known when its device is done with its calls"
    await congested(world)
    await run(world, operator, lambda w: phases(w) == ["Prepare"], seconds=90)
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > begun + 3)
    assert phases(world) == ["Prepare"], "no rank is stopped, and nothing is given up"
    world.paused.why = ""
    await run(world, operator, lambda w: phases(w) == ["Prepare", "Hold", "Release"], seconds=30)
    assert "LinkLocated" in reasons(world)


async def test_a_device_that_is_never_known_to_keep_up_is_said() -> None:
    world = training()
    world.paused.on_device, world.paused.why = True, "it is not known when its device is done with its calls"
    await congested(world)
    await run(world, operator, lambda w: "NotValidated" in reasons(w), seconds=120)
    assert phases(world) == ["Prepare", "Release"]
    assert "rank 0: it is not known when its device is done" in world.status.diagnoses[0].evidence


async def test_a_cut_that_was_passed_is_ordered_farther_ahead_the_next_time() -> None:
    world = training()
    world.paused.past = True
    await congested(world)
    await run(world, operator, lambda w: "NotValidated" in reasons(w))
    world.paused.past = False
    await run(world, operator, lambda w: "LinkLocated" in reasons(w), seconds=120)
    holds = [order for order in world.paused.orders if order.phase == "Hold"]
    assert holds[1].arrive_ms > holds[0].arrive_ms


async def test_a_pod_that_does_not_answer_holds_nobody_up() -> None:
    world = training()
    world.paused.mute = {2}
    await congested(world)
    await run(world, operator, lambda w: "NotValidated" in reasons(w), seconds=90)
    assert phases(world)[:2] == ["Prepare", "Release"]
    assert world.paused.pauses == []


async def test_a_failure_ends_the_pause() -> None:
    world = training()
    await congested(world)
    await run(world, operator, lambda w: phases(w)[-1:] == ["Hold"])
    world.end_rank(3, signal=9)
    await run(world, operator, lambda w: "Resolved" in reasons(w), seconds=90)
    assert reasons(world)[-5:] == ["Validating", "RankFailed", "NotValidated", "Started", "Resolved"]
    assert world.iterations > 0


@pytest.mark.parametrize("crash", range(8))
async def test_an_operator_that_dies_at_any_instant_measures_once(crash: int) -> None:
    world = training()
    await congested(world)
    world.crash_at = world.calls + 1 + crash
    await run(world, operator, lambda w: "Resolved" in reasons(w) or w.generation == 2, seconds=150)
    assert [phase for phase in phases(world) if phase == "Hold"] == ["Hold"]
    assert len(world.paused.pauses) == 1
