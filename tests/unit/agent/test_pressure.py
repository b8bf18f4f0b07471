"""Counters become rates, and an unknown counter never becomes zero."""

from __future__ import annotations

import pytest

from falcon_agent.telemetry.pressure import Pressure
from falcon_core.wire.launch import CgroupCounters, LaunchCounters, RankCounters


def _at(second: int, *, periods: int | None, throttled: int | None, delay_ns: int | None = 0) -> LaunchCounters:
    return LaunchCounters(
        unix_ns=second * 1_000_000_000,
        cgroup=CgroupCounters(nr_periods=periods, nr_throttled=throttled),
        ranks=[RankCounters(local_rank=0, cpu_ns=second * 500_000_000, run_delay_ns=delay_ns)],
    )


def test_rates_over_the_window_and_while_healthy() -> None:
    pressure = Pressure()
    for second in range(5):
        pressure.feed(_at(second, periods=100 * second, throttled=0, delay_ns=second * 10_000_000), healthy=True)
    for second in range(5, 12):
        slow = _at(second, periods=100 * second, throttled=70 * (second - 5), delay_ns=second * 400_000_000)
        pressure.feed(slow, healthy=False)
    throttle = pressure.throttle()
    assert throttle is not None
    assert throttle.throttled_fraction == pytest.approx(0.7)
    assert throttle.healthy_throttled_fraction == 0.0
    rank = pressure.rank(0)
    assert (rank.cpu, rank.run_delay) == (pytest.approx(0.5), pytest.approx(0.4))
    assert rank.healthy_run_delay == pytest.approx(0.01)


def test_what_cannot_be_read_stays_unknown() -> None:
    pressure = Pressure()
    for second in range(3):
        pressure.feed(_at(second, periods=None, throttled=None, delay_ns=None), healthy=True)
    throttle = pressure.throttle()
    assert throttle is not None
    assert throttle.throttled_fraction is None
    assert pressure.rank(0).run_delay is None
    assert pressure.rank(7).cpu is None


def test_without_a_quota_nothing_was_throttled() -> None:
    pressure = Pressure()
    for second in range(3):
        pressure.feed(_at(second, periods=0, throttled=0), healthy=True)
    throttle = pressure.throttle()
    assert throttle is not None
    assert throttle.throttled_fraction == 0.0
