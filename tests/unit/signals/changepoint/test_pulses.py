"""Pulses: single long iterations that are more frequent than before, and what must not pass for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from falcon_core.signals.changepoint.detector import ChangeDetector, Slowdown

Times = npt.NDArray[np.float64]
Generator = np.random.Generator
Event = tuple[int, Slowdown | None]


def _detector() -> ChangeDetector:
    return ChangeDetector(verify_percent=10, consecutive=5)


def _events(times: Times, detector: ChangeDetector | None = None) -> list[Event]:
    """Return the iterations, from 1, at which a slowdown began, grew or ended."""
    detector = detector or _detector()
    return [
        (number, detector.slowdown)
        for number, ns in enumerate((times * 1e9).astype(np.int64).tolist(), start=1)
        if detector.feed(number, 1000 * number, ns)
    ]


def _noise(rng: Generator, count: int) -> Times:
    times: Times = np.exp(0.03 * rng.standard_normal(count))
    return times


@pytest.mark.parametrize(("every", "factor"), [(2, 1.6), (3, 12.0), (4, 1.9), (7, 4.0), (9, 25.0)])
def test_one_long_iteration_of_several_is_one_slowdown_with_the_gain_of_the_mean(every: int, factor: float) -> None:
    times = _noise(np.random.default_rng(every), 700)
    times[300::every] *= factor
    detector = _detector()
    [(reported, _)] = _events(times, detector)
    slowdown = detector.slowdown
    assert slowdown is not None
    assert slowdown.window
    assert 300 < slowdown.first_iteration <= reported <= 480
    assert slowdown.after_ns / slowdown.before_ns == pytest.approx(1 + (factor - 1) / every, rel=0.1)


def test_long_iterations_at_random_are_found_and_their_end_as_well() -> None:
    rng = np.random.default_rng(5)
    times = _noise(rng, 900)
    times[320:600][rng.random(280) < 1 / 6] *= 5.0
    events = _events(times)
    assert [slowdown is None for _, slowdown in events] == [False, True]
    assert events[0][0] <= 480
    assert 600 < events[1][0] <= 700


def test_iterations_that_become_slow_throughout_are_another_onset_with_no_window() -> None:
    times = _noise(np.random.default_rng(6), 600)
    times[300:450:3] *= 8.0
    times[450:] *= 2.5
    events = _events(times)
    assert [slowdown and bool(slowdown.window) for _, slowdown in events] == [True, False]
    assert 450 < events[1][0] <= 480


def _stalls(rng: Generator, share: float) -> Times:
    return np.where(rng.random(1500) < share, 1 + rng.pareto(1.2, 1500), 1.0)


def _bursts(length: int, every: int) -> Times:
    return np.where(np.arange(1500) % every < length, 1.4, 1.0)


HEALTHY: dict[str, Callable[[Generator], Times]] = {
    "a checkpoint in one iteration of 90": lambda _: np.where(np.arange(1500) % 90 == 89, 30.0, 1.0),
    "late data by a heavy tail": lambda rng: _stalls(rng, 0.08),
    "rare stalls by a heavy tail": lambda rng: _stalls(rng, 0.01),
    "a rhythm since the beginning": lambda _: np.where(np.arange(1500) % 6 == 5, 3.0, 1.0),
    "collections that grow": lambda _: 1 + np.where(np.arange(1500) % 40 == 3, np.arange(1500) / 500, 0.0),
    "lengths at random": lambda rng: rng.choice((0.8, 0.9, 1.0, 1.1, 1.2), 1500),
    "a checkpoint in one iteration of 50 from the middle on": lambda _: np.where(
        (np.arange(1500) > 600) & (np.arange(1500) % 50 == 0), 8.0, 1.0
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_rhythm_of_the_job_is_no_slowdown(name: str) -> None:
    rng = np.random.default_rng(8)
    assert _events(_noise(rng, 1500) * HEALTHY[name](rng)) == []


def test_bursts_are_no_pulses() -> None:
    times = _noise(np.random.default_rng(9), 1500) * _bursts(12, 120)
    assert not any(slowdown is not None and slowdown.window for _, slowdown in _events(times))


@pytest.mark.parametrize("onset", [50, 90])
def test_before_the_healthy_share_is_known_most_iterations_suffice(onset: int) -> None:
    times = _noise(np.random.default_rng(onset), onset + 200)
    pattern = np.resize([True, True, False, True, False], 200)
    times[onset:][pattern] *= 1.6
    [(reported, slowdown), *_] = _events(times)
    assert slowdown is not None
    assert onset < reported <= onset + 30


def _again(before: ChangeDetector, times: Times, first: int) -> ChangeDetector:
    """Return a new agent's detector, after it has read the ring again from this iteration on."""
    after = ChangeDetector(verify_percent=10, consecutive=5, known=before.reference, pulses=before.pulse_share)
    after.slowdown = before.slowdown
    for number in range(first, len(times)):
        after.feed(number, 1000 * number, int(times[number] * 1e9))
    return after


@pytest.mark.parametrize("first", [160, 260, 330])
def test_pulses_outlive_an_agent_wherever_its_ring_begins(first: int) -> None:
    times = _noise(np.random.default_rng(first), 600)
    times[300::5] *= 6.0
    before = _detector()
    _events(times[:500], before)
    assert before.slowdown is not None
    after = _again(before, times, first)
    assert after.slowdown is not None
    assert after.slowdown.window
    assert after.slowdown.after_ns == pytest.approx(2 * after.slowdown.before_ns, rel=0.15)


def test_pulses_end_for_a_new_agent_of_a_job_with_a_rhythm_of_its_own() -> None:
    times = _noise(np.random.default_rng(9), 1400)
    times[::20] *= 4.0
    times[600:800:2] *= 8.0
    before = _detector()
    _events(times[:760], before)
    assert before.slowdown is not None
    assert before.slowdown.window
    assert _again(before, times, 740).slowdown is None
