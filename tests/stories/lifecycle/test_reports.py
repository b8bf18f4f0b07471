"""What the agents report in a story, and what the operator makes of so little."""

from __future__ import annotations

from falcon_core.recovery.history.detail_schedule import OWN_JUDGEMENT_SECONDS
from tests.world.running import operator, run, trained
from tests.world.world import World


async def test_a_healthy_job_costs_a_brief_a_pod_each_ten_seconds() -> None:
    world = World()
    await trained(world)
    world.voices.reports = world.voices.details = 0
    begin = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds >= begin + 100, seconds=110)
    assert world.voices.reports in range(30, 34), "three pods"
    assert world.voices.details == 0
    assert world.status.state == "Running"


async def test_of_a_straggler_alone_detail_is_sent() -> None:
    world = World()
    await trained(world)
    world.voices.reports = world.voices.details = 0
    world.node_of(2).slow = 3.0
    begin = world.clock.seconds
    await run(world, operator, lambda w: bool(w.status.diagnoses))
    assert world.status.diagnoses[0].rank == 2
    assert world.voices.details <= world.clock.seconds - begin + 2, "each second, of one rank"


async def test_the_agents_of_a_slowdown_without_a_culprit_are_asked_until_it_is_over() -> None:
    world = World()
    await trained(world)
    for node in world.nodes.values():
        node.slow = 1.5  # all alike
    await run(world, operator, lambda w: bool(w.voices.asked))
    assert world.voices.asked == {0, 1, 2}
    assert world.onset is not None
    assert world.clock.unix() - world.onset.unix_ns / 1e9 >= OWN_JUDGEMENT_SECONDS
    for node in world.nodes.values():
        node.slow = 1.0
    await run(world, operator, lambda w: not w.voices.asked)
    assert world.status.diagnoses == []
