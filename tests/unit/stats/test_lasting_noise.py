"""Noise that lasts: how far means of it lie apart."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.stats.lasting_noise import mean_variance


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("samples", [1, 5, 40])
def test_the_variance_of_a_mean_is_the_mean_of_all_covariances(samples: int, correlation: float) -> None:
    places = np.arange(samples)
    covariances = correlation ** np.abs(places[:, None] - places)
    assert mean_variance(samples, correlation) == pytest.approx(covariances.mean())
