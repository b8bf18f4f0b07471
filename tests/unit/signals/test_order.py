"""Order statistics are numpy's, whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.signals.order import are_among, counts_of, median_of, tenths_of

VALUES = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=40).map(np.array)


@given(VALUES)
def test_a_median_and_tenths_are_as_numpy_has_them(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    assert median_of(values) == pytest.approx(float(np.median(values)))
    assert tenths_of(values) == pytest.approx(tuple(np.quantile(values, (0.1, 0.9))), abs=1e-3)


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
