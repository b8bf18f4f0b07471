"""Pulses through the whole chain: from ring records to the node that is named, and a rhythm that names none."""

from __future__ import annotations

import pytest

from evaluation.real_jobs import effects as does
from evaluation.real_jobs.outcome import Outcome
from evaluation.real_jobs.scene import Calls, Effect, Pattern, Scene
from tests.unit.real_jobs.playing import played


def _played(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, *, effects: tuple[Effect, ...] = (), faults: tuple[Effect, ...] = ()
) -> Outcome:
    pattern = Pattern(
        name="of a test", kind="data parallel", calls=calls, iterations=480, effects=effects, faults=faults
    )
    return played(monkeypatch, pattern, world=8, level="low", seed=11)


@pytest.mark.parametrize(("calls", "every", "factor"), [("Blocking", 3, 4.0), ("Enqueued", 4, 15.0)])
def test_the_node_that_others_wait_for_in_the_long_iterations_is_named_and_no_other(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, every: int, factor: float
) -> None:
    fault = does.pulses(factor, every, 260)
    outcome = _played(monkeypatch, calls, faults=(fault,))
    [broken] = outcome.broken
    named = {node for incident in outcome.incidents for node in incident.nodes}
    assert named == {broken.node}
    assert {taken.node for taken in outcome.taken} <= {broken.node}
    slowdown = 1 + (factor - 1) / every
    assert outcome.incidents[-1].slowdown == pytest.approx(slowdown, rel=0.35)


def test_stalls_that_become_frequent_on_all_ranks_name_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(scene: Scene) -> None:
        hit = scene.rng.random(scene.compute.shape) < 0.03
        hit[:260] = False
        scene.compute[hit] *= 3.0

    outcome = _played(monkeypatch, "Blocking", effects=(busy,))
    assert outcome.incidents, "the job is slower, and that is said"
    assert not outcome.taken
    assert not any(incident.nodes for incident in outcome.incidents)
