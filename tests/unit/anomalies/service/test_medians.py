"""Medians of arrays with gaps are numpy's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from falcon_anomaly.detectors.medians import block_medians, median


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 7), (4, 9), (5, 1), (6, 6)])
def test_medians_leave_gaps_out_as_numpys_do(shape: tuple[int, int], axis: int, share: float) -> None:
    random = np.random.default_rng(5)
    values = np.where(random.uniform(size=shape) < share, np.nan, random.normal(size=shape))
    with warnings.catch_warnings(action="ignore"):
        wanted = np.nanmedian(values, axis=axis)
    np.testing.assert_array_equal(median(values, axis), wanted)


def test_what_has_too_few_values_has_no_median() -> None:
    values = np.array([[1.0, np.nan, 3.0], [1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(median(values, 1, least=3), [np.nan, 2.0])


def test_blocks_overlap_by_half_and_a_short_series_is_one_block() -> None:
    np.testing.assert_array_equal(block_medians(np.arange(8.0)[None], 4), [[1.5, 3.5, 5.5]])
    np.testing.assert_array_equal(block_medians(np.array([[1.0, 2.0]]), 4), [[1.5]])
