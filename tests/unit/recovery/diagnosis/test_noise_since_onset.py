"""Few ranks in much noise: what C iterations cannot show, those since the onset show."""

from __future__ import annotations

import pytest

from falcon_core.recovery.diagnosis.own_excess import since_onset
from falcon_core.recovery.diagnosis.stragglers import each_straggler, stragglers
from falcon_core.recovery.model.observation import RankSeen
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS
from tests.unit.recovery.seen import MS, POLICY, rank, replace, unnamed
from tests.unit.recovery.series import Job, only

SLOW_RANK = 2


def reported(factors: list[float], newest: float, *, error: float | None = 0.012) -> list[RankSeen]:
    """Return ranks whose medians since the onset are as much longer; one computed so in its ``newest`` iterations."""
    times = [650 * MS] * RECENT_ITERATIONS
    ranks = []
    for number, factor in enumerate(factors):
        last = newest if number == SLOW_RANK else 1.0
        sent = replace(
            rank(number).sent,
            compute_ns=[round(200 * MS * last)] * RECENT_ITERATIONS,
            iteration_ns=times,
            healthy_compute_ns=200 * MS,
            healthy_compute_error=0.06,
            slow_compute_ns=None if error is None else round(200 * MS * factor),
            slow_compute_error=error,
        )
        ranks.append(replace(rank(number), sent=sent))
    return ranks


def found(ranks: list[RankSeen]) -> set[int]:
    policy = replace(POLICY, world_size=len(ranks))
    named = stragglers(ranks, policy, unnamed(280 * MS)) + each_straggler(ranks, policy, unnamed(280 * MS))
    return {out.rank for out, _ in named}


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_of_few_is_named_in_noise_that_hides_it_from_every_look(ranks: int, seed: int) -> None:
    """The noise is 8 % a rank and 5 % of all, and the rank computes 1.35 times as long as before."""
    slow = only(1, 1.35, ranks)
    job = Job(
        lambda iteration: slow if iteration > 200 else 1.0, ranks=ranks, noise=0.08, common_noise=0.05, seed=seed
    ).run(320)
    assert {named for named, _ in job.named} == {1}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_in_the_same_noise_no_healthy_rank_is_named_while_the_job_is_slower(ranks: int) -> None:
    for seed in range(4):
        job = Job(
            lambda iteration: 1.3 if iteration > 200 else 1.0, ranks=ranks, noise=0.08, common_noise=0.05, seed=seed
        ).run(500)
        assert job.named == []


def test_it_takes_more_than_the_error_since_the_onset() -> None:
    factors = [1.0, 1.02, 1.4, 0.99]
    assert found(reported(factors, 1.25)) == {SLOW_RANK}
    assert found(reported(factors, 1.25, error=0.08)) == set()
    assert found(reported(factors, 1.25, error=None)) == set()


def test_a_rank_that_is_healthy_again_counts_by_its_newest_iterations() -> None:
    assert found(reported([1.0, 1.02, 1.4, 0.99], 1.1)) == set()


def test_where_few_ranks_report_it_none_is_compared() -> None:
    ranks = reported([1.0, 1.02, 1.4, 0.99], 1.2)
    silent = [replace(each, sent=replace(each.sent, slow_compute_ns=None)) for each in ranks[:2]]
    assert since_onset([[*silent, *ranks[2:]]]).ranks == []
    assert since_onset([ranks]).ranks == [0, 1, 2, 3]
