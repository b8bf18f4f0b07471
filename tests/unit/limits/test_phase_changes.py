"""Check which settings of a slowdown's phase ``dev.limits`` refuses."""

from __future__ import annotations

import pytest

from dev.limits import ROOT
from dev.phase_changes import OWNER, PHASES, phase_changes


@pytest.mark.parametrize(
    ("call", "is_allowed"),
    [
        ("located(slow, culprit)", True),
        ("SlowIncident(id='', phase='Suspected', onset=onset)", True),
        ("SlowIncident(id='', phase='Located', onset=onset)", False),
        ("SlowIncident(id='', phase='Detected' if named else 'Suspected')", False),
        ("replace(slow, phase='Located')", False),
        ("msgspec.structs.replace(slow, refreshed_at=now, phase='Suspected')", False),
        ("replace(slow, phase=before.phase)", False),
        ("replace(probe, phase='Release')", True),
    ],
)
def test_a_phase_changes_by_the_functions_for_it(call: str, is_allowed: bool) -> None:
    source = f"def step(slow):\n    for each in slow.open:\n        yield [{call}]\n"
    assert (not list(phase_changes(source))) == is_allowed


def test_the_module_with_the_functions_would_be_refused_itself() -> None:
    changes = [text for text, _ in phase_changes((ROOT / OWNER).read_text())]
    assert sorted(changes) == [f"replace(phase='{phase}')" for phase in sorted(PHASES) if phase != "Suspected"]
