"""Medians of many rows at once."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from falcon_core.stats.medians import Table

ROWS = [[5, 1, 9, 4], [7], [2, 8, 3], [], [6, 6]]
KNOWN = np.array([0, 1, 2, 4])


@pytest.mark.parametrize("newest", [None, 1, 2, 3, 8])
def test_rows_of_different_lengths_have_the_medians_of_their_newest_values(newest: int | None) -> None:
    expected = [median(ROWS[row][-(newest or 8) :]) for row in KNOWN]
    assert Table(ROWS).medians(newest, KNOWN).tolist() == expected
    assert Table(ROWS)[KNOWN].medians(newest).tolist() == expected, "and so has a table of these rows"


def test_the_newest_values_of_longer_rows_are_those_at_the_end() -> None:
    assert Table(ROWS)[np.array([0, 2])].newest(2).tolist() == [[9, 4], [8, 3]]
    assert Table(ROWS)[np.array([True, False, True, False, True])].newest(1).tolist() == [[4], [3], [6]]


def test_values_before_a_place_are_those_that_a_slice_takes() -> None:
    table, ends = Table([[5, 1, 9, 4], [2, 8, 3], [7, 6]]), np.array([3, 3, 2])
    assert table.until(ends, 2).tolist() == [[1, 9], [8, 3], [7, 6]]
    assert table.until(table.lengths, 2).tolist() == table.newest(2).tolist()
