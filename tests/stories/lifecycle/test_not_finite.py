"""What becomes of a job whose loss stays NaN: restarted from before it where its owner asks for that, once a window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from falcon_core.times import CLOCK_SECONDS, PRINTED_SECONDS
from falcon_core.wire.reporting.anomalies import Anomaly, OutputMetric
from falcon_core.wire.saves.checkpoint import Held
from falcon_operator.api.policy import AnomaliesSpec, MitigationSpec
from falcon_operator.api.trainingjob import DiagnosisStatus
from tests.world.running import operator, reasons, run, runs, trained
from tests.world.world import World

SPEC: dict[str, Any] = {"checkpoint": {"memory": "64Mi"}, "anomalies": {"onNaN": "Restart"}}


def spoilt(world: World, finite_at: float | None, metric: str = "loss") -> Callable[[float], list[Anomaly]]:
    """Return what an agent says of a number whose last finite value was read when the world's clock showed a time."""

    def odd(now: float) -> list[Anomaly]:
        finite = -1 if finite_at is None else math.ceil(now - finite_at)
        return [Anomaly("NotFinite", 1, metric, lasted=3, iteration=41, text="loss nan", finite=finite)]

    return odd


def held(world: World, *saves: tuple[int, float], in_folder: bool = False) -> list[Held]:
    """Return steps that all ranks hold, each with the time on the world's clock at which it was saved."""
    began = world.clock.unix() - world.clock.seconds
    return [
        Held(rank, step, round(1e3 * (began + at)), 1, in_folder=in_folder) for step, at in saves for rank in range(3)
    ]


def note_of(world: World) -> DiagnosisStatus | None:
    return next((note for note in world.status.diagnoses if note.cause == "NotFinite"), None)


async def shown(world: World) -> DiagnosisStatus:
    await run(world, operator, note_of)
    note = note_of(world)
    assert note is not None
    return note


async def stays(world: World, seconds: float = 60.0) -> None:
    until = world.clock.seconds + seconds
    await run(world, operator, lambda w: w.clock.seconds > until, seconds=seconds + 10)


async def spoiling(world: World) -> float:
    """Let the job train until its loss becomes NaN; return when the last finite value was read."""
    await trained(world)
    finite_at = world.clock.seconds - 20
    # Step 40 is sound, step 50 was saved after the last finite loss: the store in memory has no third one.
    world.held = held(world, (40, finite_at - 30), (50, finite_at + 5))
    world.node_of(1).odd = spoilt(world, finite_at)
    return finite_at


async def test_the_ranks_are_restarted_from_a_checkpoint_saved_before_the_last_finite_value() -> None:
    world = World(spec=SPEC)
    finite_at = await spoiling(world)
    await run(world, operator, runs(2), seconds=60)
    world.node_of(1).odd = lambda _seconds: []
    began = world.clock.unix() - world.clock.seconds
    first = next(plan for plan in world.plans if plan.generation == 2)
    before = first.saved_before_ms / 1e3 - began
    assert finite_at - PRINTED_SECONDS - CLOCK_SECONDS - 2 <= before <= finite_at - PRINTED_SECONDS - CLOCK_SECONDS
    assert [event for event in world.events if event[0] == "Diverged"]
    await run(world, operator, lambda w: w.status.state == "Running", seconds=60)
    over = next(note for note in world.status.diagnoses if note.cause == "Diverged")
    assert (over.rank, over.severity, over.state) == (1, "SEV2", "Resolved")
    assert over.why == "printed loss that is NaN or infinite at iteration 41"
    assert "all ranks restarted in their pods, from a checkpoint before the first NaN" in over.done[0].what
    assert world.plan is not None
    assert world.plan.saved_before_ms == 0, "all ranks have loaded, and later checkpoints are sound"
    assert "AnomalyOver" not in reasons(world)


