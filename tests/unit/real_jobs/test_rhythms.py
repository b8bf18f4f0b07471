"""A job's own rhythm through the whole chain: from ring records to what is shown, which is nothing."""

from __future__ import annotations

import pytest

from evaluation.real_jobs import effects as does
from evaluation.real_jobs.scene import Calls, Pattern
from tests.unit.real_jobs.playing import played


@pytest.mark.parametrize(("calls", "seed"), [("Blocking", 1), ("Enqueued", 1), ("Enqueued", 3)])
def test_images_of_several_sizes_are_no_incident_before_the_job_has_shown_its_rhythm(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, seed: int
) -> None:
    several = does.scales((0.7, 0.85, 1.0, 1.15, 1.3), 10)
    pattern = Pattern(name="of a test", kind="data parallel", calls=calls, iterations=130, effects=(several,))
    outcome = played(monkeypatch, pattern, world=8, level="high", seed=seed)
    assert outcome.incidents, "the job is suspected to be slow"
    assert not any(incident.incident_at for incident in outcome.incidents)


@pytest.mark.parametrize(("calls", "seed"), [("Blocking", 0), ("Blocking", 1), ("Enqueued", 0)])
def test_a_straggler_among_sequences_of_hidden_lengths_is_named_and_no_other(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, seed: int
) -> None:
    """Check that 64 iterations show what five do not: each rank's computation scatters by 20 %."""
    pattern = Pattern(
        name="of a test",
        kind="data parallel",
        calls=calls,
        iterations=640,
        effects=(does.hidden_lengths(0.2),),
        faults=(does.straggler(1.4, 300),),
    )
    outcome = played(monkeypatch, pattern, world=16, level="low", seed=seed)
    [broken] = outcome.broken
    named = {node for incident in outcome.incidents for node in incident.nodes}
    assert named == {broken.node}
    assert outcome.incidents[-1].slowdown == pytest.approx(1.4, rel=0.1)
