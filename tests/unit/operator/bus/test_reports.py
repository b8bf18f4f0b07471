"""The reports cache: changes, listings, lost data, and jobs that write unreadable data."""

from __future__ import annotations

import math

import pytest

from falcon_core.times import RESTORED_GRACE_SECONDS
from falcon_core.wire.keys import LEADER_KEY, ROOT, JobKey
from falcon_core.wire.messages import CommSignals, Onset, RankSignals, Summary
from falcon_core.wire.reports import encode_summary
from falcon_etcd import KeyValue, Relisted, WatchEvent
from falcon_operator.bus import reports
from falcon_operator.bus.reports import ReportsCache
from falcon_operator.ports import JobReports

JOB = JobKey("ns", "job", "uid-1")
OTHER = JobKey("ns", "job", "uid-2")  # a later job of the same name


def kv(key: str, value: bytes = b"") -> KeyValue:
    return KeyValue(key, value, 2, 2, 1, 0)  # a new history counts from the same revision


def leader(taken: str = "first") -> KeyValue:
    return kv(LEADER_KEY, taken.encode())


def summary(pod: str = "pod-a", sequence: int = 1, job: JobKey = JOB) -> KeyValue:
    content = Summary(pod_uid=pod, sequence=sequence, unix_ns=1, generation=1)
    return kv(job.summary(pod), encode_summary(content, ()))


def alive(pod: str = "pod-a", job: JobKey = JOB) -> KeyValue:
    return kv(job.alive(pod))


def put(cache: ReportsCache, entry: KeyValue, now: float = 10.0) -> set[JobKey]:
    return cache.apply(WatchEvent("put", entry), now)


def delete(cache: ReportsCache, key: str, now: float = 10.0) -> set[JobKey]:
    return cache.apply(WatchEvent("delete", kv(key)), now)


def listing(cache: ReportsCache, *kvs: KeyValue, now: float = 10.0) -> set[JobKey]:
    return cache.apply(Relisted(kvs, 1), now)


def of(cache: ReportsCache, job: JobKey = JOB, now: float = 10.0) -> JobReports:
    return cache.reports(job.uid, 0.0, now)


def test_a_report_is_kept_with_its_time_of_receipt_and_names_its_job() -> None:
    cache = ReportsCache()
    assert put(cache, summary(sequence=1), now=10.0) == {JOB}
    assert put(cache, summary(sequence=2), now=12.5) == {JOB}
    received = of(cache).summaries["pod-a"]
    assert (received.summary.sequence, received.at_seconds) == (2, 12.5)


def test_an_agent_lives_until_its_key_vanishes_and_again_when_it_is_back() -> None:
    cache = ReportsCache()
    put(cache, alive())
    assert of(cache).alive == {"pod-a"}
    assert cache.agents() == 1
    assert delete(cache, JOB.alive("pod-a"), now=33.0) == {JOB}
    assert of(cache).alive == frozenset()
    assert of(cache).gone_since_seconds == {"pod-a": 33.0}
    put(cache, alive(), now=40.0)
    assert of(cache).gone_since_seconds == {}


def test_jobs_of_the_same_name_are_kept_apart() -> None:
    cache = ReportsCache()
    put(cache, summary("a"))
    put(cache, summary("b", job=OTHER))
    assert set(of(cache).summaries) == {"a"}
    assert set(of(cache, OTHER).summaries) == {"b"}
    cache.forget(JOB.uid)
    assert of(cache).summaries == {}
    assert cache.jobs() == [OTHER]


def test_nothing_is_known_of_an_unknown_job_but_the_session() -> None:
    assert ReportsCache().reports("who", 5.0, 10.0) == JobReports(session_healthy_since_seconds=5.0)


# -- listings ----------------------------------------------------------------------------------------------------------


def test_a_listing_replaces_what_was_known() -> None:
    cache = ReportsCache()
    listing(cache, leader(), summary("a"), alive("a"), summary("b"), alive("b"))
    assert listing(cache, leader(), summary("a"), alive("a"), summary("b"), now=50.0) == {JOB}
    assert of(cache).alive == {"a"}
    assert of(cache).gone_since_seconds == {"b": 50.0}
    listing(cache, leader(), now=60.0)
    assert of(cache).summaries == {}


def test_a_listing_does_not_make_an_old_report_new() -> None:
    cache = ReportsCache()
    listing(cache, leader(), alive())
    put(cache, summary(), now=20.0)
    listing(cache, leader(), summary(), alive(), now=90.0)
    assert of(cache).summaries["pod-a"].at_seconds == 20.0


def test_the_report_of_an_agent_that_was_gone_before_this_session_is_old() -> None:
    cache = ReportsCache()
    listing(cache, leader(), summary("a"), alive("a"), summary("b"))
    assert of(cache).summaries["a"].at_seconds == 10.0
    assert of(cache).summaries["b"].at_seconds == -math.inf
    assert of(cache).gone_since_seconds == {}, "it was never seen alive"


