"""Micro-batches that move away from a slow rank, on a fake clock: ordered once, followed, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.world.running import idle, operator, reasons, run, runs, steps, trained
from tests.world.world import World

EVEN = [4, 4, 4]
LADDER = [
    {"type": "Ignore"},
    {"type": "AdjustMicrobatches"},
    {"type": "ReplaceNode", "overheadSeconds": 60},
]


def sharing(**mitigation: Any) -> World:
    """Return a world whose script lets its micro-batches move, four of each rank."""
    world = World(spec={"mitigation": {"strategies": LADDER, **mitigation}})
    world.per_rank = 4
    return world


def moved(world: World) -> bool:
    return world.shares not in ([], EVEN)


async def test_shares_move_away_from_a_slow_rank_and_come_back_with_its_relief() -> None:
    world = sharing()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 2.0
    await run(world, operator, lambda w: moved(w) and "since" in steps(w.status.diagnoses[0]))
    assert world.orders == [(1, [5, 5, 2])]
    (note,) = world.status.diagnoses
    assert steps(note) == (
        "micro-batches moved: rank 2 computes 2 of its 4, another rank up to 5;"
        " iteration 450ms before, 295ms since, 295ms expected by the best plan"
    )
    assert note.state == "Open"
    assert (
        note.slowdown
        == "iterations take 1.2x the healthy time with micro-batches moved; rank 2 takes 2.0x its normal compute time"
    )
    assert "the node is replaced when the loss reaches" in note.next
    assert "micro-batches moved to other ranks" in world.status.summary
    assert ("MicrobatchesMoved", "micro-batches of each rank, instead of 4: 5, 5, 2") in world.events
    slow.slow = 1.0
    await run(world, operator, lambda w: w.shares == EVEN)
    assert world.orders == [(1, [5, 5, 2]), (1, EVEN)]
    (note,) = world.status.diagnoses
    assert "the slowdown ended by itself" in note.result
    assert "every rank computes its 4 micro-batches again" in note.result
    moves = ["MicrobatchesMoved", "MicrobatchesBack"]
    assert [reason for reason in reasons(world) if reason not in moves] == ["Started", "Straggler", "Resolved"]
    assert [reason for reason in reasons(world) if reason in moves] == moves
    assert (world.generation, world.claims, len(world.made)) == (1, 0, 3)


async def test_an_iteration_as_short_as_ever_is_no_relief_while_shares_are_moved() -> None:
    world = sharing()
    world.per_rank = 20
    await trained(world)
    world.node_of(1).slow = 1.25
    await run(world, operator, moved)
    await idle(world, operator, 60)
    assert world.onset is None, "no agent reports a slowdown any more"
    assert len(world.orders) == 1, "they stay where they are"
    assert world.status.diagnoses[0].state == "Open"


async def test_what_is_lost_all_the_same_pays_for_a_replacement_and_a_restart_begins_evenly() -> None:
    world = sharing()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 4.0
    await run(world, operator, runs(2), seconds=600, ticks=5)
    assert world.node_of(2).name == "spare-1"
    assert world.orders[0] == (1, [5, 5, 2])
    assert {generation for generation, _ in world.orders} == {1}
    assert world.shares == []
    note = world.status.diagnoses[0]
    assert "micro-batches moved" in steps(note)
    assert "all ranks restarted" in steps(note)


async def test_the_split_outlives_a_process_that_is_restarted_in_its_pod() -> None:
    world = sharing()
    await trained(world)
    world.node_of(2).slow = 2.0
    await run(world, operator, lambda w: moved(w) and "since" in steps(w.status.diagnoses[0]))
    world.end_rank(1, signal=9)
    await run(world, operator, lambda w: w.generation == 2 and w.shares == [5, 5, 2])
    assert world.orders == [(1, [5, 5, 2]), (2, [5, 5, 2])]
    await idle(world, operator, 60)
    assert world.orders == [(1, [5, 5, 2]), (2, [5, 5, 2])], "it is good, and stays"
    slow = next(note for note in world.status.diagnoses if note.rank == 2)
    assert (slow.state, "micro-batches moved" in steps(slow)) == ("Open", True)
    world.node_of(2).slow = 1.0
    await run(world, operator, lambda w: w.shares == EVEN, seconds=120)


async def test_the_split_follows_the_ranks() -> None:
    world = sharing()
    world.per_rank = 8
    await trained(world)
    world.node_of(0).slow = 1.5
    await run(world, operator, moved)
    first = world.shares
    world.node_of(0).slow = 3.0
    await run(world, operator, lambda w: moved(w) and w.shares != first, seconds=120)
    assert [sum(shares) for _, shares in world.orders] == [24, 24]
    assert world.shares[0] < first[0] < 8


async def test_ranks_that_take_no_order_are_not_waited_for() -> None:
    world = sharing()
    await trained(world)
    world.deaf = True
    world.node_of(2).slow = 2.0
    await run(world, operator, lambda w: "MicrobatchesBack" in reasons(w), seconds=90)
    tried = [(1, [5, 5, 2]), (1, EVEN)]
    assert world.orders == tried
    assert "moved back: the ranks did not take their shares over within 30 s" in steps(world.status.diagnoses[0])
    await run(world, operator, runs(2), seconds=300, ticks=5)
    assert world.orders == 2 * tried, "once more after a minute; the node is left before the next time"


@pytest.mark.parametrize(
    ("per_rank", "hindrance", "said"),
    [
        (0, "", "the script does not use falcon_torch.MicroBatches"),
        (2, "", "each rank has 2 micro-batches in a step, and keeps 2"),
        (4, "the model is on a GPU", "rank 0 says: the model is on a GPU"),
    ],
)
async def test_where_they_cannot_move_the_next_strategy_follows_and_the_note_says_why(
    per_rank: int, hindrance: str, said: str
) -> None:
    world = sharing()
    world.per_rank, world.hindrance = per_rank, hindrance
    await trained(world)
    world.node_of(2).slow = 2.0
    await run(world, operator, lambda w: w.status.diagnoses and f"are not moved: {said}" in w.status.diagnoses[0].next)
    await run(world, operator, runs(2), seconds=600, ticks=5)
    assert world.orders == []


async def test_observe_moves_nothing() -> None:
    world = sharing(mode="Observe")
    await trained(world)
    world.node_of(2).slow = 2.0
    await run(world, operator, lambda w: w.status.diagnoses and "would have been moved" in steps(w.status.diagnoses[0]))
    assert world.orders == []


async def test_a_spec_without_the_strategy_moves_nothing_and_says_nothing_of_it() -> None:
    world = sharing(strategies=[LADDER[0], LADDER[2]])
    await trained(world)
    world.node_of(2).slow = 2.0
    await run(world, operator, runs(2), seconds=600, ticks=5)
    assert world.orders == []
    assert "micro-batches" not in str(world.status.diagnoses)


@pytest.mark.slow
async def test_who_is_slow_again_each_time_has_to_stay_well_for_longer() -> None:
    world = sharing()
    await trained(world)
    slow = world.node_of(2)
    held: list[float] = []
    for _ in range(4):
        slow.slow = 2.0
        await run(world, operator, moved, seconds=120)
        slow.slow = 1.0
        begun = world.clock.seconds
        await run(world, operator, lambda w: w.shares == EVEN, seconds=300)
        held.append(world.clock.seconds - begun)
    assert held[0] < 30 <= held[1] < held[2] < held[3]


async def test_a_job_that_is_switched_to_observe_gets_its_even_split_back() -> None:
    world = sharing()
    await trained(world)
    world.node_of(2).slow = 2.0
    await run(world, operator, moved)
    assert world.job is not None
    observe = type(world.job.spec.mitigation)(mode="Observe", strategies=world.job.spec.mitigation.strategies)
    world.edit_spec(mitigation=observe)
    await run(world, operator, lambda w: w.shares == EVEN)


@pytest.mark.parametrize("at", range(1, 21))
async def test_an_operator_that_dies_at_any_call_orders_the_same_once(at: int) -> None:
    world = sharing()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 2.0
    world.crash_at = world.calls + at
    await run(world, operator, lambda w: moved(w) and "since" in steps(w.status.diagnoses[0]))
    slow.slow = 1.0
    await run(world, operator, lambda w: w.shares == EVEN and w.status.state == "Running")
    assert world.orders == [(1, [5, 5, 2]), (1, EVEN)]
