"""The detectors agree with the libraries that define them: scikit-learn, stumpy, and a textbook's recursion."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

# Compiling stumpy takes a minute; as plain Python it needs a second for series of this length.
os.environ["NUMBA_DISABLE_JIT"] = "1"

import stumpy
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import datasets
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor

from falcon_anomaly.detectors import local_outliers, matrix_profile, warping

Floats = npt.NDArray[np.float64]
LENGTH = 16


def tables() -> Iterator[tuple[str, Floats, npt.NDArray[np.bool_]]]:
    """Yield nine tables: points, and which of them are the rare class."""
    random = np.random.default_rng(1)
    for name in ("iris", "wine", "breast_cancer", "digits"):
        points, kinds = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield name, points, kinds == kinds.max()
    points, target = datasets.load_diabetes(return_X_y=True)
    yield "diabetes", points, target > np.quantile(target, 0.9)
    for dimensions in (2, 5, 20):
        points = random.normal(size=(700, dimensions))
        rare = random.uniform(size=700) < 0.05
        points[rare] *= 3
        yield f"normal {dimensions}", points, rare
    points = np.concatenate([np.zeros((40, 3)), random.normal(size=(200, 3)), np.ones((5, 3))])
    yield "copies", points, np.arange(245) >= 240


@pytest.mark.parametrize(("points", "rare"), [pytest.param(p, r, id=name) for name, p, r in tables()])
def test_local_outlier_factors_are_those_of_scikit_learn(points: Floats, rare: npt.NDArray[np.bool_]) -> None:
    for neighbours in (5, 20):
        theirs = -LocalOutlierFactor(n_neighbors=neighbours).fit(points).negative_outlier_factor_
        ours = local_outliers.reference(points, neighbours).factors
        assert abs(roc_auc_score(rare, ours) - roc_auc_score(rare, theirs)) <= 0.005
        # Among equal distances each library takes another neighbour: whole numbers and copies have such.
        if neighbours == 20 and len(np.unique(points, axis=0)) == len(points) and (points % 1).any():
            np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_new_points_have_scikit_learns_factors() -> None:
    random = np.random.default_rng(2)
    points, new = random.normal(size=(500, 8)), random.normal(0, 2, size=(60, 8))
    theirs = -LocalOutlierFactor(n_neighbors=20, novelty=True).fit(points).score_samples(new)
    np.testing.assert_allclose(local_outliers.outlier_factors(local_outliers.reference(points), new), theirs, rtol=1e-9)


def series() -> dict[str, Floats]:
    random = np.random.default_rng(3)
    times = np.arange(140.0)
    walk = np.cumsum(random.normal(size=140))
    flat = np.where((times // 40) % 2 == 0, 5.0, random.normal(5.0, 1.0, 140))
    return {
        "noise": random.normal(size=140),
        "walk": walk,
        "sine": 1e6 + np.sin(times / 5) + random.normal(0, 0.05, 140),
        "flat stretches": flat,
    }


@pytest.mark.parametrize("name", series())
def test_each_stretchs_neighbours_are_those_of_stumpy(name: str) -> None:
    values = series()[name]
    theirs = stumpy.stump(values, LENGTH, k=3)[:, :3].astype(float)
    for begin in range(len(values) - LENGTH + 1):
        found = matrix_profile.distances(values, begin, LENGTH)
        ours = matrix_profile.nearest(found, begin, LENGTH, 3)
        np.testing.assert_allclose(ours, theirs[begin], atol=2e-4)


def test_the_newest_stretch_of_many_series_is_scored_at_once() -> None:
    many = np.stack(list(series().values()))
    together = matrix_profile.newest_distance(many, LENGTH)
    alone = [stumpy.stump(values, LENGTH, k=3)[-1, 2] for values in many]
    np.testing.assert_allclose(together, np.array(alone, dtype=float), atol=2e-4)


def textbook_distance(left: list[float], right: list[float], band: int) -> float:
    """Compute the warped distance by its definition, one cell after the other."""
    windows = len(left)
    cost = {(-1, -1): 0.0}
    for row in range(windows):
        for column in range(windows):
            if abs(row - column) <= band:
                before = [
                    cost.get(at, math.inf) for at in ((row - 1, column), (row, column - 1), (row - 1, column - 1))
                ]
                cost[row, column] = (left[row] - right[column]) ** 2 + min(before)
    return math.sqrt(cost[windows - 1, windows - 1])


numbers = st.floats(-100, 100, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    pair=st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.lists(numbers, min_size=n, max_size=n)] * 2)),
    band=st.integers(0, 5),
)
def test_warped_distances_are_those_of_the_textbook(pair: tuple[list[float], list[float]], band: int) -> None:
    left, right = np.array([pair[0]]), np.array([pair[1]])
    assert warping.distances(left, right, band)[0] == pytest.approx(textbook_distance(*pair, band), rel=1e-9, abs=1e-9)


def test_a_rank_apart_is_found_among_ranks_that_are_only_late() -> None:
    times = np.arange(60.0)
    late = np.stack([np.sin((times + shift) / 4) for shift in (0, 1, 2, 0, 1)])
    late[3] += 3.0
    scores = warping.isolation(late[None])[0]
    assert scores.argmax() == 3
    assert scores[3] > 5
    assert np.delete(scores, 3).max() < 2.5