# -- lost data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [(), (leader("anew"),)], ids=["before", "after"])
def test_lost_data_kills_nobody_and_forgets_nothing(restored: tuple[KeyValue, ...]) -> None:
    cache = ReportsCache()
    listing(cache, leader(), summary("a"), alive("a"), summary("b"), alive("b"))
    lost = Relisted(restored, 1)
    assert cache.lost_data(lost.kvs)
    cache.apply(lost, 50.0)
    assert of(cache, now=50.0).alive == {"a", "b"}
    assert set(of(cache, now=50.0).summaries) == {"a", "b"}
    put(cache, leader("anew"))
    put(cache, alive("a"), now=52.0)  # only pod a comes back
    late = of(cache, now=50.0 + RESTORED_GRACE_SECONDS)
    assert late.alive == {"a"}
    assert late.gone_since_seconds == {"b": 50.0 + RESTORED_GRACE_SECONDS}


def test_a_second_listing_after_lost_data_is_an_ordinary_listing() -> None:
    cache = ReportsCache()
    listing(cache, leader(), alive("a"))
    listing(cache, now=50.0)
    put(cache, leader("anew"))
    again = Relisted((leader("anew"),), 1)
    assert not cache.lost_data(again.kvs)
    cache.apply(again, 55.0)
    assert of(cache, now=55.0).gone_since_seconds == {"a": 50.0 + RESTORED_GRACE_SECONDS}


def test_the_first_listing_of_an_empty_etcd_is_no_loss() -> None:
    assert not ReportsCache().lost_data(())


# -- plans -------------------------------------------------------------------------------------------------------------


def test_the_stored_plan_is_known_and_gone_with_lost_data() -> None:
    cache = ReportsCache()
    listing(cache, leader(), kv(JOB.plan, b"plan"))
    assert cache.command(JOB, JOB.plan) == b"plan"
    assert cache.command(OTHER, OTHER.plan) == b""
    listing(cache)
    assert cache.command(JOB, JOB.plan) == b""
    put(cache, kv(JOB.plan, b"again"))
    assert cache.command(JOB, JOB.plan) == b"again"
    delete(cache, JOB.plan)
    assert cache.command(JOB, JOB.plan) == b""


# -- rubbish -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b'{"pod_uid": 1}', b"x" * (reports.MAX_SUMMARY_BYTES + 1)],
    ids=["empty", "cut", "mistyped", "huge"],
)
def test_a_report_that_cannot_be_read_is_counted_and_leaves_the_last_report(value: bytes) -> None:
    cache = ReportsCache()
    put(cache, summary())
    assert put(cache, kv(JOB.summary("pod-a"), value)) == set()
    assert cache.rejected == 1
    assert of(cache).summaries["pod-a"].summary.sequence == 1


def test_a_prefix_with_another_jobs_uid_is_refused() -> None:
    cache = ReportsCache()
    put(cache, alive())
    foreign = JobKey("evil", "job", JOB.uid)
    assert put(cache, alive("x", job=foreign)) == set()
    assert of(cache).alive == {"pod-a"}


def test_a_job_cannot_fill_the_operators_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_PODS", 3)
    cache = ReportsCache()
    for number in range(9):
        put(cache, alive(f"pod-{number}"))
    assert cache.agents() == 3
    put(cache, summary("pod-0"))
    assert set(of(cache).summaries) == {"pod-0"}, "a known pod's reports are still kept"


@pytest.mark.parametrize(
    "key", [f"{ROOT}ns/job/uid-1/reports/p/future", f"{ROOT}ns/job", f"{ROOT}ns/job/u/commands/x", "/falcon/else"]
)
def test_keys_of_a_newer_version_are_passed_over(key: str) -> None:
    cache = ReportsCache()
    assert put(cache, kv(key)) == set()
    assert delete(cache, key) == set()
    assert cache.jobs() == []


def slow_rank(iteration: int, comms: list[CommSignals]) -> RankSignals:
    onset = Onset(iteration=iteration, unix_ns=0, reported_iteration=iteration + 5, before_ns=1, after_ns=2)
    return RankSignals(rank=0, tracking="Tracking", iterations=99, onset=onset, comms=comms)


@pytest.mark.parametrize(("iteration", "kept"), [(7, True), (8, False)])
def test_the_excess_of_a_slowdown_is_kept_while_its_rank_sends_briefs(iteration: int, kept: bool) -> None:
    cache = ReportsCache()
    excess = CommSignals(comm=1, size=4, place=0, excess_ns=[5, 6])
    counted = CommSignals(comm=1, size=4, place=0, excess_ns=[5, 6], entered=9, finished=8)
    for onset, comms, detailed in ((7, [counted], (0,)), (iteration, [], ())):
        content = Summary(pod_uid="pod-a", sequence=1, unix_ns=1, generation=1, ranks=[slow_rank(onset, comms)])
        put(cache, kv(JOB.summary("pod-a"), encode_summary(content, detailed)))
    (rank,) = cache.reports(JOB.uid, 0.0, 10.0).summaries["pod-a"].summary.ranks
    assert rank.comms == ([excess] if kept else []), "the counts belong to their own moment"
