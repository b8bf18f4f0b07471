"""Slow degradation: ramps and stairs of which a reference that follows the series never shows enough at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from falcon_core.signals.changepoint.detector import ChangeDetector, Slowdown

Times = npt.NDArray[np.float64]
_FIRST = 300  # iterations that are healthy
_HOUR_NS = 3_600_000_000_000


def _ramp(extra: float, width: int) -> Times:
    """Return factors of a ramp that begins at iteration ``_FIRST`` and ends, ``extra`` higher, with the series."""
    return 1 + extra * np.clip((np.arange(_FIRST + width) - _FIRST) / width, 0, 1)


def _stairs(steps: int, extra: float = 0.08, width: int = 300) -> Times:
    return (1 + extra) ** np.clip((np.arange(_FIRST + steps * width) - _FIRST) // width + 1, 0, None).astype(float)


SHAPES: dict[str, Callable[[], Times]] = {
    "+50 % over 750": lambda: _ramp(0.5, 750),
    "+50 % over 2000": lambda: _ramp(0.5, 2000),
    "+100 % over 5000": lambda: _ramp(1.0, 5000),
    "stairs of +8 % each 300": lambda: _stairs(4),
}


def _noisy(seed: int, shape: Times, share: float) -> Times:
    times: Times = shape * np.exp(share * np.random.default_rng(seed).standard_normal(len(shape)))
    return times


def _run(detector: ChangeDetector, times: Times, first: int = 1, iteration_ns: int = 1000) -> list[Slowdown | None]:
    """Feed times in seconds; return what ``slowdown`` was after each event."""
    events = []
    for number, nanoseconds in enumerate((times * 1e9).astype(np.int64).tolist(), start=first):
        if detector.feed(number, iteration_ns * number, nanoseconds):
            events.append(detector.slowdown)
    return events


def _detector() -> ChangeDetector:
    return ChangeDetector(verify_percent=10, consecutive=5)


@pytest.mark.parametrize("share", [0.015, 0.04])
@pytest.mark.parametrize("name", SHAPES)
def test_a_slow_degradation_is_found_against_the_level_before_it(name: str, share: float) -> None:
    for seed in range(3):
        events = _run(_detector(), _noisy(seed, SHAPES[name](), share))
        assert events
        assert events[0] is not None
        assert events[0].before_ns == pytest.approx(1e9, rel=0.06)
        assert None not in events  # it lasts


@pytest.mark.parametrize("share", [0.015, 0.04])
def test_a_ramps_onset_is_where_the_level_crossed_the_threshold(share: float) -> None:
    for seed in range(3):
        [slowdown] = _run(_detector(), _noisy(seed, _ramp(0.5, 2000), share))
        assert slowdown is not None
        assert slowdown.gradual
        assert slowdown.first_iteration == pytest.approx(_FIRST + 400, abs=120)  # +10 % of +50 % over 2000
        assert slowdown.start_ns == 1000 * slowdown.first_iteration
        assert slowdown.reported_iteration - slowdown.first_iteration < 300


def test_a_ramp_that_is_taken_back_is_over() -> None:
    detector = _detector()
    shape = np.concatenate((_ramp(0.5, 2000), np.ones(200)))
    begun, over = _run(detector, _noisy(0, shape, 0.04))
    assert begun is not None
    assert over is None
    assert detector.healthy_ns == pytest.approx(1e9, rel=0.03)


@pytest.mark.parametrize("extra", [0.0, 0.06])
def test_natural_wander_is_no_degradation(extra: float) -> None:
    """Check a level that is ±5 % off within 5000 iterations, and a warm-up before it."""
    numbers = np.arange(5000)
    for seed, phase in enumerate((0, np.pi / 2, np.pi, 1.5 * np.pi)):
        shape = 1 + 0.05 * np.sin(phase + 2 * np.pi * numbers / 5000) + 2 * np.clip(1 - numbers / 30, 0, None)
        shape *= 1 - extra * np.exp(-numbers / 150)  # a job that is fast at first: its device is cool
        assert _run(_detector(), _noisy(seed, shape, 0.02)) == []


def test_after_a_drop_the_new_level_is_what_degrades() -> None:
    shape = np.concatenate((np.ones(1000), 0.7 * _ramp(0.5, 2000)))
    for seed in range(3):
        [slowdown] = _run(_detector(), _noisy(seed, shape, 0.015))
        assert slowdown is not None
        assert slowdown.before_ns == pytest.approx(0.7e9, rel=0.02)
        assert slowdown.gradual


def test_a_degradation_whose_level_is_held_becomes_the_level_in_the_end() -> None:
    """Nothing relieves a job whose own work has grown by and by: an incident would stay open for ever."""
    detector = _detector()
    shape = np.concatenate((_ramp(0.25, 1000), np.full(4000, 1.25)))
    begun, over = _run(detector, _noisy(0, shape, 0.015), iteration_ns=_HOUR_NS // 3000)
    assert begun is not None
    assert over is None
    assert detector.healthy_ns == pytest.approx(1.25e9, rel=0.02)
    [again] = _run(detector, 1.25 * _noisy(1, _ramp(0.5, 2000), 0.015), first=len(shape) + 1)
    assert again is not None
    assert again.before_ns == pytest.approx(1.25e9, rel=0.03)


def test_a_short_time_at_a_level_does_not_make_it_the_level() -> None:
    detector = _detector()
    shape = np.concatenate((_ramp(0.25, 1000), np.full(4000, 1.25)))
    events = _run(detector, _noisy(0, shape, 0.015), iteration_ns=_HOUR_NS // 30_000)
    assert len(events) == 1
    assert detector.slowdown is not None


def test_a_slowdown_on_top_of_a_degradation_is_an_onset_of_its_own() -> None:
    shape = np.concatenate((_ramp(0.5, 2000), np.full(100, 2.0)))
    first, grown = _run(_detector(), _noisy(0, shape, 0.015))
    assert first is not None
    assert grown is not None
    assert abs(grown.first_iteration - (_FIRST + 2001)) <= 2
    assert grown.gradual


def test_a_flat_level_near_the_threshold_is_one_slowdown() -> None:
    """Check 1500 iterations of +13 % at 4 % of noise: the median of five of them is back by noise now and then."""
    shape = np.where(np.arange(1800) < _FIRST, 1.0, 1.13)
    for seed in range(3):
        assert len(_run(_detector(), _noisy(seed, shape, 0.04))) == 1
