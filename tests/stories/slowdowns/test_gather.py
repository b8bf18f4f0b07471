"""Slow nodes go where they cost least, on a fake clock: pods exchange their roles once, and the ladder goes on."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.api.trainingjob import DiagnosisStatus
from tests.world.flows import two_by_two
from tests.world.running import idle, operator, reasons, run, steps, trained
from tests.world.world import World

REPLACE = {"type": "ReplaceNode", "overheadSeconds": 60}


def training(*further: dict[str, Any], tensor: int = 1, exchange: float = 5, **fields: Any) -> World:
    """Return a job of two pipeline stages without overlap, with two ranks each: two replicas, or one tensor group.

    Ranks 0 and 2 compute one after the other.
    """
    ladder = [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": exchange}, *further]
    mitigation = {"strategies": ladder, **fields}
    world = World(replicas=4, spec={"parallelism": {"pipeline": 2, "tensor": tensor}, "mitigation": mitigation})
    world.stages, world.tensor = 2, tensor
    return world


async def slow_stages(world: World, first: float = 2.0, second: float = 2.0) -> None:
    """Let a node of each stage become slow, once the job trains: 0.45 s become 0.85 s."""
    await trained(world)
    world.node_of(0).slow, world.node_of(2).slow = first, second


def nodes(world: World) -> list[str]:
    return [world.node_of(rank).name for rank in range(len(world.intent.membership.members))]


def by_node(world: World) -> dict[str, DiagnosisStatus]:
    return {note.node: note for note in world.status.diagnoses}


@pytest.mark.parametrize(
    ("tensor", "apart"), [(1, [{0, 1}, {0, 3}, {1, 2}, {2, 3}]), (2, [{0, 1}, {2, 3}])], ids=["replicas", "tensor"]
)
async def test_two_slow_nodes_no_longer_compute_one_after_the_other(tensor: int, apart: list[set[int]]) -> None:
    """Two replicas share them out; a tensor group has both of them, and is as slow as with one."""
    world = training(tensor=tensor)
    await slow_stages(world)
    await run(world, operator, lambda w: w.generation == 2, seconds=120)
    after = nodes(world)
    assert {after.index("node-a"), after.index("node-c")} in apart
    assert (world.claims, len(world.made)) == (0, 4), "no pod is made, and no spare is taken"
    assert "RolesExchanged" in reasons(world)
    await run(world, operator, lambda w: "since" in steps(by_node(w)["node-a"]), seconds=60)
    notes = by_node(world)
    first = next(note for note in notes.values() if "exchanged" in steps(note))
    done = steps(first)
    assert "and removes 50 % of the loss" in done
    assert (
        "exchanged; all ranks restarted in their pods; iteration 850ms before, 650ms since, 650ms by the model" in done
    )
    assert {note.state for note in notes.values()} == {"Open"}, "the nodes are as slow as they were"
    assert {note.rank for note in notes.values()} == {after.index("node-a"), after.index("node-c")}
    await idle(world, operator, 60)
    assert (world.generation, len(world.status.diagnoses)) == (2, 2)
    assert first.next.startswith("no action: ")
    world.nodes["node-a"].slow = world.nodes["node-c"].slow = 1.0
    await run(world, operator, lambda w: {n.state for n in w.status.diagnoses} == {"Resolved"}, seconds=60)
    assert world.generation == 2


async def test_the_traffic_is_not_put_back_on_a_link_that_an_exchange_left() -> None:
    """Two nodes with a slow link got roles of two tensor groups, and become slow: one group would have both of them."""
    world = training(tensor=2)
    world.flows = two_by_two()
    await trained(world)
    ends = [world.node_of(0), world.node_of(1)]
    world.flows.congested[frozenset(end.name for end in ends)] = 5e-9
    await run(world, operator, lambda w: "Resolved" in reasons(w), seconds=120)
    for end in ends:
        end.slow = 2.0
    await run(world, operator, lambda w: {end.name for end in ends} <= by_node(w).keys(), seconds=60)
    await idle(world, operator, 120)
    assert world.generation == 2
    assert "roles are not exchanged: slow nodes are where they cost least" in by_node(world)[ends[0].name].next


@pytest.mark.slow
async def test_what_is_left_of_the_loss_pays_for_a_replacement() -> None:
    world = training(REPLACE)
    await slow_stages(world)
    await run(world, operator, lambda w: w.generation == 2, seconds=120)
    assert world.claims == 0
    await run(world, operator, lambda w: w.generation == 3, seconds=400)
    await run(world, operator, lambda w: any(n.state == "Resolved" for n in w.status.diagnoses), seconds=60)
    replaced = next(note for note in world.status.diagnoses if note.state == "Resolved")
    assert "replaced by spare-1" in steps(replaced)
    assert len({"node-a", "node-c"} & set(nodes(world))) == 1, "there is one spare"


@pytest.mark.slow
async def test_a_dear_exchange_comes_after_a_cheap_replacement() -> None:
    """It would remove half of the loss, so that it counts twice its price."""
    world = training(REPLACE, exchange=70)
    await slow_stages(world)
    await run(world, operator, lambda w: w.generation == 2, seconds=300)
    assert world.claims == 1
    assert "RolesExchanged" not in reasons(world)


async def test_one_slow_node_in_equal_stages_moves_nobody() -> None:
    world = training()
    await trained(world)
    world.node_of(0).slow = 2.0
    await idle(world, operator, 90)
    assert world.generation == 1
    (note,) = world.status.diagnoses
    assert note.next.endswith("roles are not exchanged: slow nodes are where they cost least")


@pytest.mark.parametrize("first", [1.6, 2.4])
async def test_each_follows_its_own_node(first: float) -> None:
    world = training()
    await slow_stages(world, first=first)
    await run(world, operator, lambda w: w.generation == 2, seconds=120)
    await run(world, operator, lambda w: w.iterations > 40, seconds=60)
    for name in ("node-a", "node-c"):
        note = by_node(world)[name]
        assert note.rank == nodes(world).index(name)
        assert f"takes {world.nodes[name].slow:.1f}x its normal" in note.slowdown


async def test_observe_says_what_it_would_have_done() -> None:
    world = training(mode="Observe")
    await slow_stages(world)
    await run(world, operator, lambda w: any("would have been" in steps(n) for n in w.status.diagnoses), seconds=120)
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > begun + 30)
    assert world.generation == 1
    assert any("mode Observe: the roles of pod gpt2-" in steps(note) for note in world.status.diagnoses)


@pytest.mark.parametrize("at", range(1, 25, 2))
async def test_an_operator_that_dies_at_any_call_exchanges_once(at: int) -> None:
    world = training()
    await slow_stages(world)
    world.crash_at = world.calls + at
    await run(world, operator, lambda w: any("since" in steps(note) for note in w.status.diagnoses), seconds=150)
    assert (world.generation, len(world.made), world.claims) == (2, 4, 0)
    assert {(note.node, note.rank) for note in world.status.diagnoses} == {
        (name, nodes(world).index(name)) for name in ("node-a", "node-c")
    }


async def test_a_failure_right_after_the_exchange_does_not_make_it_twice() -> None:
    world = training()
    await slow_stages(world)
    await run(world, operator, lambda w: w.generation == 2, seconds=120)
    await run(world, operator, lambda w: w.plan.phase == "Run" and w.plan.generation == 2 and w.iterations, seconds=60)
    world.end_rank(3, signal=9)
    await run(world, operator, lambda w: w.generation == 3, seconds=60)
    await run(world, operator, lambda w: any("since" in steps(note) for note in w.status.diagnoses), seconds=90)
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > begun + 30)
    assert (world.generation, reasons(world).count("RolesExchanged"), world.claims) == (3, 1, 0)
    slow = {note.node: note.rank for note in world.status.diagnoses if not note.severity}
    assert slow == {name: nodes(world).index(name) for name in ("node-a", "node-c")}
