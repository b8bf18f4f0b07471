"""What grows towards its limit is forecast; what goes up and ends, or comes and goes, is not."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.anomalies.series import HEALTHY, HOUR, LEAKS, MINUTE, Floats, Leak, healthy, leaking
from falcon_core.anomalies.forecast import HORIZON_SECONDS, Forecast, Watch
from falcon_core.anomalies.trend import stretch_begin, theil_sen


def played(
    seconds: Iterable[float], values: Iterable[float], limit: float | None = 1.0
) -> list[tuple[float, Forecast | None]]:
    """Return the forecast after each window."""
    watch = Watch()
    return [(at, watch.forecast) for at, value in zip(seconds, values, strict=True) if watch.add(at, value, limit)]


def spoken(looks: list[tuple[float, Forecast | None]]) -> list[tuple[float, Forecast]]:
    return [(at, forecast) for at, forecast in looks if forecast is not None]


def line(minutes: float, begin: float, end: float) -> tuple[Floats, Floats]:
    times = np.arange(0.0, minutes * 60, 2.0)
    return times, np.linspace(begin, end, len(times))


@settings(max_examples=15, deadline=None)
@given(
    lasts=st.floats(4 * MINUTE, 90 * MINUTE),
    noise=st.floats(0.0, 0.01),
    begin=st.floats(0.1, 0.7),
    healthy_minutes=st.floats(0.0, 40.0),
    seed=st.integers(0, 1000),
)
def test_a_leak_is_forecast_within_a_tenth_by_half_of_its_way(
    lasts: float, noise: float, begin: float, healthy_minutes: float, seed: int
) -> None:
    leak = Leak("any", lasts, noise=noise, begin=begin, healthy=healthy_minutes * MINUTE)
    end, half = leak.healthy + lasts, leak.healthy + lasts / 2 + 20
    looks = played(*leaking(leak, seed))
    at, forecast = next(look for look in looks if look[0] >= half)
    assert forecast is not None
    assert abs(forecast.at - end) <= 0.1 * (end - at) + 10
    assert forecast.earliest < forecast.at < forecast.latest


@settings(max_examples=15, deadline=None)
@given(lasts=st.floats(4 * MINUTE, 90 * MINUTE), seed=st.integers(0, 1000), healthy_minutes=st.floats(2.0, 40.0))
def test_nothing_is_said_before_a_leak_begins_nor_before_a_third_of_its_way(
    lasts: float, seed: int, healthy_minutes: float
) -> None:
    leak = Leak("early", lasts, healthy=healthy_minutes * MINUTE)
    early = leak.healthy + lasts / 3
    assert not [at for at, _ in spoken(played(*leaking(leak, seed))) if at < early]


@settings(max_examples=20, deadline=None)
@given(kind=st.sampled_from(sorted(HEALTHY)), seed=st.integers(1000, 2000))
def test_a_healthy_job_of_any_kind_raises_nothing_in_two_hours(kind: str, seed: int) -> None:
    assert spoken(played(*healthy(kind, seed, 2 * HOUR))) == []


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(1e-3, 1e15), shift=st.integers(0, 10**9), seed=st.integers(0, 100))
def test_neither_the_unit_nor_the_clocks_zero_matters(scale: float, shift: int, seed: int) -> None:
    times, values = leaking(Leak("units", 10 * MINUTE), seed)
    plain = spoken(played(times, values))
    scaled = spoken(played(times + shift, values * scale, scale))
    assert [at for at, _ in plain] == pytest.approx([at - shift for at, _ in scaled])
    assert plain[-1][1].at == pytest.approx(scaled[-1][1].at - shift, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(0, 2.0**60), min_size=10, max_size=400),
    limit=st.floats(1e-9, 2.0**60),
    step=st.floats(0.5, 500.0),
)
def test_whatever_is_counted_raises_no_error_and_a_forecast_is_a_number(
    values: list[float], limit: float, step: float
) -> None:
    times = [number * step for number in range(len(values))]
    for at, forecast in spoken(played(times, values, limit)):
        assert all(map(math.isfinite, (forecast.at, forecast.earliest, forecast.latest, forecast.used)))
        assert forecast.earliest <= forecast.at <= forecast.latest
        assert forecast.since <= at


def test_a_jump_is_no_leak() -> None:
    times = np.arange(0.0, HOUR, 2.0)
    values = np.where(times < HOUR / 2, 0.3, 0.8) + np.random.default_rng(1).normal(0, 0.002, len(times))
    assert spoken(played(times, values)) == []


def test_a_saw_tooth_that_was_seen_once_is_no_leak() -> None:
    times = np.arange(0.0, 4 * HOUR, 2.0)
    first = 0.2 + 0.33 * ((times / (20 * MINUTE)) % 1.0)  # each tooth takes 41 % of the room
    assert spoken(played(times, first)) == []


@pytest.mark.parametrize("minutes", [3, 15, 60])
def test_what_fills_two_fifths_of_the_room_and_stops_is_no_leak(minutes: int) -> None:
    times = np.arange(0.0, 3 * minutes * MINUTE, 5.0)
    values = 0.3 + 0.28 * np.clip(times / (minutes * MINUTE), 0, 1)
    assert spoken(played(times, values + np.random.default_rng(minutes).normal(0, 0.005, len(times)))) == []


def test_a_forecast_is_withdrawn_when_the_growth_stops() -> None:
    times = np.arange(0.0, HOUR, 2.0)
    values = 0.1 + 0.7 * np.clip(times / (20 * MINUTE), 0, 1)
    found = spoken(played(times, values))
    assert found, "at three sevenths of the room no forecast can know that it will stop"
    assert found[-1][0] < 35 * MINUTE


def test_a_leak_beyond_the_horizon_waits_until_it_is_within() -> None:
    times = np.arange(0.0, 40 * HOUR, 10.0)
    found = spoken(played(times, np.linspace(0.1, 1.0, len(times))))
    assert found[0][0] == pytest.approx(40 * HOUR - HORIZON_SECONDS, abs=1200)


def test_without_a_limit_nothing_is_said() -> None:
    assert spoken(played(*line(20, 0.1, 1.0), limit=None)) == []


def test_what_stands_still_falls_or_is_full_is_no_leak() -> None:
    for begin, end in ((0.5, 0.5), (0.9, 0.2), (1.0, 1.0), (0.0, 0.0)):
        assert spoken(played(*line(20, begin, end))) == []


def test_growth_beyond_the_limit_leaves_no_time() -> None:
    (*_, (at, forecast)) = spoken(played(*line(20, 0.2, 1.4)))
    assert forecast.at <= at
    assert math.isfinite(forecast.latest)


def test_a_gap_in_the_samples_is_no_growth() -> None:
    times = np.concatenate([np.arange(0.0, 300.0, 2.0), np.arange(5000.0, 5300.0, 2.0)])
    assert spoken(played(times, np.where(times < 1000, 0.3, 0.8))) == []


def test_theil_and_sens_slope_is_the_median_of_all_pairs_and_ignores_outliers() -> None:
    seconds = np.arange(20.0)
    values = 3 * seconds + 1
    values[[4, 11, 15]] = 500, -300, 900
    slope, low, high = theil_sen(seconds, values)
    assert slope == pytest.approx(3.0)
    assert low <= 3.0 <= high


def test_the_newest_stretch_begins_where_the_line_bends() -> None:
    seconds = np.arange(100.0)
    values = np.where(seconds < 60, 5.0, 5.0 + 2 * (seconds - 60)) + np.random.default_rng(3).normal(0, 0.2, 100)
    assert stretch_begin(seconds, values) == pytest.approx(60, abs=3)
    assert stretch_begin(seconds, 2 * seconds) == 0


def test_each_leak_of_the_evaluation_has_a_name_of_its_own() -> None:
    assert len({leak.name for leak in LEAKS}) == len(LEAKS)
