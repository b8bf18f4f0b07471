"""Order statistics are numpy's, whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.stats.order import are_among, are_in, counts_of, median_of, medians_of, tenths_of

VALUES = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=40).map(np.array)


@given(VALUES)
def test_a_median_and_tenths_are_as_numpy_has_them(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    assert median_of(values) == pytest.approx(float(np.median(values)))
    assert tenths_of(values) == pytest.approx(tuple(np.quantile(values, (0.1, 0.9))), abs=1e-3)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1), st.data())
def test_medians_along_an_axis_are_as_numpy_has_them(rows: int, columns: int, axis: int, data: st.DataObject) -> None:
    row = st.lists(st.floats(-1e12, 1e12), min_size=columns, max_size=columns)
    values = np.array(data.draw(st.lists(row, min_size=rows, max_size=rows)))
    assert medians_of(values, axis).tolist() == pytest.approx(np.median(values, axis=axis).tolist())


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40).map(np.array))
def test_values_are_counted_as_numpy_does(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    for mine, numpys in zip(counts_of(values), np.unique(values, return_counts=True), strict=True):
        assert mine.tolist() == numpys.tolist()


NUMBERS = st.lists(st.integers(-9, 9), min_size=1, max_size=40).map(np.array)


@given(NUMBERS, NUMBERS)
def test_members_are_found_as_numpy_finds_them(
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]], those: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    assert are_among(numbers, those).tolist() == np.isin(numbers, those).tolist()


def test_numbers_in_a_collection_are_those_that_it_holds() -> None:
    numbers = np.array([4, -1, 7, 4], dtype=np.int64)
    assert are_in(numbers, {4: "", 9: ""}).tolist() == [True, False, False, True]
    assert are_in(numbers, []).tolist() == [False] * 4
