"""The rate of false names that ``evaluation.names`` measures, in a size that a test can play: few ranks above all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evaluation.names.__main__ import most_by_chance
from evaluation.names.looks import SLOW_RANK, looks, noise
from tests.unit.recovery.series import Job


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 17, 64])
@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.95])
def test_of_few_ranks_noise_names_none_that_is_healthy(ranks: int, correlation: float) -> None:
    rng = np.random.default_rng(44)
    drawn = (looks(rng, ranks, deviation, correlation) for deviation in (0.04, 0.08, 0.12) for _ in range(4))
    assert sum(map(bool, itertools.chain.from_iterable(drawn))) <= most_by_chance(4 * 3 * 36 * 1e-5)


@pytest.mark.parametrize(("ranks", "deviation", "seed"), [(8, 0.08, 7), (16, 0.08, 7), (16, 0.12, 7)])
def test_a_healthy_job_of_few_ranks_with_noise_that_lasts_names_none(ranks: int, deviation: float, seed: int) -> None:
    """Check the whole way, from the agents' onsets on: noise itself makes iterations long for a while."""
    factors = np.exp(noise(np.random.default_rng(seed), 3001, ranks, deviation, 0.95))
    job = Job(lambda iteration: factors[iteration], ranks=ranks, noise=0.0).run(3000)
    assert any(look.state.slowdowns for look in job.looks)
    assert job.named == []


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize(("deviation", "slowdown"), [(0.01, 1.3), (0.02, 1.3), (0.04, 1.5), (0.08, 2.0)])
def test_one_of_few_ranks_that_is_slow_is_named_at_nearly_every_look(
    ranks: int, correlation: float, deviation: float, slowdown: float
) -> None:
    rng = np.random.default_rng(44)
    named = list(looks(rng, ranks, deviation, correlation, slowdown=slowdown))[3:]
    assert sum(SLOW_RANK in each for each in named) >= 0.9 * len(named)


@pytest.mark.parametrize(("mean", "most"), [(1e-6, 0), (0.01, 1), (0.6, 4), (10.0, 21)])
def test_rare_events_that_chance_explains(mean: float, most: int) -> None:
    assert most_by_chance(mean) == most
