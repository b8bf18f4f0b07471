"""How quota, retention and rate of writes belong together."""

from __future__ import annotations

import pytest

from falcon_operator.bus.capacity import WriteHistory, held_seconds, is_full, lasting_bytes_per_second

MINUTE, HOUR = 60.0, 3600.0
GIB = 1024**3


@pytest.mark.parametrize(("retention", "held"), [(MINUTE, 140.0), (HOUR, 7220.0), (10 * HOUR, 39620.0)])
def test_etcd_holds_about_twice_its_retention_and_at_most_an_hour_more(retention: float, held: float) -> None:
    assert held_seconds(retention) == held


def test_the_charts_defaults_last_for_15_mb_a_second() -> None:
    assert round(lasting_bytes_per_second(2 * GIB, MINUTE) / 1e6) == 15


def test_what_is_expected_is_the_rate_times_what_is_held() -> None:
    history = WriteHistory(MINUTE)
    for second in range(0, 600, 5):
        history.sample(1000.0 + second, 2_000_000 * second)
    assert history.expected_bytes() == pytest.approx(280_000_000)


def test_nothing_is_expected_before_a_minute_has_been_seen() -> None:
    history = WriteHistory(MINUTE)
    assert history.expected_bytes() is None
    history.sample(0.0, 0)
    history.sample(59.0, 10**9)
    assert history.expected_bytes() is None


def test_what_etcd_has_compacted_is_forgotten() -> None:
    history = WriteHistory(MINUTE)
    history.sample(0.0, 0)
    for second in range(5, 600, 5):
        history.sample(float(second), 10**9)  # a burst, then nothing
    assert history.expected_bytes() == 0.0


def test_a_database_is_full_before_it_reaches_its_quota() -> None:
    assert is_full(95, 100)
    assert not is_full(80, 100)
