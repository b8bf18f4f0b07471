"""A failure that comes again after each restart: the job ends, or waits for a person."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge
from tests.world.running import condition, operator, reasons, run, runs, shown, state, trained
from tests.world.world import World

BAD_ROW = "ValueError: row 8812 has 3 columns (data.py:40 in rows)"


async def failing_again_and_again(world: World, until: str) -> None:
    """Let ranks of several nodes fail with the same words, an hour and more apart, until the job has this state."""
    await trained(world)
    for failure in range(4):
        generation = failure + 1
        await run(world, operator, lambda w, now=generation: w.generation == now and w.status.state == "Running")
        later = world.clock.seconds + 20
        await run(world, operator, lambda w, then=later: w.clock.seconds > then)
        world.end_rank(failure % 3, exit_code=1, last_words=BAD_ROW)
    await run(world, operator, state(until))


async def test_the_job_ends_after_three_restarts_whatever_its_budget() -> None:
    world = World(spec={"recovery": {"restarts": 100}})
    await failing_again_and_again(world, "Failed")
    (failed,) = [entry for entry in world.status.conditions if entry.type == "Failed"]
    assert failed.reason == "RepeatedFailure"
    assert BAD_ROW in failed.message
    assert "has come 4 times" in failed.message
    assert world.status.counters.restarts == 3


async def test_the_job_waits_for_a_person_until_its_spec_changes() -> None:
    world = World(spec={"recovery": {"restarts": 100, "onRepeated": "Suspend"}})
    await failing_again_and_again(world, "Suspended")
    await run(world, operator, lambda w: not w.pods)
    (suspended,) = [entry for entry in world.status.conditions if entry.type == "Suspended"]
    assert (suspended.status, suspended.reason) == ("True", "RepeatedFailure")
    assert BAD_ROW in suspended.message
    assert "Set spec.suspend to true" in suspended.message
    assert reasons(world).count("RepeatedFailure") + reasons(world).count("Suspended") == 1
    later = world.clock.seconds + 40
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert world.status.state == "Suspended"
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: "spec.suspend is true" in str(w.status.conditions))
    world.edit_spec(suspend=False)
    await run(world, operator, state("Running"))
    assert condition(world.status, "Suspended") == "False"


async def train_until(world: World, iterations: int) -> None:
    """Let the job train for long, up to exactly so many iterations of its generation.

    As the real one (``job.decide.LOOK_SECONDS``), the operator looks at a healthy job every two seconds.
    """
    reconciler = operator(world)
    while world.iterations < iterations - 16:
        world.tick(2.0)
        await reconciler.reconcile("ml", "gpt2")
    await run(world, operator, lambda w: w.iterations == iterations)


ITERATIONS_IN_22_MINUTES = 22 * 60 * 4


async def test_the_same_failure_at_the_same_iteration_22_minutes_apart_ends_the_job() -> None:
    """No restart is counted out of the window of an hour for long enough, so that the budget alone never ends it."""
    world = World(spec={"recovery": {"restarts": 3, "window": "1h"}})
    await trained(world)
    for failure in range(4):
        assert world.generation == failure + 1
        await train_until(world, ITERATIONS_IN_22_MINUTES)
        world.end_rank(1, exit_code=1, last_words=BAD_ROW)
        await run(world, operator, lambda w, now=failure: w.status.state == "Failed" or runs(now + 2)(w))
    failed = shown(world, "Failed")
    assert failed is not None
    assert failed.reason == "RepeatedFailure"
    assert f"has come 4 times, 4 times at iteration {ITERATIONS_IN_22_MINUTES}" in failed.message
    assert world.exclusions == []


# -- a rank that runs out of data --------------------------------------------------------------------------------------

LOST = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 75, in main
[rank0]:     dist.all_reduce(loss)
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited
[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank0]: Last error:
[rank0]: socketProgress: Connection closed by remote peer trainer-2<40112>
terminate called after throwing an instance of 'c10::DistBackendError'
"""


def run_out_of_data(world: World) -> None:
    """Let rank 2 end well, and its peers abort with what their library says of it."""
    world.end_rank(2, exit_code=0)
    world.tick(2.0)
    for rank in (0, 1):
        world.end_rank(rank, signal=6, last_words=shipped_judge().last_words(LOST).text)
    world.broken_at = None


async def test_a_rank_that_runs_out_of_data_is_named_and_costs_no_node() -> None:
    world = World()
    await trained(world)
    run_out_of_data(world)
    await run(world, operator, runs(2))
    (note,) = world.status.diagnoses
    assert (note.rank, note.why) == (2, "ended with exit code 0 while other ranks trained")
    assert [event for reason, event in world.events if reason == "RankFailed" and "rank 2" not in event] == []


@pytest.mark.parametrize("apart_seconds", [60.0, 22 * 60.0])
async def test_a_rank_that_runs_out_of_data_each_time_ends_the_job_and_costs_no_node(apart_seconds: float) -> None:
    world = World()
    await trained(world)
    for failure in range(4):
        assert world.status.state != "Failed"
        await train_until(world, round(apart_seconds * 4))
        run_out_of_data(world)
        await run(world, operator, lambda w, now=failure: w.status.state == "Failed" or runs(now + 2)(w), seconds=120)
    failed = shown(world, "Failed")
    assert failed is not None
    assert "ended with exit code 0 while other ranks trained" in failed.message
    assert (world.exclusions, world.claims) == ([], 0)
