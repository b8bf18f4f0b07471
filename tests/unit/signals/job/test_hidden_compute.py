"""What calls hide of a computation while they run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from falcon_core.signals.job import hidden_compute


def test_where_calls_hide_computation_a_rank_has_grown_by_what_the_iteration_has() -> None:
    assert hidden_compute.growth(1.7, peers=0.8, iteration=1.26, tolerance=0.05) == 1.26


def test_a_rank_has_grown_no_more_than_its_own_computation() -> None:
    assert hidden_compute.growth(1.2, peers=0.8, iteration=1.5, tolerance=0.05) == 1.2


@pytest.mark.parametrize("peers", [0.97, 1.0, 1.3])
def test_where_the_peers_compute_as_before_calls_hide_nothing(peers: float) -> None:
    assert hidden_compute.growth(1.7, peers=peers, iteration=1.26, tolerance=0.05) == 1.7


def test_peers_of_a_job_that_became_faster_have_hidden_nothing() -> None:
    assert not hidden_compute.is_hidden(0.8, iteration=0.82, tolerance=0.05)


def test_the_longest_stretch_shows_the_ratio_where_the_others_are_hidden() -> None:
    """Check four ranks whose longest stretch takes 350 ms, and 490 ms at the slow one."""
    compute_ms = np.array([360.0, 355.0, 830.0, 352.0])
    longest_ms = np.array([350.0, 350.0, 490.0, 350.0])
    shown = hidden_compute.shown_share(compute_ms, longest_ms / compute_ms)
    assert shown[2] * 830 / 355 == pytest.approx(1.4)
    assert (shown[[0, 1, 3]] == 1).all()


def test_a_rank_that_is_slow_throughout_keeps_its_ratio() -> None:
    compute_ms = np.array([400.0, 404.0, 560.0, 398.0])
    assert (hidden_compute.shown_share(compute_ms, np.array([0.25, 0.26, 0.25, 0.25])) == 1).all()


def test_a_rank_that_is_slow_in_one_stretch_alone_keeps_its_ratio() -> None:
    """Check late data: 60 of 400 ms become 260."""
    compute_ms = np.array([400.0, 400.0, 600.0, 400.0])
    assert (hidden_compute.shown_share(compute_ms, np.array([0.2, 0.2, 260 / 600, 0.2])) == 1).all()


def test_without_all_shares_nothing_is_corrected() -> None:
    compute_ms = np.array([360.0, 355.0, 830.0, 352.0])
    assert (hidden_compute.shown_share(compute_ms, np.array([0.97, math.nan, 0.59, 0.99])) == 1).all()


def test_a_rank_that_is_slow_elsewhere_is_never_faster_than_its_peers() -> None:
    compute_ms = np.array([100.0, 100.0, 150.0, 100.0])
    shown = hidden_compute.shown_share(compute_ms, np.array([0.4, 0.4, 0.08, 0.4]))
    assert compute_ms[2] / 100 * shown[2] == pytest.approx(1.0)
    assert shown[0] == 1
