"""Noise that lasts from one iteration to the next: how it is measured, and that it is no slowdown."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from falcon_core.signals.changepoint.detector import ChangeDetector
from falcon_core.signals.changepoint.reference import Reference
from falcon_core.stats.lasting_noise import mean_variance

Levels = npt.NDArray[np.float64]
ITERATIONS = 1500


def inherited(rng: np.random.Generator, size: float, correlation: float, count: int = ITERATIONS) -> Levels:
    """Return noise of which each sample inherits a share from the sample before, logarithms: [count]."""
    new = size * np.sqrt(1 - correlation**2) * rng.standard_normal(count)
    new[0] = size * rng.standard_normal()
    return np.array(list(itertools.accumulate(new, lambda before, one: correlation * before + one)))


def switched(rng: np.random.Generator, size: float, mean_iterations: float) -> Levels:
    """Return the noise of a neighbour that computes and rests in turn, logarithms: [ITERATIONS]."""
    is_busy = np.cumsum(rng.random(ITERATIONS) < 1 / mean_iterations) % 2
    return size * (2 * is_busy - 1) + 0.02 * rng.standard_normal(ITERATIONS)


def slow_iterations(levels: Levels) -> list[int]:
    """Return the iterations of a series, after its first 300, during which a slowdown is open."""
    detector = ChangeDetector(verify_percent=10, consecutive=5)
    slow = []
    for number, level in enumerate(levels.tolist()):
        detector.feed(number, number, round(2e9 * np.exp(level)))
        if detector.slowdown is not None and number >= 300:
            slow.append(number)
    return slow


def learned(levels: Levels) -> Reference:
    """Return the reference that has learned the levels."""
    reference = Reference.of(levels[:8])
    for level in levels[8:].tolist():
        reference.learn(level)
    return reference


@pytest.mark.parametrize(("size", "correlation"), [(0.045, 0.93), (0.06, 0.9), (0.07, 0.8)])
def test_noise_that_lasts_is_no_slowdown(size: float, correlation: float) -> None:
    rng = np.random.default_rng(5)
    slow = [slow_iterations(inherited(rng, size, correlation)) for _ in range(4)]
    assert sum(map(len, slow)) <= 0.01 * 4 * ITERATIONS


def test_a_neighbour_that_computes_and_rests_in_turn_is_no_slowdown() -> None:
    rng = np.random.default_rng(6)
    slow = [slow_iterations(switched(rng, 0.055, 7.0)) for _ in range(4)]
    assert sum(map(len, slow)) <= 0.01 * 4 * ITERATIONS


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_noise_and_its_correlation_are_measured_whatever_the_correlation_is(correlation: float) -> None:
    rng = np.random.default_rng(7)
    references = [learned(inherited(rng, 0.05, correlation)) for _ in range(8)]
    assert np.mean([reference.noise for reference in references]) == pytest.approx(0.05, rel=0.15)
    # Twenty samples err by what the correlation makes of them.
    expected = 1.25 * 0.05 * np.sqrt(mean_variance(20, correlation) + mean_variance(ITERATIONS, correlation))
    assert np.mean([reference.error(20) for reference in references]) == pytest.approx(expected, rel=0.2)


def test_a_drift_does_not_pass_for_noise_that_lasts() -> None:
    rng = np.random.default_rng(8)
    steady = 0.02 * rng.standard_normal(ITERATIONS)
    drifting = steady + np.linspace(0.0, 0.15, ITERATIONS)
    assert learned(drifting).error(20) <= 1.2 * learned(steady).error(20)


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_a_slowdown_in_noise_that_lasts_is_found(factor: float) -> None:
    rng = np.random.default_rng(9)
    levels = inherited(rng, 0.04, 0.9, 500)
    levels[400:] += np.log(factor)
    found = slow_iterations(levels)
    assert 400 + 4 <= found[0] <= 400 + 10


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.95])
def test_the_cautious_error_of_many_samples_is_no_smaller_than_seen(correlation: float) -> None:
    """Hold the median of 64 samples after 400 healthy ones against the level that these taught."""
    rng, away, errors = np.random.default_rng(7), [], []
    for _ in range(60):
        levels = inherited(rng, 0.08, correlation, 464)
        reference = learned(levels[:400])
        errors.append(reference.cautious_error(64, 5))
        away.append(float(np.median(levels[400:])) - reference.level)
        assert errors[-1] > 0.74 * reference.error(5)
    assert float(np.std(away)) < float(np.median(errors))
    assert max(abs(own) / error for own, error in zip(away, errors, strict=True)) < 4.5
