"""What calls hide of a computation while they run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from falcon_core.signals.job import hidden_compute
from falcon_core.signals.job.hidden_compute import FirstStretches, Growth


def growth(own: Growth, peers: Growth, iteration: float) -> float:
    """Return the growth of a rank whose healthy computation takes half of an iteration."""
    return hidden_compute.growth(own, peers, iteration, compute_share=0.5, tolerance=0.05)


def test_where_calls_hide_computation_a_rank_has_grown_by_what_the_iteration_has() -> None:
    assert growth(Growth(1.7), Growth(0.8), 1.26) == 1.26


def test_a_rank_has_grown_no_more_than_its_own_computation() -> None:
    assert growth(Growth(1.2), Growth(0.8), 1.5) == 1.2


@pytest.mark.parametrize("peers", [0.97, 1.0, 1.3])
def test_where_the_peers_compute_as_before_calls_hide_nothing(peers: float) -> None:
    assert growth(Growth(1.7), Growth(peers), 1.26) == 1.7


def test_a_longest_stretch_that_is_as_long_as_before_at_the_peers_shows_the_growth() -> None:
    """Check a job whose healthy iterations contain waits for noise, so that they grow by less."""
    assert growth(Growth(1.9, longest=1.48), Growth(0.7, longest=1.0), 1.32) == 1.48
    assert growth(Growth(1.9, longest=1.44), Growth(0.7, longest=0.96), 1.32) == pytest.approx(1.5)


def test_a_longest_stretch_of_which_calls_hide_a_part_shows_nothing() -> None:
    assert growth(Growth(3.5, longest=2.4), Growth(0.3, longest=0.6), 1.27) == 1.27


def test_lighter_work_of_all_ranks_hides_nothing_of_the_slow_one() -> None:
    """Check 2 x of 0.9 of the work, in a job of as much communication, nothing of which is hidden."""
    assert growth(Growth(1.8, longest=1.8), Growth(0.9, longest=0.9), 1.4) == pytest.approx(2.0)


def test_stretches_that_shrink_alike_are_no_lighter_work_where_the_rank_gained_more_than_the_iteration() -> None:
    assert growth(Growth(1.8, longest=1.8), Growth(0.9, longest=0.9), 1.25) == 1.25


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


def first_stretches(places: list[int], stretches_ms: list[float], calls_ms: list[float]) -> FirstStretches:
    """Return the first stretches of ranks that compute as in the tests of FSDP of few layers, below."""
    compute_ms = np.array(SHALLOW_MS)
    return FirstStretches(np.array(places), np.array(stretches_ms) / compute_ms, np.array(calls_ms) / compute_ms)


SHALLOW_MS = [71.0, 72.0, 702.0, 70.0]  # measured with simulated FSDP of eight layers, and a rank of 1.3 x
SHALLOW_SHARES = np.array([31.0, 31.4, 68.5, 30.9]) / SHALLOW_MS


def test_the_first_stretch_shows_the_ratio_where_calls_hide_a_part_of_the_longest() -> None:
    compute_ms = np.array(SHALLOW_MS)
    first = first_stretches([1, 1, 1, 1], [18.3, 18.3, 27.9, 18.3], [13.0, 13.0, 13.0, 13.0])
    shown = hidden_compute.shown_share(compute_ms, SHALLOW_SHARES, lambda: first)
    assert shown[2] * 702 / 71 == pytest.approx(1.3, abs=0.02)


@pytest.mark.parametrize(
    "first",
    [
        first_stretches([1, 1, 1, 1], [18.3, 18.3, 27.9, 18.3], [33.0, 33.0, 13.0, 33.0]),  # peers wait in the call
        first_stretches([1, 1, 2, 1], [18.3, 18.3, 27.9, 18.3], [13.0, 13.0, 13.0, 13.0]),
    ],
)
def test_a_first_stretch_to_which_ranks_do_not_come_together_shows_nothing(first: FirstStretches) -> None:
    compute_ms = np.array(SHALLOW_MS)
    plain = hidden_compute.shown_share(compute_ms, SHALLOW_SHARES)
    assert hidden_compute.shown_share(compute_ms, SHALLOW_SHARES, lambda: first)[2] == plain[2]
