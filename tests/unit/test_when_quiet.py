"""Test that a measurement on a disturbed machine is made again, and that it fails in the end instead of passing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import machine


@pytest.fixture
def stolen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Yield the shares of CPU time that the hypervisor takes of one measurement after the other."""
    shares: list[float] = []
    monkeypatch.setattr(machine, "stolen_share", lambda _: shares.pop(0))
    monkeypatch.setattr(machine, "wait_for_quiet", lambda _: None)
    yield shares
    assert not shares, "each was asked for"


def test_a_measurement_on_a_quiet_machine_is_made_once(stolen: list[float]) -> None:
    stolen += [0.05]
    made = iter(range(9))
    assert machine.when_quiet("steps", lambda: next(made)) == 0


def test_a_disturbed_measurement_is_made_again_and_the_quiet_one_counts(stolen: list[float]) -> None:
    stolen += [0.3, 0.06, 0.0]
    made = iter(range(9))
    assert machine.when_quiet("steps", lambda: next(made)) == 2


def test_a_machine_that_is_never_quiet_fails_the_test(stolen: list[float]) -> None:
    stolen += [0.3, 0.2, 0.1]
    with pytest.raises(AssertionError, match=r"steps: a hypervisor took 30%, 20%, 10% of the CPU time, and 5% is the"):
        machine.when_quiet("steps", lambda: 0)
