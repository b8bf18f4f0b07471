"""What lies outside the job is away: several nodes say so at once, and the job waits for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from falcon_operator.base.ports import ContainerView
from tests.world.running import operator, reasons, run, shown, state, trained
from tests.world.world import World

NO_FOLDER = "FileNotFoundError: [Errno 2] No such file or directory: '/shared/data' (train.py:20 in load)"
EXPIRED = "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation"
HUB_AWAY = (
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub.example.org', port=443): Max retries exceeded"
)
NO_NAME = "socket.gaierror: [Errno -3] Temporary failure in name resolution (train.py:9 in main)"
BAD_ARGUMENT = "TypeError: step() missing 1 required positional argument: 'batch' (train.py:75 in main)"
OUTSIDE = [NO_FOLDER, EXPIRED, HUB_AWAY, NO_NAME]


def lack(world: World, words: str, *names: str) -> None:
    """Let the ranks on these nodes (on all, if none is named) end at their start with these words."""
    for number, node in enumerate(world.nodes.values()):
        if not names or node.name in names:
            node.lacks, node.lacks_after_seconds = words, 0.5 + 0.7 * number


def is_waiting(world: World) -> bool:
    note = shown(world, "Recovering")
    return note is not None and (note.status, note.reason) == ("True", "Outage")


def runs_for(world: World, iterations: int) -> bool:
    return world.status.state == "Running" and world.iterations > iterations


async def starts_until(world: World, until: Any, *, seconds: float) -> list[float]:
    """Return when the job's generations began [s], up to the moment at which ``until`` is true."""
    starts: list[float] = []

    def look(now: World) -> bool:
        if now.plan is not None and now.plan.phase == "Run" and now.generation > len(starts):
            starts.append(now.clock.seconds)
        return bool(until(now))

    await run(world, operator, look, seconds=seconds)
    return starts


@pytest.mark.parametrize("words", OUTSIDE)
async def test_a_job_whose_nodes_all_miss_something_starts_when_it_is_there(words: str) -> None:
    world = World()
    lack(world, words)
    starts = await starts_until(world, lambda w: w.generation == 5, seconds=120)
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert waits[0] < waits[1] < waits[2], "the pauses grow"
    lack(world, "")
    await run(world, operator, state("Running"), seconds=120)
    assert (world.intent.recovery.attempts, world.exclusions, world.claims) == ([], [], 0)
    assert reasons(world).count("Outage") == 1


async def test_people_read_what_is_missing_since_when_and_when_the_next_try_comes() -> None:
    world = World()
    lack(world, NO_FOLDER)
    await run(world, operator, lambda w: is_waiting(w) and w.generation == 2 and "try 2 at" in w.status.summary)
    note = shown(world, "Recovering")
    assert note is not None
    for part in (
        NO_FOLDER,
        "3 nodes say so at once (node-a, node-b, node-c)",
        "Falcon has waited since",
        "(0 min)",
        "try 2 at",
        "or later ends the job (spec.recovery.outageWait)",
        "mount the volume",
    ):
        assert part in note.message, part
    (diagnosis,) = world.status.diagnoses
    assert diagnosis.error_class == "FileMissing"
    assert "try 2 at" in diagnosis.next
    assert (diagnosis.rank, diagnosis.node) == (None, "")


@pytest.mark.parametrize(("on_repeated", "end"), [("Fail", "Failed"), ("Suspend", "Suspended")])
async def test_after_its_time_the_job_ends_as_its_spec_says(on_repeated: str, end: str) -> None:
    world = World(spec={"recovery": {"outageWait": "5m", "onRepeated": on_repeated}})
    lack(world, NO_FOLDER)
    starts = await starts_until(world, state(end), seconds=400)
    assert 300 < world.clock.seconds < 330
    assert len(starts) == 10, "after 1, 2, 4 ... 128 s, and at the end of the five minutes"
    note = shown(world, end)
    assert note is not None
    assert note.reason == "Outage"
    assert "after 9 restarts within 5 min it has not come back (spec.recovery.outageWait)" in note.message
    assert NO_FOLDER in note.message


