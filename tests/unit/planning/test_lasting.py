"""How much longer a slowdown lasts: the estimate with censored durations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.errors import InvalidInputError
from falcon_core.planning.lasting import MOST_TAIL_SECONDS, expected_rest_seconds, survival

DURATIONS = st.lists(st.floats(0.0, 1e4), min_size=1, max_size=30)


def test_the_textbook_example() -> None:
    """Check the 6-mercaptopurine arm of Freireich's trial (1963), Kaplan and Meier's usual example."""
    ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    shares = {time: round(share, 3) for time, share in survival(ended, censored)}
    assert shares == {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}


def test_without_censoring_the_rest_is_the_mean_of_what_the_longer_ones_had_left() -> None:
    assert expected_rest_seconds(0.0, [10.0, 20.0, 60.0]) == pytest.approx(30.0)
    assert expected_rest_seconds(15.0, [10.0, 20.0, 60.0]) == pytest.approx((5 + 45) / 2)
    assert expected_rest_seconds(20.0, [10.0, 20.0, 60.0]) == pytest.approx(40.0)
    assert expected_rest_seconds(60.0, [10.0, 20.0, 60.0]) == 0.0
    assert expected_rest_seconds(5.0, []) == 0.0


@settings(deadline=None, derandomize=True)
@given(DURATIONS, st.floats(0.0, 1e4))
def test_the_rest_agrees_with_the_plain_mean(ended: list[float], age: float) -> None:
    longer = [seconds - age for seconds in ended if seconds > age]
    wanted = sum(longer) / len(longer) if longer else 0.0
    assert expected_rest_seconds(age, ended) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_censored_durations_are_neither_left_out_nor_taken_for_whole() -> None:
    """Check on exponential durations, each cut at a random time, that the mean is found where both mistakes miss it."""
    drawn = np.random.default_rng(1)
    whole, cuts = drawn.exponential(100.0, 20_000), drawn.uniform(20.0, 400.0, 20_000)
    ended, censored = whole[whole <= cuts], cuts[whole > cuts]
    found = expected_rest_seconds(0.0, np.round(ended, 0).tolist(), np.round(censored, 0).tolist())
    assert found == pytest.approx(100.0, rel=0.03)
    assert ended.mean() < 90.0
    assert np.minimum(whole, cuts).mean() < 90.0


def test_an_action_at_one_age_does_not_hide_that_slowdowns_are_long() -> None:
    """Check that the rest is found, to the accuracy of few slowdowns, where every long one was cut at the same age."""
    whole = np.random.default_rng(2).exponential(1000.0, 2_000)
    ended = [seconds for seconds in whole.tolist() if seconds < 600.0]
    for age in (0.0, 300.0, 600.0, 900.0):
        assert expected_rest_seconds(age, ended, [600.0] * (2_000 - len(ended))) == pytest.approx(1000.0, rel=0.1)


def test_a_tail_that_nobody_has_seen_is_not_longer_than_what_was_published() -> None:
    assert expected_rest_seconds(600.0, [], [600.0] * 10) == MOST_TAIL_SECONDS
    assert expected_rest_seconds(600.0, [1.0], [5e6] * 10) < 5e6 + MOST_TAIL_SECONDS
    assert expected_rest_seconds(700.0, [1.0], [600.0] * 1000) == MOST_TAIL_SECONDS


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_a_duration_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(InvalidInputError):
        survival([1.0], [bad])


SECONDS = st.floats(0.0, 1e5)


@settings(max_examples=40)
@given(ended=st.lists(SECONDS, max_size=20), cut=st.lists(SECONDS, max_size=20), age=st.floats(0.0, 2e5))
def test_the_rest_is_at_most_what_was_seen_and_the_longest_tail(
    ended: list[float], cut: list[float], age: float
) -> None:
    longest = max([*ended, *cut], default=0.0)
    assert 0.0 <= expected_rest_seconds(age, ended, cut) <= max(0.0, longest - age) + MOST_TAIL_SECONDS + 1e-6


@settings(max_examples=40)
@given(
    ended=st.lists(SECONDS, max_size=20), cut=st.lists(SECONDS, min_size=1, max_size=10), age=SECONDS, longer=SECONDS
)
def test_a_slowdown_that_was_cut_short_later_never_makes_the_rest_shorter(
    ended: list[float], cut: list[float], age: float, longer: float
) -> None:
    after = expected_rest_seconds(age, ended, [cut[0] + longer, *cut[1:]])
    assert after >= expected_rest_seconds(age, ended, cut) - 1e-6
