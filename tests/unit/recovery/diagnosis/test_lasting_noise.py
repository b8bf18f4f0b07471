"""Noise that lasts for many iterations: of many ranks no healthy one is named, and a slow one still is."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from falcon_core.recovery.diagnosis.outstanding import LEAST_SCATTERED, noise_share
from falcon_core.recovery.diagnosis.stragglers import each_straggler, stragglers
from falcon_core.recovery.model.observation import RankSeen
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS
from tests.unit.recovery.seen import MS, POLICY, rank, replace, unnamed

SLOW_RANK = 3
RANKS = [rank(number) for number in range(4000)]


def noise(rng: np.random.Generator, ranks: int, deviation: float, correlation: float) -> npt.NDArray[np.float64]:
    """Return factors of a computation, of which each inherits a share of the last one's deviation: [ranks, 16]."""
    fresh = rng.normal(0.0, deviation, (RECENT_ITERATIONS, ranks))
    fresh[1:] *= np.sqrt(1 - correlation**2)
    for iteration in range(1, RECENT_ITERATIONS):
        fresh[iteration] += correlation * fresh[iteration - 1]
    return np.asarray(np.exp(fresh.T))


def reported(factors: npt.NDArray[np.float64], slowdown: float = 1.0) -> list[RankSeen]:
    """Return the ranks with so much longer computations, one of them slower by ``slowdown``."""
    compute_ns = 200 * MS * factors
    compute_ns[SLOW_RANK] *= slowdown
    known = zip(RANKS, compute_ns.astype(np.int64).tolist(), strict=False)
    times = [650 * MS] * RECENT_ITERATIONS
    return [replace(each, sent=replace(each.sent, compute_ns=own, iteration_ns=times)) for each, own in known]


def found(ranks: list[RankSeen]) -> set[int]:
    """Return who stands out while the job is slow: weakly, strongly, or because another rank is."""
    policy = replace(POLICY, world_size=len(ranks))
    named = stragglers(ranks, policy, None) + stragglers(ranks, policy, unnamed(280 * MS))
    named += each_straggler(ranks, policy, unnamed(650 * MS))
    return {out.rank for out, _ in named}


@pytest.mark.parametrize("deviation", [0.04, 0.06, 0.08, 0.12])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.95])
@pytest.mark.parametrize(("ranks", "draws"), [(64, 8), (256, 2), (1000, 1)])
def test_of_healthy_ranks_none_is_named_however_many_there_are(
    ranks: int, draws: int, correlation: float, deviation: float
) -> None:
    rng = np.random.default_rng(44)
    for _ in range(draws):
        assert found(reported(noise(rng, ranks, deviation, correlation))) == set()


def test_noise_that_lasts_for_a_whole_report_names_none_of_thousands_of_ranks() -> None:
    """Check draws in which a threshold in times, and not in their logarithms, names a healthy rank."""
    for seed in (15, 23):
        assert found(reported(noise(np.random.default_rng(seed), 4000, 0.12, 0.999))) == set()


def test_false_names_do_not_grow_with_the_number_of_ranks() -> None:
    """Check how often noise puts any healthy rank beyond the share that is noise, from 64 ranks to 10,000."""
    rng, rates = np.random.default_rng(44), []
    for ranks, draws in ((64, 4000), (1000, 300), (10_000, 100)):
        beyond = 0
        for _ in range(draws):
            growth = np.exp(rng.normal(0.0, 0.12, ranks))
            typical = float(np.median(growth))
            beyond += growth.max() >= (1 + noise_share(growth, typical)) * typical
        rates.append(beyond / draws)
    assert rates[0] < 0.002
    assert rates[1:] == [0.0, 0.0]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.95])
@pytest.mark.parametrize(("deviation", "slowdown"), [(0.04, 1.5), (0.08, 2.0), (0.12, 3.0)])
@pytest.mark.parametrize("ranks", [64, 1000])
def test_a_slow_rank_stands_out_of_the_noise_alone(
    ranks: int, deviation: float, slowdown: float, correlation: float
) -> None:
    rng = np.random.default_rng(44)
    assert found(reported(noise(rng, ranks, deviation, correlation), slowdown)) == {SLOW_RANK}


def test_noise_of_many_ranks_reaches_a_little_farther_than_that_of_few() -> None:
    deviations = [np.random.default_rng(1).normal(0.0, 0.1, ranks) for ranks in (1000, 10_000)]
    few, many = (math.log1p(noise_share(np.exp(each), 1.0)) for each in deviations)
    assert 0.5 < few < many < 0.65
    assert noise_share(np.full(LEAST_SCATTERED - 1, 2.0), 1.0) == 0.0
    assert noise_share(np.zeros(LEAST_SCATTERED), 0.0) == 0.0, "ranks that compute nothing"


@pytest.mark.parametrize("ranks", [64, 128])
def test_a_weakly_slow_node_does_not_hide_a_strongly_slow_one(ranks: int) -> None:
    """Eight ranks of a node are 1.25 times as slow: of 128 they are more than a twentieth, and stretch the tail."""
    factors = noise(np.random.default_rng(44), ranks, 0.03, 0.5)
    factors[16:24] *= 1.25
    assert SLOW_RANK in found(reported(factors, 1.6))
