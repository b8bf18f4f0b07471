"""The published detectors agree about a rank that differs in their way, and not about one that is like its peers."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_anomaly.detectors import preparation, witnesses
from falcon_anomaly.detectors.preparation import Array


def alike(metrics: int = 3, ranks: int = 6, windows: int = 240) -> Array:
    """Return series that are periodic, with noise [metric, rank, window]."""
    random = np.random.default_rng(7)
    times = np.arange(windows)
    periods = np.array([9.0, 14.0, 20.0])[:metrics, None, None]
    return np.sin(2 * np.pi * times / periods) + random.normal(0, 0.1, (metrics, ranks, windows))


def test_a_rank_like_its_peers_has_no_witness() -> None:
    series = alike()
    assert witnesses.agreeing(series, 0, 2) == ()


def test_a_course_that_was_never_there_is_far_from_its_own_past() -> None:
    series = alike()
    series[0, 2, -18:] = np.random.default_rng(8).normal(0, 1, 18)
    assert witnesses.PROFILE in witnesses.agreeing(series, 0, 2)


def test_metrics_that_do_not_fit_together_are_a_local_outlier() -> None:
    series = alike()
    # Each value by itself has been there before: only together they are new.
    series[1, 2, -8:] = 1.2
    series[2, 2, -8:] = -1.2
    assert witnesses.factor_scores(witnesses.prepared(series)).argmax() == 2


def test_a_rank_of_another_course_is_apart_from_the_cluster() -> None:
    series = alike()
    series[0, 4] = 2.0 + 0.1 * np.random.default_rng(9).normal(size=240)
    assert witnesses.WARPING in witnesses.agreeing(series, 0, 4)


def test_of_a_thousand_ranks_few_are_compared_and_the_named_one_is_among_them() -> None:
    ranks = witnesses.compared(1000, 777)
    assert len(ranks) == len(set(ranks)) == witnesses.MOST_RANKS
    assert 777 in ranks
    assert witnesses.compared(3, 1) == [0, 1, 2]


def test_a_short_history_and_two_ranks_have_no_witness() -> None:
    assert witnesses.agreeing(alike(windows=60), 0, 1) == ()
    assert witnesses.agreeing(alike(ranks=2), 0, 1) == ()


def test_gaps_take_the_peers_value_and_then_the_windows_before() -> None:
    values = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan]])
    np.testing.assert_array_equal(preparation.filled(values), [[1.0, 5.0, 5.0], [3.0, 5.0, 5.0]])
    np.testing.assert_array_equal(preparation.filled(np.full((2, 3), np.nan)), np.zeros((2, 3)))


def test_only_what_flips_faster_than_it_is_sampled_is_filtered() -> None:
    flipping = np.tile([1.0, 0.0, 1.0, 1.0], 30)
    slow = np.repeat([0.0, 1.0], 60)
    filtered = preparation.smoothed(np.stack([flipping, slow]))
    np.testing.assert_array_equal(filtered[0], np.ones(120))
    np.testing.assert_array_equal(filtered[1], slow)


def test_metrics_that_stand_still_or_follow_another_are_not_chosen() -> None:
    series = alike()
    linear = 5.0 - 3.0 * series[:1]
    constant = np.full_like(series[:1], 4.0)
    assert preparation.chosen(np.concatenate([constant, series, linear])) == [1, 2, 3]


@pytest.mark.parametrize("spread", [0.0, 1e-9, 1.0, 1e6])
def test_scaled_values_are_finite_and_bounded(spread: float) -> None:
    random = np.random.default_rng(10)
    values = 5.0 + spread * random.normal(size=(4, 50))
    values[0, 0] += 1e9
    found = preparation.scaled(values)
    assert np.isfinite(found).all()
    assert np.abs(found).max() <= 20
