"""Counters become rates, an unknown counter never becomes zero, and a slowdown's own time is never called healthy."""

from __future__ import annotations

import pytest

from falcon_agent.telemetry.rates import Pressure
from falcon_core.wire.launcher.launch import CgroupCounters, LaunchCounters, RankCounters


class _Node:
    """Counters that are read once a second."""

    def __init__(self) -> None:
        self.pressure = Pressure()
        self._second = self._periods = self._throttled = self._delay_ns = 0

    def run(
        self,
        seconds: int,
        delay: float,
        *,
        throttled: float = 0.0,
        training: bool = True,
        onset: int | None = None,
    ) -> None:
        """Run for some seconds.

        ``delay``: run delay, in seconds per second. ``throttled``: the share of throttled periods. ``onset``: the
        second from which the node is slow.
        """
        for _ in range(seconds):
            self._second += 1
            self._periods += 100
            self._throttled += round(100 * throttled)
            self._delay_ns += round(delay * 1e9)
            self.pressure.feed(
                _at(self._second, periods=self._periods, throttled=self._throttled, delay_ns=self._delay_ns),
                training=training,
                onset_unix_ns=None if onset is None else onset * 10**9,
            )


def _at(second: int, *, periods: int | None, throttled: int | None, delay_ns: int | None = 0) -> LaunchCounters:
    return LaunchCounters(
        unix_ns=second * 1_000_000_000,
        cgroup=CgroupCounters(nr_periods=periods, nr_throttled=throttled),
        ranks=[RankCounters(local_rank=0, cpu_ns=second * 500_000_000, run_delay_ns=delay_ns)],
    )


def test_rates_over_the_window_and_while_healthy() -> None:
    node = _Node()
    node.run(30, 0.01)
    node.run(12, 0.4, throttled=0.7, onset=30)
    throttle = node.pressure.throttle()
    assert throttle is not None
    assert throttle.window_seconds == 5.0
    assert throttle.throttled_fraction == pytest.approx(0.7)
    assert throttle.healthy_throttled_fraction == 0.0
    rank = node.pressure.rank(0)
    assert (rank.cpu, rank.run_delay) == (pytest.approx(0.5), pytest.approx(0.4))
    assert rank.healthy_run_delay == pytest.approx(0.01)
    assert rank.healthy_cpu == pytest.approx(0.5)


def test_the_time_before_the_onset_does_not_dilute_the_window() -> None:
    node = _Node()
    node.run(30, 0.1)
    node.run(2, 0.9)
    assert node.pressure.rank(0).run_delay == pytest.approx((3 * 0.1 + 2 * 0.9) / 5)
    node.run(1, 0.9, throttled=0.5, onset=30)
    assert node.pressure.rank(0).run_delay == pytest.approx(0.9)
    throttle = node.pressure.throttle()
    assert throttle is not None
    assert throttle.throttled_fraction == pytest.approx(0.5 / 3), "over the three seconds since the onset"


def test_what_was_read_before_the_slowdown_was_found_is_not_healthy() -> None:
    node = _Node()
    node.run(20, 0.1)
    node.run(9, 0.9)
    assert node.pressure.rank(0).healthy_run_delay == pytest.approx(0.1)
    node.run(60, 0.9, onset=20)
    assert node.pressure.rank(0).healthy_run_delay == pytest.approx(0.1)
    node.run(40, 0.2)
    assert node.pressure.rank(0).healthy_run_delay == pytest.approx(0.2), "what is older than a minute is forgotten"


def test_a_moments_delay_does_not_move_the_healthy_rate() -> None:
    node = _Node()
    for _ in range(4):
        node.run(8, 0.1)
        node.run(2, 1.5)
    assert node.pressure.rank(0).healthy_run_delay == pytest.approx(0.1)


def test_loading_the_program_is_not_its_healthy_state() -> None:
    node = _Node()
    node.run(30, 2.0, training=False)
    assert node.pressure.rank(0).healthy_run_delay is None
    node.run(20, 0.1)
    assert node.pressure.rank(0).healthy_run_delay == pytest.approx(0.1)


def test_what_cannot_be_read_stays_unknown() -> None:
    pressure = Pressure()
    for second in range(3):
        pressure.feed(_at(second, periods=None, throttled=None, delay_ns=None), training=True)
    throttle = pressure.throttle()
    assert throttle is not None
    assert throttle.throttled_fraction is None
    assert pressure.rank(0).run_delay is None
    assert pressure.rank(7).cpu is None


def test_without_a_quota_nothing_was_throttled() -> None:
    pressure = Pressure()
    for second in range(3):
        pressure.feed(_at(second, periods=0, throttled=0), training=True)
    throttle = pressure.throttle()
    assert throttle is not None
    assert throttle.throttled_fraction == 0.0


def test_collections_are_rates_by_the_time_of_their_own_reading() -> None:
    pressure = Pressure()
    total_ns = 0
    for second in range(1, 41):
        total_ns += 400_000_000 if second > 30 else 10_000_000
        pressure.feed(
            LaunchCounters(
                unix_ns=second * 10**9,
                cgroup=CgroupCounters(),
                ranks_unix_ns=(second - second % 5) * 10**9,  # the launcher reads these more seldom
                collected_unix_ns=second * 10**9,
                ranks=[RankCounters(local_rank=0, cpu_ns=0, collected_ns=total_ns)],
            ),
            training=True,
            onset_unix_ns=30 * 10**9 if second > 33 else None,
        )
    rank = pressure.rank(0)
    assert rank.collecting == pytest.approx(0.4)
    assert rank.healthy_collecting == pytest.approx(0.01)
    assert pressure.rank(1).collecting is None, "nothing is known of another rank"
