"""A slow link beside a slow rank, on a fake clock: each has its own diagnosis, and pays for what it costs by itself."""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest

from falcon_operator.api.trainingjob import DiagnosisStatus
from tests.world.flows import MB, Flow, Flows
from tests.world.running import idle, operator, reasons, run, trained
from tests.world.world import World

LADDER = [
    {"type": "Ignore"},
    {"type": "SwapNodes", "overheadSeconds": 5},
    {"type": "ReplaceNode", "overheadSeconds": 10},
]
SLOW_LINK = 25e-9  # seconds a byte beyond healthy ones: a second for 40 MB, in an iteration of 0.25 s
SLOW_RANK = 2.5  # 0.3 s
First = Literal["rank", "link", "none"]
FIRST: tuple[First, ...] = get_args(First)


def training(**fields: Any) -> World:
    """Return a job of four ranks in a ring; no pause shows which of its links is slow."""
    spec = {"mitigation": {"strategies": LADDER, **fields}, "detection": {"pauseBudget": "0%"}}
    world = World(replicas=4, spec=spec)
    world.flows = Flows((Flow((0, 1, 2, 3), 40 * MB),), world_size=4)
    return world


def slow_link(world: World) -> None:
    world.flows.congested[frozenset((world.node_of(2).name, world.node_of(3).name))] = SLOW_LINK


def by_cause(world: World) -> dict[str, DiagnosisStatus]:
    """Return the diagnoses: of communication, and of computation."""
    return {note.what.rpartition(" ")[2]: note for note in world.status.diagnoses}


async def both(world: World, first: First) -> dict[str, DiagnosisStatus]:
    """Let a rank's node and a link become slow, until both are named."""
    await trained(world)
    node = world.node_of(0)
    if first != "rank":
        slow_link(world)
    if first == "link":
        await run(world, operator, lambda w: w.status.diagnoses, seconds=120)
    node.slow = SLOW_RANK
    if first == "rank":
        await run(world, operator, lambda w: w.status.diagnoses, seconds=120)
        slow_link(world)
    await run(world, operator, lambda w: len(w.status.diagnoses) == 2, seconds=180)
    return by_cause(world)


@pytest.mark.parametrize("first", FIRST)
async def test_each_is_named_by_itself(first: First) -> None:
    world = training()
    notes = await both(world, first)
    link, rank = notes["communication"], notes["computation"]
    assert (link.cause, rank.rank, rank.node) == ("SlowLink", 0, "node-a")
    assert first == "none" or link.id == f"gpt2-{1 if first == 'link' else 2}"
    assert link.id != rank.id
    assert (link.slowdown, rank.slowdown) == (
        "iterations would take 5.0x the healthy time with this slowdown alone",
        "iterations would take 2.2x the healthy time with this slowdown alone; rank 0 takes 2.5x its normal compute"
        " time",
    )
    assert link.next.startswith("no action: Falcon could find the slow link if spec.detection.pauseBudget")
    assert "and a link between ranks 0, 1, 2, 3" in world.status.summary
    assert world.generation == 1


@pytest.mark.parametrize("first", FIRST)
async def test_the_node_is_left_for_its_own_cost_and_the_link_is_remembered_over_the_restart(first: First) -> None:
    world = training()
    notes = await both(world, first)
    named = world.clock.seconds
    await run(world, operator, lambda w: w.generation == 2, seconds=400, ticks=5)
    own = (SLOW_RANK - 1) * 0.2 / (1.25 + (SLOW_RANK - 1) * 0.2)  # of each second
    assert 0.6 * 10 / own < world.clock.seconds - named < 1.5 * 10 / own, "the link's cost is not the node's"
    await run(world, operator, lambda w: by_cause(w)["computation"].state == "Resolved", seconds=60)
    assert "node-a" not in [world.node_of(rank).name for rank in range(4)]
    await idle(world, operator, 60)
    link = by_cause(world)["communication"]
    assert (link.id, link.state) == (notes["communication"].id, "Open"), "agents have learned the slow level"
    assert len(world.status.diagnoses) == 2
    world.flows.congested.clear()
    await run(world, operator, lambda w: by_cause(w)["communication"].state == "Resolved", seconds=60)
    assert world.generation == 2


async def test_a_rank_that_recovers_leaves_the_link() -> None:
    world = training()
    notes = await both(world, "rank")
    world.node_of(0).slow = 1.0
    await run(world, operator, lambda w: by_cause(w)["computation"].state == "Resolved", seconds=120)
    link = by_cause(world)["communication"]
    assert (link.id, link.state) == (notes["communication"].id, "Open")
    assert "alone" not in link.slowdown


async def test_a_link_that_recovers_leaves_the_rank() -> None:
    world = training()
    notes = await both(world, "rank")
    world.flows.congested.clear()
    await run(world, operator, lambda w: by_cause(w)["communication"].state == "Resolved", seconds=120)
    rank = by_cause(world)["computation"]
    assert (rank.id, rank.state) == (notes["computation"].id, "Open")
    assert reasons(world).count("Resolved") == 1


