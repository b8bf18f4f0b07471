"""The pace of writes: a burst is free, then each write waits for its turn."""

from __future__ import annotations

import pytest

from falcon_operator.cluster.pace import Bound, Pace, Paces
from tests.unit.operator.fake_clock import FakeClock


def test_after_a_burst_each_write_waits_a_little_longer_and_time_pays_it_back() -> None:
    clock = FakeClock()
    pace = Pace(clock, Bound(per_second=10.0, burst=3))
    assert [pace.wait_seconds() for _ in range(3)] == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)
    assert [pace.wait_seconds() for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    clock.advance(0.3)
    assert pace.wait_seconds() == pytest.approx(0.1)
    clock.advance(60.0)
    assert [pace.wait_seconds() for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.1], abs=1e-9)


def test_a_decision_waits_for_no_pods() -> None:
    paces = Paces(FakeClock())
    while not paces.wait_seconds("Other"):
        pass
    assert paces.wait_seconds("Other") > 0
    assert (paces.wait_seconds("Intent"), paces.wait_seconds("Event")) == (0.0, 0.0)
