"""Who is named, with the cause; only ranks that count the same iterations are compared."""

from __future__ import annotations

import warnings

import pytest

from falcon_core.model import Cause
from falcon_core.recovery.diagnosis.own_excess import measured
from falcon_core.recovery.diagnosis.stragglers import comparable
from falcon_core.recovery.model.observation import NodeTrouble
from falcon_core.signals.job.cause import CpuEvidence
from tests.unit.recovery.seen import MS, POLICY, STRAGGLER, locate, rank, replace, seen, unnamed

LAYERS = {"iteration_ns": [25 * MS] * 16, "compute_ns": [20 * MS] * 16, "healthy_compute_ns": 20 * MS}
SLOW = {"compute_ns": [240 * MS] * 16}


def test_a_rank_that_counts_layers_makes_no_straggler_of_the_other_ranks() -> None:
    """Check that the other ranks are not named; by the ratio of computations they would be ten times slower."""
    assert locate(seen(ranks={0: LAYERS}), POLICY) is None
    assert [compared.rank for compared in comparable(seen(ranks={0: LAYERS}).ranks)] == [1, 2]


def test_the_straggler_among_ranks_that_count_alike_is_named_all_the_same() -> None:
    slow = {"compute_ns": [400 * MS] * 16, "iteration_ns": [450 * MS] * 16}
    peers = {"iteration_ns": [450 * MS] * 16, "wait_ns": [200 * MS] * 16}
    found = locate(seen(ranks={0: LAYERS, 1: slow, 2: peers}), POLICY)
    assert found is not None
    assert found.rank == 1
    assert found.peers_compute_ns == 200 * MS


def test_where_no_counter_explains_it_the_nodes_own_report_does() -> None:
    obs = seen(ranks=STRAGGLER)
    hot = NodeTrouble(error_class="GpuOverheated", text="GpuOverheated (condition X: 97 C)", grave=True, slows=True)
    members = [replace(each, trouble=hot) for each in obs.members]
    found = locate(replace(obs, members=members), POLICY)
    assert found is not None
    assert (found.cause, found.node_reports) == (Cause.HARDWARE, hot.text)
    members = [replace(each, trouble=replace(hot, slows=False)) for each in obs.members]
    found = locate(replace(obs, members=members), POLICY)
    assert found is not None
    assert (found.cause, found.node_reports) == (Cause.UNKNOWN, "")


def test_without_a_majority_nobody_is_compared() -> None:
    ranks = [rank(0), rank(1, **LAYERS), rank(2, iteration_ns=[500 * MS] * 16)]
    assert comparable(ranks) == []
    assert comparable(ranks[:2]) == []


@pytest.mark.parametrize("share", [0.8, 1.0, 1.3])
def test_noise_and_reports_of_different_moments_exclude_nobody(share: float) -> None:
    ranks = [rank(0), rank(1, iteration_ns=[int(share * 250 * MS)] * 16), rank(2, iteration_ns=[])]
    assert comparable(ranks) == ranks


def test_no_rank_is_named_by_its_own_excess_while_another_counts_layers() -> None:
    """Check a rank that computes 1.2 × as long, which the median rule does not report.

    The rank that explains the loss is sought only among ranks that count the same iterations.
    """
    slow = unnamed(290 * MS)
    culprit = locate(seen(ranks={1: SLOW}), POLICY, slow)
    assert culprit is not None
    assert culprit.rank == 1
    assert locate(seen(ranks={1: SLOW, 0: LAYERS, 2: LAYERS}), POLICY, slow) is None


def test_stages_of_a_pipeline_are_not_compared_with_each_other() -> None:
    stage = {0: {}, 1: {"compute_ns": [200 * MS] * 16}, 2: {"compute_ns": [600 * MS] * 16}}
    assert locate(seen(ranks=stage), POLICY) is not None
    assert locate(seen(ranks=stage), replace(POLICY, stages=3)) is None


def test_of_two_stragglers_the_slower_is_the_culprit_and_both_are_compared_with_healthy_ranks() -> None:
    culprit = locate(seen(ranks={1: {"compute_ns": [600 * MS] * 16}, 2: {"compute_ns": [800 * MS] * 16}}), POLICY)
    assert culprit is not None
    assert (culprit.rank, culprit.also, culprit.peers_compute_ns) == (2, [1], 200 * MS)


def test_stale_reports_name_nobody() -> None:
    assert locate(seen(ranks={**STRAGGLER, 2: {**STRAGGLER[2], "fresh": False}}), POLICY) is None


def test_the_cause_comes_with_its_evidence() -> None:
    throttled = {**STRAGGLER, 2: {**STRAGGLER[2], "cpu": CpuEvidence(throttled=0.7, healthy_throttled=0.0)}}
    culprit = locate(seen(ranks=throttled), POLICY)
    assert culprit is not None
    assert (culprit.cause, culprit.cause_culprit) == (Cause.CPU_THROTTLING, 0.7)
    assert (culprit.wait_ns, culprit.peers.wait_ns) == (5 * MS, 405 * MS)


def test_where_no_healthy_computation_is_known_nobody_has_an_own_excess() -> None:
    unknown = [[rank(number, healthy_compute_ns=None, compute_ns=[200 * MS] * 16) for number in range(3)]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no mean of nothing
        assert measured(unknown, 3, POLICY).beyond(1.0, POLICY) == set()


@pytest.mark.parametrize(("unknown", "named"), [([], 0), ([1], 0), ([1, 2], None)])
def test_an_own_excess_names_a_rank_only_where_most_ranks_have_a_healthy_level(
    unknown: list[int], named: int | None
) -> None:
    """Check agents of which some have no healthy level: a minority does not show what all ranks have gained."""
    longer = {"compute_ns": [230 * MS] * 16, "iteration_ns": [290 * MS] * 16}
    healthy_ns = {0: 180 * MS, 1: 230 * MS, 2: 230 * MS}
    ranks = {
        number: {**longer, "healthy_compute_ns": None if number in unknown else healthy_ns[number]}
        for number in range(3)
    }
    culprit = locate(seen(ranks=ranks), POLICY, unnamed(290 * MS))
    assert (None if culprit is None else culprit.rank) == named
