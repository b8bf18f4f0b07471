"""Play a pattern that is not in the evaluation's table, from ring records to actions."""

from __future__ import annotations

import pytest

from evaluation.real_jobs import patterns, room
from evaluation.real_jobs.outcome import Case, Outcome
from evaluation.real_jobs.present import Present
from evaluation.real_jobs.scene import Level, Pattern


def played(monkeypatch: pytest.MonkeyPatch, pattern: Pattern, *, world: int, level: Level, seed: int) -> Outcome:
    """Return what came of the pattern with this code."""
    monkeypatch.setattr(room, "PATTERNS", {**patterns.PATTERNS, pattern.name: pattern})
    return room.Room(Case(pattern=pattern.name, world=world, level=level, seed=seed), Present).play()
