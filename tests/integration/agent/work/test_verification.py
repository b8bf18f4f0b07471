"""Hashes of all-reduce results on their way from real ranks through the agent and a gateway to the operator."""

from __future__ import annotations

import pytest

from falcon_core.signals.job.result_differences import find_differences
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.verification import WIDTHS
from tests.integration.agent.conftest import MakePod
from tests.integration.ports import free_port

RANKS = 2
EVERY = 3
pytestmark = pytest.mark.timeout(400)


def digests(summary: Summary) -> list[set[tuple[int, int, int]]]:
    """Return which calls each rank's digests are of: turns, the first call and how many."""
    return [{(digest.width, digest.first, digest.calls) for digest in rank.digests} for rank in summary.results]


async def test_results_are_compared_from_the_plan_that_asks_for_it_to_the_plan_that_does_not(
    make_pod: MakePod,
) -> None:
    pod, port = make_pod(RANKS), free_port()
    pod.start_agent()
    pod.allow(10_000)
    pod.plan(1, "Run", port=port)
    await pod.trained(15)
    assert (await pod.reported("no results", lambda summary: len(summary.ranks) == RANKS)).results == []
    pod.plan(1, "Run", port=port, verify_every=EVERY)
    report = await pod.reported(
        "single calls and sums",
        lambda summary: len(summary.results) == RANKS and {width for width, *_ in digests(summary)[0]} == set(WIDTHS),
    )
    assert [(rank.rank, rank.life, rank.every) for rank in report.results] == [(0, 1, EVERY), (1, 1, EVERY)]
    first, second = digests(report)
    assert len(first & second) >= WIDTHS[1] / 2, "the agent reads both rings at about the same time"
    assert find_differences(report.results, RANKS) == []
    pod.plan(1, "Run", port=port)
    await pod.reported("no results any more", lambda summary: not summary.results)