async def test_a_job_that_had_to_be_mended_waits_for_as_long_again() -> None:
    world = World(spec={"recovery": {"outageWait": "1m", "onRepeated": "Suspend"}})
    lack(world, NO_FOLDER)
    await run(world, operator, state("Suspended"), seconds=100)
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: "spec.suspend is true" in str(w.status.conditions))
    world.edit_spec(suspend=False)
    await run(world, operator, is_waiting)
    assert world.intent.recovery.habits.outage is not None
    assert world.intent.recovery.habits.outage.tries == 0


@pytest.mark.parametrize("words", OUTSIDE)
async def test_one_node_alone_is_no_outage(words: str) -> None:
    world = World()
    lack(world, words, "node-b")
    for _ in range(600):
        await run(world, operator, lambda w: True)
        assert not is_waiting(world)
    assert world.generation >= 3


async def test_three_nodes_of_five_are_enough() -> None:
    world = World(replicas=5, spec={"recovery": {"outageWait": "10s"}})
    lack(world, NO_FOLDER, "node-a", "node-c", "node-e")
    await run(world, operator, is_waiting)
    assert "3 nodes say so" in world.status.diagnoses[0].evidence
    await run(world, operator, state("Failed"))
    failed = shown(world, "Failed")
    assert failed is not None
    assert failed.message.startswith(f"rank 0 (pod {world.pod_of(0).name}) exited with code 1: {NO_FOLDER}")


async def test_two_nodes_of_five_are_neither_an_outage_nor_the_end_at_the_first_try() -> None:
    world = World(replicas=5)
    lack(world, NO_FOLDER, "node-a", "node-c")
    await run(world, operator, lambda w: w.status.counters.restarts == 3 or is_waiting(w))
    assert not is_waiting(world)
    assert [attempt.kind for attempt in world.intent.recovery.attempts] == ["Restart"] * 3


async def test_a_program_that_fails_by_itself_everywhere_ends_at_once() -> None:
    world = World()
    lack(world, BAD_ARGUMENT)
    await run(world, operator, state("Failed"))
    assert world.generation == 1


async def test_a_command_that_no_image_has_ends_the_job_at_once() -> None:
    world = World()
    lack(world, "sh: 1: trian: command not found")
    await run(world, operator, state("Failed"))
    assert world.generation == 1


async def test_a_job_that_does_not_want_to_wait_fails_at_once() -> None:
    world = World(spec={"recovery": {"outageWait": "0s"}})
    lack(world, NO_FOLDER)
    await run(world, operator, state("Failed"))
    assert world.generation == 1


async def test_a_folder_that_goes_while_training_goes_on_is_waited_for() -> None:
    world = World()
    await trained(world)
    lack(world, NO_FOLDER)
    await run(world, operator, is_waiting, seconds=30)
    lack(world, "")
    await run(world, operator, lambda w: w.status.state == "Running" and w.iterations > 5, seconds=60)
    assert world.exclusions == []


async def test_each_outage_has_the_whole_time() -> None:
    world = World(spec={"recovery": {"outageWait": "1m"}})
    for iterations in (20, 30, 40):
        lack(world, NO_FOLDER)
        await run(world, operator, is_waiting, seconds=30)
        later = world.clock.seconds + 40
        await run(world, operator, lambda w, then=later: w.clock.seconds > then)
        lack(world, "")
        await run(world, operator, lambda w, most=iterations: runs_for(w, most), seconds=100)


async def test_init_containers_that_do_not_reach_their_hub_are_waited_for() -> None:
    world = World()
    agent = ContainerView(name="falcon-agent", init=True, exit_code=137, exit_reason="Error", ended_unix=40.0)
    fetch = ContainerView(
        name="fetch", init=True, exit_code=1, exit_reason="Error", exit_message=HUB_AWAY, ended_unix=9.0
    )
    trainer = ContainerView(name="trainer", waiting_reason="PodInitializing")
    for name in ("node-a", "node-b", "node-c"):
        world.nodes[name].ends_pods = (137, {"containers": {each.name: each for each in (agent, fetch, trainer)}})
    await run(world, operator, is_waiting)
    later = world.clock.seconds + 100
    await run(world, operator, lambda w: w.clock.seconds > later or w.status.state == "Failed", seconds=120)
    assert world.status.state != "Failed"
    assert world.intent.recovery.attempts == []
    for node in world.nodes.values():
        node.ends_pods = None
    await run(world, operator, state("Running"), seconds=200)
    assert world.exclusions == []
