"""Jobs whose groups of ranks meet once in many steps, through the whole chain: from ring records to actions."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.real_jobs import effects as does
from evaluation.real_jobs.outcome import Outcome
from evaluation.real_jobs.scene import Calls, Effect, Kind, Pattern, Scene, scene_of
from evaluation.real_jobs.worlds.rounds import RoundsWorld
from falcon_core.wire.ring import RECORD_DTYPE
from falcon_core.wire.ring import Kind as RecordKind
from tests.unit.real_jobs.playing import played

ONSET = 200


def _played(
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls = "Blocking",
    *,
    kind: Kind = "rounds of 50 steps",
    world: int = 16,
    effects: tuple[Effect, ...] = (),
    faults: tuple[Effect, ...] = (),
) -> Outcome:
    pattern = Pattern(name="of a test", kind=kind, calls=calls, iterations=700, effects=effects, faults=faults)
    return played(monkeypatch, pattern, world=world, level="high", seed=5)


@pytest.mark.parametrize("calls", ["Blocking", "Enqueued"])
@pytest.mark.parametrize("world", [8, 16])
def test_a_slow_rank_whose_group_alone_reports_an_onset_is_named_and_its_node_left(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, world: int
) -> None:
    outcome = _played(monkeypatch, calls, world=world, faults=(does.straggler(1.5, ONSET),))
    [broken] = outcome.broken
    [incident] = [incident for incident in outcome.incidents if incident.nodes]
    assert incident.nodes.keys() == {broken.node}
    assert incident.nodes[broken.node] < ONSET + 50, "before the groups met often"
    assert incident.slowdown == pytest.approx(1.5, rel=0.1)
    assert {taken.node for taken in outcome.taken} == {broken.node}


def test_two_slow_groups_are_each_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _played(monkeypatch, faults=(does.straggler(1.5, ONSET), does.straggler(1.6, ONSET)))
    broken = {node.node for node in outcome.broken}
    assert len(broken) == 2
    assert {taken.node for taken in outcome.taken} == broken


def test_nothing_is_said_of_healthy_groups_that_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _played(monkeypatch, effects=(_one_group(1.15),))
    assert not outcome.incidents
    assert outcome.tracked == 1.0


def test_no_node_is_taken_for_a_rank_for_which_no_group_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a rank that is slow in a fast group: it ends its rounds before the slowest group all the same."""
    outcome = _played(monkeypatch, effects=(_one_group(1.22),), faults=(_first_ranks_group_slow(1.18),))
    assert not outcome.taken
    assert not any(incident.nodes for incident in outcome.incidents)


def test_ranks_of_a_fast_group_end_more_steps_until_the_groups_meet() -> None:
    pattern = Pattern(name="of a test", kind="rounds of 50 steps", effects=(_one_group(2.0),))
    world = RoundsWorld(scene_of(pattern, 16, "low", 0), [0], 50)
    world.begin()
    block, begins = world.block(0)
    steps = [_steps(writer.records(block, begins, 0, 25)) for writer in world.writers]
    assert min(steps[:12]) > 40
    assert set(steps[12:]) == {25}
    more = [_steps(writer.records(block, begins, 25, 50)) for writer in world.writers]
    assert set(np.add(steps, more)) == {50}


def _steps(records: np.ndarray) -> int:
    """Return how many norms of gradients there are: one a step."""
    assert records.dtype == RECORD_DTYPE
    return int(((records["bytes"] == 4) & (records["kind"] == RecordKind.BLOCKING)).sum())


def _one_group(factor: float) -> Effect:
    """Give the last group of ranks more work than the others, for good."""

    def effect(scene: Scene) -> None:
        scene.compute[:, -scene.job.parallelism.tensor :] *= factor

    return effect


def _first_ranks_group_slow(factor: float) -> Effect:
    """Let the first rank's device be slow."""

    def effect(scene: Scene) -> None:
        scene.slowed[ONSET:, 0, 0] *= factor

    return effect
