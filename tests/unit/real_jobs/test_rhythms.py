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
