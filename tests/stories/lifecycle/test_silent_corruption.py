"""What a job's owner reads where the result of an all-reduce is not the same on all ranks."""

from __future__ import annotations

from typing import Any

from falcon_core.wire.reporting.verification import Digest, RankResults
from falcon_operator.api.policy import AnomaliesSpec
from falcon_operator.api.trainingjob import DiagnosisStatus
from tests.world.running import operator, reasons, run, trained
from tests.world.world import World

SPEC: dict[str, Any] = {"anomalies": {"verifyEvery": 100}}
RANKS = 3


def report(world: World, *values: int, first: int = 1200) -> None:
    """Let each rank's agent report one digest."""
    for rank, value in enumerate(values):
        digests = [Digest(width=1, first=first, calls=1, numbers=first, value=value)]
        results = RankResults(rank=rank, life=1, every=100, size=len(values), digests=digests)
        world.node_of(rank).results = [results]


def notes(world: World) -> list[DiagnosisStatus]:
    return [note for note in world.status.diagnoses if note.cause == "SilentDataCorruption"]


async def stays(world: World, seconds: float = 30.0) -> None:
    until = world.clock.seconds + seconds
    await run(world, operator, lambda w: w.clock.seconds > until, seconds=seconds + 10)


async def test_the_rank_that_differs_is_named_with_its_node_and_nothing_is_repaired() -> None:
    world = World(spec=SPEC)
    await trained(world)
    report(world, 5, 5, 5)
    await stays(world)
    assert notes(world) == []
    report(world, 5, 6, 5, first=1300)
    await run(world, operator, notes)
    (note,) = notes(world)
    assert (note.what, note.rank, note.node) == ("anomaly, silent data corruption", 1, world.pod_of(1).node)
    assert note.where == f"rank 1 (pod {world.pod_of(1).name}, node {world.pod_of(1).node})"
    assert "rank 1: the result of an all-reduce differs from that of the other ranks" in note.why
    assert "call 1300" in note.why
    assert note.error_class == "SilentDataCorruption"
    assert "2 of 3 ranks have the same bytes" in note.evidence
    assert "Falcon repairs nothing" in note.next
    assert "rank 1: silent data corruption" in world.status.summary
    assert reasons(world).count("SilentDataCorruption") == 1
    report(world, 5, 5, 5, first=1400)
    await stays(world)
    assert notes(world) == [note], "the rank's parameters are still not the others'"
    assert (world.generation, world.status.state, world.status.counters.replacements) == (1, "Running", 0)


async def test_a_second_rank_has_a_diagnosis_of_its_own_and_both_end_with_their_generation() -> None:
    world = World(spec=SPEC)
    await trained(world)
    report(world, 5, 6, 5)
    await run(world, operator, notes)
    report(world, 5, 5, 6, first=1500)
    await run(world, operator, lambda w: len(notes(w)) == 2)
    assert [note.rank for note in notes(world)] == [1, 2]
    for rank in range(RANKS):
        world.node_of(rank).results = []
    world.end_rank(0, exit_code=1, last_words="ValueError: spoilt")
    await run(world, operator, lambda w: w.generation == 2 and w.status.state == "Running", seconds=60)
    assert notes(world) == []


async def test_without_a_majority_all_are_named_and_no_node() -> None:
    world = World(spec=SPEC)
    await trained(world)
    report(world, 5, 6, 7)
    await run(world, operator, notes)
    (note,) = notes(world)
    assert (note.rank, note.node) == (None, "")
    assert all(f"rank {rank} (pod {world.pod_of(rank).name}" in note.where for rank in range(RANKS))
    assert "it is not known who is right" in note.evidence


async def test_a_job_that_does_not_ask_for_it_gets_none_and_the_plan_says_what_is_asked() -> None:
    world = World()
    await trained(world)
    assert world.plan is not None
    assert world.plan.verify_every == 0
    report(world, 5, 6, 5)
    await stays(world)
    assert notes(world) == []
    world.edit_spec(anomalies=AnomaliesSpec(verify_every=50))
    await run(world, operator, lambda w: w.plan is not None and w.plan.verify_every == 50 and notes(w))
    world.edit_spec(anomalies=AnomaliesSpec())
    await run(world, operator, lambda w: not notes(w))
