"""Who sets the pace of a job whose groups of ranks meet rarely."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.signals.job.pace import behind, pace_ns

FAST, SLOW = 1e9, 1.5e9


def _behind(times: list[float], slow: list[int], before: float = FAST) -> list[int]:
    has_onset = np.isin(np.arange(len(times)), slow)
    return behind(np.array(times), np.where(has_onset, before, np.inf)).tolist()


def test_a_group_with_an_onset_and_longer_iterations_than_all_others_is_behind() -> None:
    assert _behind([FAST] * 4 + [SLOW] * 4 + [FAST] * 8, [4, 5, 6, 7]) == [4, 5, 6, 7]


def test_half_of_the_ranks_may_be_behind_and_more_are_the_whole_job() -> None:
    assert _behind([FAST] * 4 + [SLOW] * 4, [4, 5, 6, 7]) == [4, 5, 6, 7]
    assert _behind([FAST] * 2 + [SLOW] * 6, list(range(2, 8))) == []


def test_of_two_slow_groups_the_slowest_sets_the_pace() -> None:
    assert _behind([FAST] * 4 + [1.3e9] * 2 + [SLOW] * 2, [4, 5, 6, 7]) == [6, 7]


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        ([FAST] * 4 + [SLOW] * 4, []),  # they always took so long
        ([FAST] * 4 + [SLOW] * 4, [5]),  # an onset of one rank alone is its own noise
        ([FAST] * 8, [4, 5, 6, 7]),  # equal iteration times: the job is synchronous
        ([FAST] * 4 + [SLOW] * 2 + [1.49e9] * 2, [4, 5]),  # another group is as slow by nature
    ],
    ids=["no onset", "one rank", "synchronous", "another group"],
)
def test_nobody_is_behind(times: list[float], slow: list[int]) -> None:
    assert _behind(times, slow) == []


def test_an_agent_that_takes_two_iterations_for_one_hides_no_slow_group() -> None:
    assert _behind([FAST] * 7 + [2 * FAST] + [SLOW] * 2, [8, 9]) == [8, 9]
    assert pace_ns(np.array([FAST, 1.1e9, FAST, 2 * FAST])) == 1.1e9


def test_agents_that_take_two_iterations_for_one_are_no_slow_group() -> None:
    assert _behind([FAST] * 6 + [2.1 * FAST] * 2, [6, 7], before=2 * FAST) == []


@given(
    noise=st.lists(st.floats(0.98, 1.02), min_size=4, max_size=64),
    onsets=st.sets(st.integers(0, 63)),
)
def test_in_a_synchronous_job_no_rank_is_behind_whoever_reports_an_onset(noise: list[float], onsets: set[int]) -> None:
    assert _behind([FAST * factor for factor in noise], sorted(onsets)) == []
