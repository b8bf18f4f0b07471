"""The median rule: who stands out from the others, for C iterations in a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.changepoint.median_rule import Series, compared, leave_one_out_medians, outliers


def series(*rows: list[int], iterations: int = 100) -> list[Series]:
    return [Series(rank=rank, iterations=iterations, values_ns=row) for rank, row in enumerate(rows)]


def named(found: list[Series], consecutive: int = 5) -> list[int]:
    return [outlier.rank for outlier in outliers(found, factor=1.5, consecutive=consecutive)]


def test_one_straggler_of_three() -> None:
    found = outliers(series([200] * 8, [210] * 8, [580] * 8), factor=1.5, consecutive=5)
    assert [outlier.rank for outlier in found] == [2]
    assert found[0].ratio == pytest.approx(580 / 205)
    assert (found[0].value_ns, found[0].peers_ns) == (580, 205)


def test_a_group_of_two_has_a_straggler_too() -> None:
    assert named(series([100] * 5, [160] * 5)) == [1]


def test_one_rank_alone_has_nobody_to_be_compared_with() -> None:
    assert named(series([100] * 5)) == []


def test_one_good_iteration_in_the_row_acquits() -> None:
    assert named(series([100] * 8, [100] * 8, [300, 300, 300, 300, 100, 300, 300, 300])) == []
    assert named(series([100] * 8, [100] * 8, [100, 300, 300, 100, 300, 300, 300, 300]), consecutive=4) == [2]


def test_exactly_the_factor_is_no_outlier() -> None:
    assert named(series([100] * 5, [100] * 5, [150] * 5)) == []


def test_compound_stragglers_are_peeled_off_worst_first() -> None:
    assert named(series([100] * 5, [400] * 5, [100] * 5, [250] * 5, [100] * 5)) == [1, 3]
    assert named(series([100] * 5, [300] * 5, [400] * 5)) == [2, 1]


def test_work_that_varies_alike_for_all_ranks_is_compared_iteration_by_iteration() -> None:
    work = [100, 900, 120, 880, 110, 870, 130, 860]
    assert named(series(work, work, work)) == []
    late = [Series(rank=0, iterations=8, values_ns=work), Series(rank=1, iterations=7, values_ns=work[:7])]
    ranks, values = compared(late, 5)
    assert ranks == [0, 1]
    assert values.tolist() == [work[2:7], work[2:7]]


def test_reports_that_do_not_overlap_are_compared_by_their_newest() -> None:
    far = [
        Series(rank=0, iterations=1000, values_ns=[100] * 6),
        Series(rank=1, iterations=900, values_ns=[100] * 6),
        Series(rank=2, iterations=800, values_ns=[300] * 6),
    ]
    assert named(far) == [2]


def test_a_rank_with_too_few_values_is_left_out() -> None:
    assert named([*series([100] * 5, [300] * 5), Series(rank=9, iterations=3, values_ns=[900] * 3)]) == [1]


@given(
    st.lists(
        st.lists(st.integers(1, 10**9), min_size=4, max_size=4),
        min_size=2,
        max_size=9,
    )
)
def test_leave_one_out_is_the_median_of_the_others(rows: list[list[int]]) -> None:
    values = np.asarray(rows, dtype=np.float64)
    expected = [np.median(np.delete(values, row, axis=0), axis=0) for row in range(len(rows))]
    np.testing.assert_allclose(leave_one_out_medians(values), expected)


@given(st.integers(2, 40), st.integers(0, 39), st.randoms(use_true_random=False))
def test_noise_below_the_factor_names_nobody_and_a_real_straggler_is_found(size: int, who: int, random: object) -> None:
    generator = np.random.default_rng(size * 100 + who)
    rows = generator.integers(95, 106, size=(size, 8))
    assert named(series(*rows.tolist())) == []
    rows[who % size] *= 3
    assert named(series(*rows.tolist())) == [who % size]


def peeled_one_by_one(values: np.ndarray, factor: float) -> list[int]:
    """Apply the rule as it is defined, in O(stragglers × n log n): take the worst rank away, and look again."""
    left = list(range(len(values)))
    peeled = []
    while len(left) >= 2:
        medians = leave_one_out_medians(values[left])
        out = np.all((values[left] > factor * medians) & (medians > 0), axis=1)
        if not out.any():
            break
        ratios = np.where(out, np.median(values[left] / np.maximum(medians, 1.0), axis=1), 0.0)
        peeled.append(left.pop(int(np.argmax(ratios))))
    return peeled


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(1, 40) | st.integers(1, 10**6), min_size=width, max_size=width), max_size=24
        )
    ),
    st.sampled_from([1.0, 1.01, 1.3, 1.5, 1.9, 2.5]),
)
@settings(max_examples=400)
def test_peeling_together_finds_whom_peeling_one_by_one_finds(rows: list[list[int]], factor: float) -> None:
    values = np.asarray(rows, dtype=np.float64)
    expected = peeled_one_by_one(values, factor)
    found = outliers(series(*rows), factor=factor, consecutive=len(rows[0]) if rows else 1)
    assert {outlier.rank for outlier in found} == set(expected)
    if not found:
        return
    peers = np.median(np.delete(values, expected, axis=0), axis=0)
    assert [outlier.ratio for outlier in found] == sorted((outlier.ratio for outlier in found), reverse=True)
    for outlier in found:
        assert outlier.ratio == np.median(values[outlier.rank] / peers)
        assert (outlier.value_ns, outlier.peers_ns) == (int(np.median(values[outlier.rank])), int(np.median(peers)))


@pytest.mark.parametrize("slow", [1, 200, 4999])
def test_a_large_group(slow: int) -> None:
    generator = np.random.default_rng(slow)
    rows = generator.normal(100e6, 1e6, size=(10_000, 5)).astype(np.int64)
    culprits = set(generator.choice(10_000, slow, replace=False).tolist())
    rows[sorted(culprits)] *= 2
    assert {outlier.rank for outlier in outliers(series(*rows.tolist()), factor=1.5, consecutive=5)} == culprits


def test_a_median_of_zero_exposes_nobody() -> None:
    assert named(series([0] * 5, [0] * 5, [0] * 5, [7] * 5)) == []
    assert named(series([0] * 5, [100] * 5, [300] * 5, [400] * 5, [500] * 5)) == [4, 3, 2]
    assert named(series([0] * 5, [0] * 5, [100] * 5, [200] * 5, [300] * 5)) == [4]


def test_the_others_of_nobody() -> None:
    with pytest.raises(ValueError, match="at least two"):
        leave_one_out_medians(np.ones((1, 3)))
