"""A board keeps the newest windows of each rank and metric, and nothing makes it grow beyond its bound."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_anomaly.series.board import LEAST_WINDOWS, MOST_METRICS, MOST_RANKS, MOST_VALUES, WINDOWS, Board, Phase


def value(number: float) -> tuple[float, float, float]:
    return number, number - 1, number + 1


def test_windows_come_back_oldest_first_with_nan_where_nothing_came() -> None:
    board = Board(2)
    for slot in (1, 2, 4):
        board.add(1, 10.0 * slot, {"cpu": value(float(slot))})
    newest = board.medians("cpu")[:, -4:]
    assert np.isnan(newest[0]).all()
    np.testing.assert_array_equal(newest[1], np.float32([1, 2, np.nan, 4]))
    np.testing.assert_array_equal(board.minima("cpu")[1, -4:], np.float32([0, 1, np.nan, 3]))
    np.testing.assert_array_equal(board.maxima("cpu")[1, -4:], np.float32([2, 3, np.nan, 5]))
    assert board.newest_seconds == 40.0


def test_what_comes_late_finds_its_window_and_what_is_older_than_the_ring_is_refused() -> None:
    board = Board(1)
    board.add(0, 10.0 * WINDOWS, {"cpu": value(5.0)})
    board.add(0, 10.0, {"cpu": value(1.0)})
    assert board.medians("cpu")[0, 0] == 1.0
    board.add(0, 10.0 * (WINDOWS + 1), {"cpu": value(6.0)})
    board.add(0, 10.0, {"cpu": value(1.0)})
    assert board.refused == 1
    assert np.isnan(board.medians("cpu")[0, 0])


@settings(max_examples=50, deadline=None)
@given(slots=st.lists(st.integers(1, 3 * WINDOWS), min_size=1, max_size=40))
def test_the_ring_holds_what_a_dictionary_of_windows_would(slots: list[int]) -> None:
    board, expected, newest = Board(1), dict[int, float](), 0
    for slot in slots:
        board.add(0, 10.0 * slot, {"cpu": value(float(slot))})
        newest = max(newest, slot)
        expected[slot] = float(slot)
    held = board.medians("cpu")[0]
    for at in range(WINDOWS):
        slot = newest - WINDOWS + 1 + at
        wanted = expected.get(slot, math.nan)
        assert held[at] == wanted or (math.isnan(wanted) and math.isnan(held[at]))


def test_windows_are_other_until_they_are_marked_and_a_phase_covers_what_it_overlaps() -> None:
    board = Board(1)
    board.set_phase(0.0, 100.0, Phase.TRAINING)
    board.set_phase(35.0, 41.0, Phase.OTHER)
    assert board.training()[-10:].tolist() == [True] * 3 + [False] * 2 + [True] * 5
    assert not board.training()[:-10].any()


def test_a_flood_of_names_ranks_and_numbers_ends_at_the_bound() -> None:
    board = Board(4)
    for number in range(3 * MOST_METRICS):
        board.add(0, 10.0, {f"metric{number}": value(1.0)})
    board.add(4, 10.0, {"metric0": value(1.0)})
    board.add(-1, 10.0, {"metric0": value(1.0)})
    board.add(0, math.nan, {"metric0": value(1.0)})
    board.add(0, 10.0, {"x" * 65: value(1.0), "": value(1.0)})
    assert len(board.metrics) == MOST_METRICS
    assert board.refused == 2 * MOST_METRICS + 5


def test_a_job_of_ten_thousand_ranks_takes_no_more_memory_than_the_bound() -> None:
    board = Board(10 * MOST_RANKS)
    assert board.ranks == MOST_RANKS
    assert LEAST_WINDOWS <= board.windows < WINDOWS
    for number in range(MOST_METRICS):
        board.add(0, 10.0, {f"metric{number}": value(1.0)})
    assert board.byte_size <= 4 * MOST_VALUES + board.windows
