"""When the agent reports: little while nothing is wrong, at once when something is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from falcon_agent.reporting.schedule import SLOW_SECONDS, ReportSchedule, computes_slowly
from falcon_core.times import DETAIL_SECONDS, REPORT_SECONDS
from falcon_core.wire.reporting.messages import Detection, Onset, RankSignals, Summary

START = 1_763_800_000.0
replace = msgspec.structs.replace
ONSET = Onset(iteration=7, unix_ns=0, reported_iteration=12, before_ns=200, after_ns=400)


def rank(number: int = 0, **changes: Any) -> RankSignals:
    healthy = RankSignals(
        rank=number,
        tracking="Tracking",
        iterations=50,
        iteration_ns=[200_000_000] * 16,
        compute_ns=[150_000_000] * 16,
        healthy_compute_ns=150_000_000,
        hang_deadline_ns=10_000_000_000,
    )
    return replace(healthy, **changes)


class Pod:
    """An agent that looks at its ranks each second."""

    def __init__(self, job_uid: str = "u") -> None:
        self.schedule = ReportSchedule(job_uid)
        self.now = 0.0

    def look(
        self, *ranks: RankSignals, asked: tuple[int, ...] = (), urgent: bool = False, after: float = 1.0
    ) -> frozenset[int] | None:
        self.now += after
        unix_ns = int((START + self.now) * 1e9)
        # last_call_unix_ns stands for how long ago the last call was, as a negative number
        moved = [
            replace(each, last_call_unix_ns=unix_ns + (each.last_call_unix_ns or -1_000_000))
            for each in ranks or [rank()]
        ]
        summary = Summary(pod_uid="p", sequence=1, unix_ns=unix_ns, generation=1, ranks=moved)
        return self.schedule.detail_due(summary, asked=asked, detection=Detection(), urgent=urgent, now=self.now)


def test_a_healthy_pod_reports_briefly_each_ten_seconds() -> None:
    pod = Pod()
    reports = [pod.look() for _ in range(100)]
    assert sum(report is not None for report in reports) in (10, 11), "the first at once"
    assert all(not report for report in reports)
    at = [second for second, report in enumerate(reports) if report is not None]
    assert {later - earlier for earlier, later in pairwise(at[1:])} == {int(REPORT_SECONDS)}


def test_all_pods_of_a_job_report_in_the_same_second_and_jobs_at_different_times() -> None:
    def seconds(uid: str) -> set[int]:
        pod = Pod(uid)
        pod.look()
        return {second % 10 for second in range(60) if pod.look() is not None}

    assert len(seconds("a-job")) == 1
    assert seconds("a-job") == seconds("a-job")
    assert len({min(seconds(f"job-{number}")) for number in range(40)}) > 5


def test_the_jobs_moment_comes_once_in_ten_seconds_at_the_same_time_for_all_its_pods() -> None:
    def moments(first_look: float) -> list[float]:
        pod = Pod("a-job")
        pod.look(after=first_look)
        came = []
        for tenth in range(1, 400):
            unix_ns = int((START + pod.now) * 1e9) + tenth * 100_000_000
            if pod.schedule.is_due(unix_ns):
                came.append(unix_ns / 1e9)
                pod.look(after=unix_ns / 1e9 - START - pod.now)
                break
        return came

    early, late = moments(0.3), moments(0.7)
    assert len(early) == len(late) == 1
    assert abs(early[0] - late[0]) % REPORT_SECONDS < 0.11


def test_a_change_is_reported_at_once() -> None:
    pod = Pod()
    pod.look()
    assert pod.look(urgent=True, after=0.1) == frozenset()


def test_a_rank_whose_own_computation_grew_sends_its_detail_each_second() -> None:
    pod = Pod()
    pod.look()
    slow = rank(1, compute_ns=[150_000_000] * 11 + [170_000_000] * 5)
    assert [pod.look(rank(0), slow) for _ in range(5)] == [{1}] * 5
    assert pod.look(rank(0), slow, after=0.5) is None, "and not more often"
    assert pod.look(rank(0), rank(1), after=DETAIL_SECONDS) == frozenset(), "that it no longer matters is news"


def test_four_slow_iterations_in_a_row_are_not_enough() -> None:
    assert not computes_slowly(rank(compute_ns=[150] * 12 + [900] * 4, healthy_compute_ns=150), Detection())
    assert computes_slowly(rank(compute_ns=[150] * 11 + [900] * 5, healthy_compute_ns=150), Detection())
    assert not computes_slowly(rank(compute_ns=[900] * 16, healthy_compute_ns=None), Detection())


def test_two_iterations_far_out_of_the_noise_are_enough() -> None:
    newest: dict[str, Any] = {"compute_ns": [150] * 14 + [900] * 2, "healthy_compute_ns": 150}
    times: dict[str, Any] = {"iteration_ns": [250] * 14 + [1000] * 2, "healthy_iteration_ns": 250}
    assert computes_slowly(rank(**newest, **times, healthy_noise=0.01), Detection())
    assert not computes_slowly(rank(**newest, **times, healthy_noise=0.5), Detection())


def test_the_operator_gets_the_detail_that_it_asks_for() -> None:
    pod = Pod()
    pod.look()
    assert pod.look(rank(0), rank(1), asked=(1, 77)) == {1}
    assert pod.look(rank(0), rank(1), asked=(77,)) in (None, frozenset())


def test_a_silent_rank_sends_its_counts_once_and_then_as_often_as_any() -> None:
    pod = Pod()
    pod.look()
    silent = rank(0, last_call_unix_ns=-11_000_000_000)
    reports = [pod.look(silent, urgent=second == 0) for second in range(31)]
    assert reports[0] == {0}
    assert sum(report is not None for report in reports) in (4, 5)
    assert all(report == {0} for report in reports if report is not None)


def test_a_rank_with_long_iterations_is_not_silent_between_its_calls() -> None:
    pod = Pod()
    pod.look()
    waits = rank(0, last_call_unix_ns=-9_000_000_000)
    assert sum(pod.look(waits) is not None for _ in range(20)) == 2


@pytest.mark.parametrize(("onset", "count"), [(ONSET, 10), (None, 2)])
def test_a_level_that_moves_is_reported_during_a_slowdown(onset: Onset | None, count: int) -> None:
    pod = Pod()
    pod.look()
    levels = [int(300_000_000 * 1.1**second) for second in range(20)]
    reports = [pod.look(rank(0, onset=onset, iteration_ns=[level] * 16)) for level in levels]
    said = sum(report is not None for report in reports)
    assert count <= said <= count + 1, SLOW_SECONDS