async def test_after_a_second_one_within_the_window_nothing_is_restarted_and_the_text_says_why() -> None:
    world = World(spec=SPEC)
    await spoiling(world)
    await run(world, operator, runs(2), seconds=60)
    world.node_of(1).odd = lambda _seconds: []
    await run(world, operator, lambda w: w.status.state == "Running", seconds=60)
    world.node_of(1).odd = spoilt(world, world.clock.seconds)
    note = await shown(world)
    assert note.next.startswith("nothing is restarted: all ranks were restarted for such a number at ")
    assert "once in 1 h 0 min (spec.recovery.window)" in note.next
    await stays(world)
    assert (world.generation, world.status.state) == (2, "Running")


async def test_after_the_window_it_is_tried_again() -> None:
    world = World(spec={**SPEC, "recovery": {"window": "2m"}})
    await spoiling(world)
    await run(world, operator, runs(2), seconds=60)
    world.node_of(1).odd = lambda _seconds: []
    await stays(world, 130)
    world.node_of(1).odd = spoilt(world, world.clock.seconds)
    await run(world, operator, runs(3), seconds=60)


async def test_it_is_off_by_default_and_the_text_names_the_field() -> None:
    world = World(spec={"checkpoint": {"memory": "64Mi"}})
    await spoiling(world)
    note = await shown(world)
    assert note.next.endswith("or set spec.anomalies.onNaN to Restart")
    await stays(world)
    assert world.generation == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("both spoilt", "all checkpoints in memory were saved after its last finite value, and no folder has any"),
        ("nothing held", "no rank keeps checkpoints in memory"),
        ("never finite", "it was never finite in this generation"),
        ("observed", "spec.mitigation.mode is not Enforce"),
    ],
)
async def test_without_a_checkpoint_that_is_known_to_be_sound_nothing_is_restarted(change: str, said: str) -> None:
    world = World(spec=SPEC)
    finite_at = await spoiling(world)
    if change == "both spoilt":
        world.held = held(world, (45, finite_at), (50, finite_at + 5))
    elif change == "nothing held":
        world.held = []
    elif change == "never finite":
        world.node_of(1).odd = spoilt(world, None)
    else:
        world.edit_spec(mitigation=MitigationSpec(mode="Observe"))
    note = await shown(world)
    assert f"nothing is restarted: {said}" in note.next
    await stays(world)
    assert world.generation == 1


async def test_where_both_in_memory_are_spoilt_the_folders_are_asked_for() -> None:
    world = World(spec=SPEC)
    finite_at = await spoiling(world)
    world.held = held(world, (45, finite_at), (50, finite_at + 5), in_folder=True)
    await run(world, operator, runs(2), seconds=60)


async def test_gradients_that_overflow_restart_nothing_unless_the_job_names_them() -> None:
    world = World(spec=SPEC)
    finite_at = await spoiling(world)
    world.node_of(1).odd = spoilt(world, finite_at, "gradNorm")
    await shown(world)
    await stays(world, 30)
    assert world.generation == 1
    world.edit_spec(
        anomalies=AnomaliesSpec(on_nan="Restart", metrics=[OutputMetric(name="gradNorm", pattern="g=(.*)")])
    )
    await run(world, operator, runs(2), seconds=60)


async def test_a_rank_that_fails_while_it_is_restarted_keeps_the_choice_of_checkpoints() -> None:
    world = World(spec=SPEC)
    await spoiling(world)
    await run(world, operator, lambda w: w.plan is not None and (w.plan.generation, w.plan.phase) == (2, "Run"))
    await run(world, operator, lambda w: all(pod.ranks for pod in w.pods.values()))
    world.node_of(1).odd = lambda _seconds: []
    world.end_rank(0, signal=9)
    await run(world, operator, runs(3), seconds=60)
    bounds = {plan.saved_before_ms for plan in world.plans if plan.saved_before_ms}
    assert len(bounds) == 1
    assert {plan.generation for plan in world.plans if plan.saved_before_ms} == {2, 3}
