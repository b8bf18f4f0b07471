"""Stories of the smoke test beside a restart: whose node is left, and what people read of it."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.api.trainingjob import DiagnosisStatus
from tests.world.running import operator, run, runs, trained
from tests.world.world import World

ENFORCE: dict[str, Any] = {"preflight": {"mode": "Enforce"}}
REPORT: dict[str, Any] = {"preflight": {"mode": "Report"}}


def numbers(world: World) -> list[int]:
    return sorted({number for number, _ in world.smoked})


async def failed(world: World, rate: float = 1.0, generation: int = 2) -> DiagnosisStatus:
    """Train, let node-b compute at ``rate``, kill the rank there, and train on; return the failure's diagnosis."""
    await trained(world)
    world.nodes["node-b"].rate = rate
    world.end_rank(1, signal=9)
    await run(world, operator, runs(generation))
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    return world.status.diagnoses[0]


async def test_an_ordinary_failure_stays_a_restart_in_place() -> None:
    world = World(spec=ENFORCE)
    note = await failed(world)
    assert sorted(world.smoked) == [(1, "node-a"), (1, "node-b"), (1, "node-c")]
    assert (note.severity, [step.what for step in note.done]) == (
        "SEV2",
        ["all ranks restarted in their pods (generation 2)"],
    )
    assert (world.exclusions, len(world.made)) == ([], 3)
    assert not any(plan.check for plan in world.plans if plan.generation == 2), "no full check"
    assert world.plans[-1].smoke == 0


async def test_a_sick_node_turns_a_restart_into_a_replacement() -> None:
    world = World(spec=ENFORCE)
    note = await failed(world, 0.1)
    assert numbers(world) == [1, 2], "the test that found it, and the one that confirmed it"
    assert world.generation == 2, "no rank ran in between"
    assert {pod.node for pod in world.pods.values()} == {"node-a", "node-c", "spare-1"}
    (exclusion,) = world.exclusions
    assert exclusion.node == "node-b"
    assert note.severity == "SEV1"
    assert "0.10 of its peers' rate, twice in a row (fp32)" in note.evidence
    assert any("node node-b evicted from the job" in step.what for step in note.done)
    (said,) = (words for reason, words in world.events if reason == "SickNode")
    assert "0.10 of its peers' rate" in said


async def test_without_the_preflight_nothing_is_tested() -> None:
    world = World()
    note = await failed(world, 0.1)
    assert (world.smoked, note.severity, world.exclusions) == ([], "SEV2", [])


@pytest.mark.parametrize(
    ("spec", "spares", "words"),
    [(REPORT, 1, "spec.preflight.mode is Report"), (ENFORCE, 0, "WarmPool spares has no ready spare")],
    ids=["only reported", "no spare"],
)
async def test_a_sick_node_is_kept_and_named(spec: dict[str, Any], spares: int, words: str) -> None:
    world = World(spec=spec, spares=spares)
    note = await failed(world, 0.1)
    assert (note.severity, world.exclusions) == ("SEV2", [])
    assert "node node-b" in note.evidence
    assert words in note.evidence


async def test_a_machine_without_a_result_holds_nobody_up() -> None:
    world = World(spec=ENFORCE)
    await trained(world)
    world.mute = {"node-a"}
    world.end_rank(1, signal=9)
    begun = world.clock.seconds
    await run(world, operator, runs(2))
    assert world.clock.seconds - begun < 3
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert world.plans[-1].smoke == 0


async def test_a_late_answer_moves_ranks_that_have_just_started() -> None:
    world = World(spec=ENFORCE)
    await trained(world)
    world.nodes["node-b"].rate = 0.1
    world.nodes["node-b"].slow = 20.0
    world.mute = {"node-a", "node-b", "node-c"}
    world.end_rank(1, signal=9)
    await run(world, operator, lambda w: w.plan is not None and (w.plan.generation, w.plan.phase) == (2, "Run"))
    world.mute = set()
    await run(world, operator, runs(3))
    assert {pod.node for pod in world.pods.values()} == {"node-a", "node-c", "spare-1"}
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert world.status.diagnoses[0].severity == "SEV1"


async def test_a_lost_node_needs_no_smoke_test() -> None:
    world = World(spec=ENFORCE)
    await trained(world)
    world.nodes["node-b"].dead = True
    world.nodes["node-b"].ready = False
    await run(world, operator, runs(2), seconds=120)
    assert world.smoked == [], "the newcomer's check measures all of them"
