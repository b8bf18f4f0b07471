"""From what the ranks began again: what the user reads in the incident's last sentence."""

from __future__ import annotations

import pytest

from falcon_core.wire.saves.checkpoint import Loaded
from falcon_operator.api.trainingrun import Restore
from falcon_operator.status.text.format import restore_words
from tests.world.running import operator, run, runs, trained
from tests.world.world import World

MEMORY = {"checkpoint": {"memory": "64Mi", "copies": 1}}


def own(rank: int, step: int = 40) -> Loaded:
    return Loaded(rank, step, "Memory")


async def result(world: World) -> str:
    """Kill a rank and return what is said of the incident when training goes on."""
    await trained(world)
    world.end_rank(1, signal=9)
    await run(world, operator, runs(2))
    (note,) = world.status.diagnoses
    return note.result


async def test_the_result_says_from_which_step_and_from_where() -> None:
    world = World(spec=MEMORY)
    keeper = world.pod_of(0).uid if world.pods else ""
    world.loaded = [own(0), own(2), Loaded(1, 40, "Copy", keeper, loading_us=1_260_000)]
    said = await result(world)
    assert "after the failure, from step 40: 2 ranks from the memory of their own pods, 1 rank from copies in" in said
    assert ", in 1.3 s" in said


@pytest.mark.parametrize(
    "loaded",
    [
        [],
        [own(0), own(1)],  # one rank says nothing
        [own(0), own(1), own(2, step=20)],  # what cannot be
    ],
)
async def test_nothing_is_said_that_is_not_known_of_all_ranks(loaded: list[Loaded]) -> None:
    world = World(spec=MEMORY)
    world.loaded = loaded
    assert "from step" not in await result(world)


@pytest.mark.parametrize(
    ("restore", "words"),
    [
        (Restore(step=40, own=8), "from step 40: 8 ranks from the memory of their own pods"),
        (
            Restore(step=40, own=6, copied=2, keepers=["one-3-x"]),
            "from step 40: 6 ranks from the memory of their own pods, 2 ranks from copies in the memory of pod one-3-x",
        ),
        (
            Restore(step=40, copied=2, keepers=["one-1-a", "one-3-x"], folder=1),
            "from step 40: 2 ranks from copies in the memory of pods one-1-a, one-3-x, 1 rank from their folder",
        ),
        (Restore(step=40, copied=1), "from step 40: 1 rank from copies in the memory of other pods"),
        (Restore(), "from the beginning: there was no checkpoint that all ranks could load"),
    ],
)
def test_the_words(restore: Restore, words: str) -> None:
    assert restore_words(restore) == words
