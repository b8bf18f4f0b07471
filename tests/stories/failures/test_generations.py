"""A failure that is shown belongs to the generation that failed, however fast the failures follow each other."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_operator.base.time_format import clock_time
from tests.world.fakes import START_UNIX
from tests.world.running import operator, run, runs, trained
from tests.world.world import World

SEEN_SECONDS = 0.5  # in which the operator has looked at a failure


class Kill(NamedTuple):
    """A rank's process that was killed."""

    generation: int
    rank: int
    at: float  # seconds of the world's clock


def kill(world: World, kills: list[Kill], rank: int) -> None:
    """Kill a rank, if it runs."""
    pod = world.pod_of(rank)
    if pod.state == "Running" and rank in pod.ranks and pod.ranks[rank].state == "Running":
        world.end_rank(rank, signal=9)
        kills.append(Kill(pod.generation, rank, world.clock.seconds))


def check_shown(world: World, kills: list[Kill]) -> None:
    """Check that an open failure is the first of the newest generation that failed."""
    stop = world.intent.recovery.stop
    if stop is None or not kills:
        return
    newest = min((each for each in kills if each.generation == kills[-1].generation), key=lambda each: each.at)
    if world.clock.seconds < newest.at + SEEN_SECONDS:
        return
    assert stop.fault.rank in {
        each.rank for each in kills if each.generation == newest.generation and each.at == newest.at
    }
    assert stop.failed_at == pytest.approx(START_UNIX + newest.at, abs=0.15)
    assert f"at {clock_time(stop.failed_at)}" in world.status.summary


async def killed(world: World, kills: list[Kill], first: int, second: int, apart_seconds: float, wait: float) -> None:
    """Kill two ranks one after the other and let time pass, with a check at each look."""

    def until(now: World, end: float) -> bool:
        check_shown(now, kills)
        return now.clock.seconds >= end

    kill(world, kills, first)
    if apart_seconds:
        await run(world, operator, lambda w, end=world.clock.seconds + apart_seconds: until(w, end))
    kill(world, kills, second)
    await run(world, operator, lambda w, end=world.clock.seconds + wait: until(w, end))


@pytest.mark.parametrize(
    ("apart_seconds", "wait"), [*((apart, wait) for apart in (0.0, 0.1, 0.3) for wait in (2.0, 5.0, 12.0)), (0.1, 30.0)]
)
async def test_two_ranks_are_killed_five_times_in_a_row(apart_seconds: float, wait: float) -> None:
    world, kills = World(spec={"recovery": {"restarts": 100}}), list[Kill]()
    await trained(world)
    for _ in range(5):
        await killed(world, kills, 1, 2, apart_seconds, wait)
    await run(world, operator, lambda w: runs(w.generation)(w), seconds=120)
    assert len({each.generation for each in kills}) >= 3
    named = [note for reason, note in world.events if reason == "RankFailed"]
    assert named
    assert not any("rank 0 (" in note for note in named), "it only lost its peers"


@settings(max_examples=15, deadline=None)
@given(
    failures=st.lists(
        st.tuples(st.permutations([0, 1, 2]), st.floats(0.0, 1.5), st.floats(0.2, 15.0)), min_size=2, max_size=5
    )
)
async def test_ranks_are_killed_at_any_moments(failures: list[tuple[list[int], float, float]]) -> None:
    world, kills = World(spec={"recovery": {"restarts": 100}}), list[Kill]()
    await trained(world)
    for ranks, apart_seconds, wait in failures:
        await killed(world, kills, ranks[0], ranks[1], apart_seconds, wait)
    await run(world, operator, lambda w: runs(w.generation)(w), seconds=200)


async def test_a_failure_before_training_goes_on_counts_from_its_own_time() -> None:
    world, kills = World(spec={"recovery": {"restarts": 100}}), list[Kill]()
    await trained(world)
    kill(world, kills, 1)
    await run(world, operator, lambda w: w.pod_of(2).generation == 2 and w.pod_of(2).state == "Running")
    kill(world, kills, 2)
    await run(world, operator, lambda w: w.clock.seconds >= kills[-1].at + SEEN_SECONDS)
    check_shown(world, kills)
    stop = world.intent.recovery.stop
    assert stop is not None
    assert (stop.recurrences, stop.fault.rank) == (1, 2)
