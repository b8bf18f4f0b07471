"""Throttling, contention or unknown: by counters, against the peers and the own healthy past."""

from __future__ import annotations

import pytest

from falcon_core.model import Cause
from falcon_core.signals.job.cause import CpuEvidence, Finding, explain, explain_all

CALM = [CpuEvidence(throttled=0.0, healthy_throttled=0.0, run_delay=0.05, healthy_run_delay=0.04)] * 3


def test_a_quota_shows_in_its_own_counter() -> None:
    slow = CpuEvidence(throttled=0.71, healthy_throttled=0.0, run_delay=0.6, healthy_run_delay=0.05)
    found = explain(slow, CALM)
    assert (found.cause, found.culprit, found.peers, found.healthy) == (Cause.CPU_THROTTLING, 0.71, 0.0, 0.0)


def test_a_neighbour_shows_in_the_run_delay_alone() -> None:
    slow = CpuEvidence(throttled=0.0, healthy_throttled=0.0, run_delay=0.58, healthy_run_delay=0.05)
    found = explain(slow, CALM)
    assert (found.cause, found.culprit, found.peers, found.healthy) == (Cause.CPU_CONTENTION, 0.58, 0.05, 0.05)


def test_a_job_that_is_throttled_while_healthy_is_no_evidence() -> None:
    peers = [CpuEvidence(throttled=0.9, healthy_throttled=0.9, run_delay=0.3, healthy_run_delay=0.3)] * 2
    slow = CpuEvidence(throttled=0.93, healthy_throttled=0.9, run_delay=0.31, healthy_run_delay=0.3)
    assert explain(slow, peers).cause is Cause.UNKNOWN


def test_a_node_that_was_always_throttled_differs_from_its_peers_only() -> None:
    slow = CpuEvidence(throttled=0.7, healthy_throttled=0.7, run_delay=0.1, healthy_run_delay=0.1)
    assert explain(slow, CALM).cause is Cause.UNKNOWN
    known_peers_only = CpuEvidence(throttled=0.7, run_delay=0.1)
    assert explain(known_peers_only, CALM).cause is Cause.CPU_THROTTLING


def test_everybody_is_delayed() -> None:
    busy = CpuEvidence(throttled=0.0, healthy_throttled=0.0, run_delay=0.6, healthy_run_delay=0.1)
    assert explain(busy, [busy, busy]).cause is Cause.UNKNOWN


def test_a_rank_that_loses_little_of_its_iterations_is_throttled_little() -> None:
    """Beside a slow link a rank computes for a small part of the time."""

    def cause(throttled: float, excess: float | None) -> Cause:
        culprit = CpuEvidence(throttled=throttled, healthy_throttled=0.0, excess=excess)
        return explain(culprit, [CpuEvidence(throttled=0.0)]).cause

    assert cause(0.07, None) is Cause.UNKNOWN
    assert cause(0.07, 0.5) is Cause.UNKNOWN
    assert cause(0.07, 0.12) is Cause.CPU_THROTTLING
    assert cause(0.04, 0.01) is Cause.UNKNOWN, "what is less is noise"


def test_unknown_counters_prove_nothing() -> None:
    assert explain(CpuEvidence(), []).cause is Cause.UNKNOWN
    assert explain(CpuEvidence(throttled=0.9), [CpuEvidence()]).cause is Cause.UNKNOWN, "nothing to compare with"
    blind = CpuEvidence(throttled=None, run_delay=0.9, healthy_run_delay=0.0)
    assert explain(blind, CALM).cause is Cause.UNKNOWN, "the delay may be a quota that cannot be read"


def test_collections_that_explain_half_of_the_excess_are_the_cause() -> None:
    def cause(spent: float, excess: float | None, *, healthy: float | None = 0.0, peers: float | None = 0.0) -> Cause:
        culprit = CpuEvidence(throttled=0.0, collecting=spent, healthy_collecting=healthy, excess=excess)
        return explain(culprit, [CpuEvidence(throttled=0.0, collecting=peers)]).cause

    assert cause(0.3, 0.4) is Cause.GARBAGE_COLLECTION
    assert cause(0.1, 0.4) is Cause.UNKNOWN, "it explains a quarter"
    assert cause(0.3, 0.4, healthy=0.25) is Cause.UNKNOWN, "it collected as much while it was healthy"
    assert cause(0.3, 0.4, peers=0.3, healthy=None) is Cause.UNKNOWN, "so do its peers"
    assert cause(0.3, None) is Cause.UNKNOWN, "nothing to explain"
    assert cause(0.3, 0.4, healthy=None, peers=None) is Cause.UNKNOWN, "nothing to compare with"


def test_an_excess_in_one_gap_is_late_data_where_no_counter_says_more() -> None:
    late = CpuEvidence(throttled=0.0, healthy_throttled=0.0, stall_share=0.84)
    found = explain(late, CALM)
    assert (found.cause, found.culprit) == (Cause.LATE_DATA, 0.84)
    assert explain(CpuEvidence(throttled=0.0, stall_share=0.4), CALM).cause is Cause.UNKNOWN
    throttled = CpuEvidence(throttled=0.7, healthy_throttled=0.0, stall_share=0.9)
    assert explain(throttled, CALM).cause is Cause.CPU_THROTTLING


def throttled(now: float | None, before: float | None = 0.02) -> CpuEvidence:
    return CpuEvidence(throttled=now, healthy_throttled=before, run_delay=0.9, healthy_run_delay=0.0)


def delayed(now: float, before: float = 0.02) -> CpuEvidence:
    return CpuEvidence(throttled=0.0, healthy_throttled=0.0, run_delay=now, healthy_run_delay=before)


def test_what_all_ranks_show_against_their_own_past_is_a_common_cause() -> None:
    by_quota = explain_all([throttled(0.6), throttled(0.7), throttled(0.5), throttled(0.6)])
    assert by_quota == Finding(cause=Cause.CPU_THROTTLING, culprit=0.6, healthy=0.02)
    by_others = explain_all([delayed(0.5), delayed(0.9), delayed(0.7)])
    assert by_others == Finding(cause=Cause.CPU_CONTENTION, culprit=0.7, healthy=0.02)
    assert explain_all([throttled(0.6)] * 3 + [throttled(None)]) is not None, "a window may miss it at one of four"


@pytest.mark.parametrize(
    "ranks",
    [
        [],
        [throttled(0.6), throttled(0.6), throttled(0.0)],  # a third does not show it
        [throttled(0.6, None)] * 4,  # nothing is known of their past
        # They always run against their quota.
        [CpuEvidence(throttled=0.8, healthy_throttled=0.75, run_delay=0.9, healthy_run_delay=0.85)] * 4,
        [delayed(0.1)] * 4,
        [CpuEvidence(run_delay=0.9, healthy_run_delay=0.0)] * 4,  # a quota may be why, and is not known
    ],
)
def test_what_some_ranks_show_or_always_showed_is_none(ranks: list[CpuEvidence]) -> None:
    assert explain_all(ranks) is None
