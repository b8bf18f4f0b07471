"""The run-length posterior: against the plain recursion with Student-t densities written out, and its invariants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.changepoint.bocd import LONGEST_RUN, Prior, RunLengthPosterior

Runs = list[tuple[float, float, float, float]]  # per run length: mean, weight, shape, rate


def _student_t(x: float, mean: float, weight: float, shape: float, rate: float) -> float:
    """Return the predictive density of a normal-inverse-gamma posterior, written out."""
    freedom = 2 * shape
    scale = math.sqrt(rate * (weight + 1) / (shape * weight))
    norm = math.gamma((freedom + 1) / 2) / (math.gamma(freedom / 2) * math.sqrt(freedom * math.pi) * scale)
    return float(norm * (1 + ((x - mean) / scale) ** 2 / freedom) ** (-(freedom + 1) / 2))


def _naive(samples: list[float], prior: Prior, hazard: float) -> list[list[float]]:
    """Return P(r = 0 … t) after each sample t: Adams & MacKay 2007, algorithm 1, every run length, O(n²)."""
    first = (prior.mean, prior.weight, prior.shape, prior.rate)
    runs: Runs = [first]
    masses = [1.0]
    history = []
    for x in samples:
        joint = [mass * _student_t(x, *run) for mass, run in zip(masses, runs, strict=True)]
        total = sum(joint)
        masses = [hazard, *((1 - hazard) * joint_mass / total for joint_mass in joint)]
        grown = [
            (
                (weight * mean + x) / (weight + 1),
                weight + 1,
                shape + 0.5,
                rate + weight * (x - mean) ** 2 / (2 * (weight + 1)),
            )
            for mean, weight, shape, rate in runs
        ]
        runs = [first, *grown]
        history.append(masses)
    return history


def _dense(posterior: RunLengthPosterior, size: int) -> list[float]:
    masses = np.zeros(size)
    masses[posterior.lengths] = posterior.masses
    return [float(mass) for mass in masses]


PRIORS = [Prior(), Prior(mean=0.5, weight=0.05, shape=1.0, rate=1.0), Prior(mean=-1.0, weight=2.0, shape=3.0, rate=0.2)]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("hazard", [1 / 200, 0.1])
def test_all_run_lengths_agree_with_the_plain_recursion(prior: Prior, hazard: float) -> None:
    rng = np.random.default_rng(1)
    samples = np.concatenate((rng.normal(0, 1, 60), rng.normal(3, 0.5, 40), rng.normal(-2, 2, 40))).tolist()
    posterior = RunLengthPosterior(prior, hazard=hazard, most=0)
    for at, expected in enumerate(_naive(samples, prior, hazard)):
        posterior.update(samples[at])
        np.testing.assert_allclose(_dense(posterior, at + 2), expected, atol=1e-6, rtol=0)


def test_pruning_changes_the_statistic_by_little() -> None:
    """Check P(r ≤ 3), which decides; 64 run lengths carry it."""
    rng = np.random.default_rng(2)
    samples = np.concatenate((rng.normal(0, 1, 150), rng.normal(4, 1, 100))).tolist()
    posterior = RunLengthPosterior(Prior(weight=0.05), hazard=1 / 200)
    for at, expected in enumerate(_naive(samples, Prior(weight=0.05), 1 / 200)):
        posterior.update(samples[at])
        assert posterior.short(3) == pytest.approx(sum(expected[:4]), abs=0.02)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=150),
    st.floats(1e-4, 0.5),
    st.sampled_from([0, 8, 64]),
)
def test_the_posterior_stays_a_distribution(samples: list[float], hazard: float, most: int) -> None:
    posterior = RunLengthPosterior(Prior(), hazard=hazard, most=most)
    for sample in samples:
        posterior.update(sample)
        masses, lengths = posterior.masses, posterior.lengths
        assert np.isfinite(masses).all()
        assert (masses >= 0).all()
        assert masses.sum() == pytest.approx(1.0)
        assert lengths[0] == 0
        assert (np.diff(lengths) > 0).all()
        assert most == 0 or lengths.shape[0] <= most
    assert posterior.short(0) == pytest.approx(posterior.masses[0])
    assert posterior.short(len(samples)) == pytest.approx(1.0)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=60), st.floats(-50, 50))
def test_a_shift_of_samples_and_prior_alike_changes_nothing(samples: list[float], shift: float) -> None:
    still = RunLengthPosterior(Prior(), hazard=0.01, most=0)
    moved = RunLengthPosterior(Prior(mean=shift), hazard=0.01, most=0)
    for sample in samples:
        still.update(sample)
        moved.update(sample + shift)
    np.testing.assert_allclose(still.masses, moved.masses, atol=1e-6)


def test_a_step_moves_the_mass_to_short_run_lengths_and_back() -> None:
    rng = np.random.default_rng(3)
    posterior = RunLengthPosterior(Prior(weight=0.05), hazard=1 / 200)
    for sample in rng.normal(0, 1, 80):
        posterior.update(float(sample))
    assert posterior.short(3) < 0.5
    for sample in rng.normal(12, 1, 3):
        posterior.update(float(sample))
    assert posterior.short(3) > 0.9
    for sample in rng.normal(12, 1, 30):
        posterior.update(float(sample))
    assert posterior.short(3) < 0.5


def test_the_longest_run_is_bounded_and_a_change_after_it_is_seen() -> None:
    rng = np.random.default_rng(5)
    posterior = RunLengthPosterior(Prior(weight=0.05), hazard=1 / 200)
    longest = []
    for sample in rng.normal(0, 1, 2 * LONGEST_RUN + 200).tolist():
        posterior.update(sample)
        longest.append(int(posterior.lengths[-1]))
    assert max(longest) < 2 * LONGEST_RUN
    assert longest[-1] == LONGEST_RUN + 200
    assert (np.diff(posterior.lengths) > 0).all()
    assert posterior.masses.sum() == pytest.approx(1.0)
    assert posterior.most_probable >= LONGEST_RUN
    for sample in rng.normal(12, 1, 3).tolist():
        posterior.update(sample)
    assert posterior.short(3) > 0.9


def test_memory_is_bounded() -> None:
    posterior = RunLengthPosterior(Prior(), hazard=1 / 200, most=32)
    for sample in np.random.default_rng(4).normal(0, 1, 3000):
        posterior.update(float(sample))
    assert posterior.lengths.shape[0] <= 32
    assert posterior.lengths[-1] > 1000  # the long run is what survives