@pytest.mark.parametrize("seconds", [1.5, 2.5])
async def test_a_rank_that_is_disturbed_while_a_link_recovers_is_not_named(seconds: float) -> None:
    world = training()
    await trained(world)
    slow_link(world)
    await run(world, operator, lambda w: w.status.diagnoses, seconds=120)
    world.flows.congested.clear()
    node = world.node_of(2)
    node.slow = SLOW_RANK
    await idle(world, operator, seconds)
    node.slow = 1.0
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved", seconds=120)
    await idle(world, operator, 30)
    assert [note.cause for note in world.status.diagnoses] == ["SlowLink"]


async def test_a_rank_that_stays_slow_when_a_link_recovers_is_named() -> None:
    world = training()
    await trained(world)
    slow_link(world)
    await run(world, operator, lambda w: w.status.diagnoses, seconds=120)
    world.flows.congested.clear()
    world.node_of(2).slow = SLOW_RANK
    await run(world, operator, lambda w: "computation" in by_cause(w), seconds=30)
    assert by_cause(world)["computation"].rank == 2


async def test_suspension_closes_both() -> None:
    world = training()
    await both(world, "rank")
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: all(note.state == "Resolved" for note in w.status.diagnoses), seconds=60)
    assert {note.result for note in world.status.diagnoses} == {"the job was suspended first"}


# -- beside a rank whose micro-batches were moved ----------------------------------------------------------------------

SHARED = [{"type": "Ignore"}, {"type": "AdjustMicrobatches"}, {"type": "SwapNodes", "overheadSeconds": 5}]


async def moved_then_slow(strategies: list[dict[str, Any]] | None = None) -> World:
    """Let micro-batches move away from a slow rank; then a link becomes slow, of which no agent knows healthy times."""
    spec = {
        "mitigation": {"strategies": strategies or SHARED},
        "detection": {"pauseBudget": "50%"},
        "parallelism": {"data": 4},
    }
    world = World(replicas=4, spec=spec)
    world.flows, world.per_rank = Flows((Flow((0, 1, 2, 3), 40 * MB),), world_size=4), 8
    await trained(world)
    world.node_of(0).slow = SLOW_RANK
    await run(world, operator, lambda w: len(set(w.shares)) > 1, seconds=120)
    world.flows.known = False
    slow_link(world)
    world.paused.slow = {frozenset((2, 3)): 40e6}
    return world


async def test_iterations_that_moved_micro_batches_do_not_explain_have_the_links_measured() -> None:
    world = await moved_then_slow()
    await run(world, operator, lambda w: "Validating" in reasons(w), seconds=180)
    assert [note.what for note in world.status.diagnoses] == ["fail-slow, computation"], "a suspicion is not reported"
    await run(world, operator, lambda w: "LinkLocated" in reasons(w), seconds=60)
    assert "MicrobatchesBack" not in reasons(world), "they have helped"
    notes = by_cause(world)
    assert "node node-c), rank 3" in notes["communication"].where
    assert notes["computation"].rank == 0


async def test_roles_are_exchanged_against_the_link_and_the_slow_rank_is_followed() -> None:
    world = await moved_then_slow()
    pair = {world.node_of(2).name, world.node_of(3).name}
    await run(world, operator, lambda w: "RolesExchanged" in reasons(w), seconds=240)
    await run(world, operator, lambda w: w.generation == 2 and len(set(w.shares)) > 1, seconds=120)
    seats = {world.node_of(rank).name: rank for rank in range(4)}
    assert abs(seats[min(pair)] - seats[max(pair)]) == 2, "the slow pair are no neighbours of the ring any more"
    await run(world, operator, lambda w: "Resolved" in reasons(w), seconds=120)
    notes = by_cause(world)
    assert (notes["communication"].state, notes["computation"].state) == ("Resolved", "Open")
    assert notes["computation"].node == "node-a"
    assert notes["computation"].rank == seats["node-a"]
    assert world.shares[seats["node-a"]] == min(world.shares)
    assert world.claims == 0


async def test_what_the_link_costs_is_not_charged_to_the_rank_whose_micro_batches_were_moved() -> None:
    dear = [*SHARED[:2], {"type": "SwapNodes", "overheadSeconds": 40}, {"type": "ReplaceNode", "overheadSeconds": 30}]
    world = await moved_then_slow(dear)
    await run(world, operator, lambda w: "RolesExchanged" in reasons(w), seconds=240)
    assert "Replacing" not in reasons(world)
    assert world.claims == 0


async def test_links_that_are_alike_leave_the_suspicion_alone() -> None:
    world = await moved_then_slow()
    world.paused.slow = {}
    await run(world, operator, lambda w: w.paused.pauses, seconds=240)
    await idle(world, operator, 120)
    assert len(world.paused.pauses) == 1
    assert world.generation == 1
    assert [note.what for note in world.status.diagnoses] == ["fail-slow, computation"]
