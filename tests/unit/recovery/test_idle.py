"""A job that is well in every respect is left alone until something is reported."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery import Look, machine
from falcon_core.recovery.idle import is_quiet
from falcon_core.recovery.model.state import RecoveryState
from tests.unit.recovery.seen import ONSET, POLICY, STRAGGLER, seen


def test_a_job_whose_ranks_all_train_is_quiet() -> None:
    assert is_quiet(RecoveryState(), seen())


@pytest.mark.parametrize(
    "fields",
    [
        {"process": "Ended"},
        {"fresh": False},
        {"stalled": True},
        {"blocked_seconds": 31.0},
        {"tracking": "NoRing"},
        {"iterations": 0},
        {"onset": ONSET},
    ],
)
def test_a_rank_that_is_not_well_is_watched(fields: dict[str, Any]) -> None:
    assert not is_quiet(RecoveryState(), seen(ranks={2: fields}))


@pytest.mark.parametrize("fields", [{"alive": False}, {"alive": None}, {"node_usable": False}, {"pod": "Ended"}])
def test_a_member_that_is_not_well_is_watched(fields: dict[str, Any]) -> None:
    assert not is_quiet(RecoveryState(), seen(members={1: fields}))


@pytest.mark.parametrize("fields", [{"running": False}, {"bus_healthy": False}])
def test_a_job_that_does_not_run_or_is_not_heard_is_watched(fields: dict[str, Any]) -> None:
    assert not is_quiet(RecoveryState(), seen(**fields))


def test_a_job_with_an_open_incident_is_watched() -> None:
    slow = machine.step(RecoveryState(), Look(seen(ranks=STRAGGLER), POLICY)).state
    assert slow.leader is not None
    assert not is_quiet(slow, seen())
