"""The reports cache: batches by either way, agents that fall silent, gateways that are lost, unreadable reports."""

from __future__ import annotations

import itertools
import math

import pytest

from falcon_core.times import REJOIN_SECONDS
from falcon_core.wire.keys import JobKey
from falcon_core.wire.reporting.messages import CommSignals, Onset, RankSignals, Summary
from falcon_core.wire.reporting.reports import encode_summary
from falcon_gateway import Batch, Entry
from falcon_operator.base.ports import JobReports, OtherJobs
from falcon_operator.bus.reports import ReportsCache

JOB = JobKey("ns", "job", "uid-1")
OTHER = JobKey("ns", "job", "uid-2")  # a later job of the same name
FIRST, AGAIN = 1_000, 2_000  # incarnations of a gateway
_numbers = itertools.count(1)


def hearing(*gateways: str) -> ReportsCache:
    """Return a cache that hears the gateways, of which "g" is there in any case."""
    cache = ReportsCache()
    cache.hear(dict.fromkeys(("g", *gateways), FIRST), 0.0)
    return cache


def report(sequence: int = 1, pod: str = "pod-a") -> bytes:
    return encode_summary(Summary(pod_uid=pod, sequence=sequence, unix_ns=sequence, generation=1), ())


def entry(
    pod: str = "pod-a", *, change: int = 1, session: int = 1, alive: bool = True, payload: bytes | None = None
) -> Entry:
    payload = report(pod=pod) if payload is None else payload
    return Entry(pod_uid=pod, session=session, sequence=1, change=change, alive=alive, payload=payload)


def batch(*entries: Entry, gateway: str = "g", incarnation: int = FIRST, job: JobKey = JOB) -> Batch:
    return Batch(
        gateway=gateway,
        incarnation=incarnation,
        number=next(_numbers),
        namespace=job.namespace,
        job=job.name,
        job_uid=job.uid,
        entries=entries,
    )


def take(cache: ReportsCache, *entries: Entry, now: float = 10.0) -> JobKey | None:
    return cache.take(batch(*entries), now)


def of(cache: ReportsCache, job: JobKey = JOB, now: float = 10.0) -> JobReports:
    return cache.reports(job.uid, 0.0, now)


def test_a_report_is_kept_with_its_time_of_receipt_and_names_its_job() -> None:
    cache = hearing()
    assert take(cache, entry(), now=10.0) == JOB
    assert take(cache, entry(change=2, payload=report(2)), now=12.5) == JOB
    received = of(cache).summaries["pod-a"]
    assert (received.summary.sequence, received.at_seconds) == (2, 12.5)


def test_how_far_clocks_are_apart_is_the_least_that_recent_reports_show() -> None:
    cache = hearing()

    def clock(number: int, *, written: float, received: float) -> float | None:
        raw = encode_summary(Summary(pod_uid="pod-a", sequence=number, unix_ns=int(written * 1e9), generation=1), ())
        take(cache, entry(change=number, payload=raw), now=received)
        return of(cache).summaries["pod-a"].clock_seconds

    assert clock(1, written=107.0, received=10.0) == -97.0
    assert clock(2, written=117.0, received=25.0) == -97.0, "the second report was under way for 5 s"
    for number in range(3, 11):
        last = clock(number, written=100.0 + number, received=100.0 + number)
    assert last == 0.0, "the node's clock was set meanwhile"


def test_an_agent_lives_until_its_gateway_says_that_it_is_silent_and_again_when_it_is_back() -> None:
    cache = hearing()
    take(cache, entry())
    assert of(cache).alive == {"pod-a"}
    assert cache.agents() == 1
    assert take(cache, entry(change=2, alive=False), now=33.0) == JOB
    assert of(cache).alive == frozenset()
    assert of(cache).gone_since_seconds == {"pod-a": 33.0}
    take(cache, entry(change=3, alive=False), now=34.0)
    assert of(cache).gone_since_seconds == {"pod-a": 33.0}
    take(cache, entry(change=4), now=40.0)
    assert of(cache).gone_since_seconds == {}
    assert of(cache).alive == {"pod-a"}


def test_jobs_of_the_same_name_are_kept_apart() -> None:
    cache = hearing()
    cache.take(batch(entry("a")), 10.0)
    cache.take(batch(entry("b"), job=OTHER), 10.0)
    assert set(of(cache).summaries) == {"a"}
    assert set(of(cache, OTHER).summaries) == {"b"}
    cache.forget(JOB.uid)
    assert of(cache).summaries == {}
    assert cache.jobs() == [OTHER]


def test_nothing_is_known_of_an_unknown_job_but_the_session() -> None:
    assert ReportsCache().reports("who", 5.0, 10.0) == JobReports(session_healthy_since_seconds=5.0)


# -- batches that come twice, late, or at the session's start ----------------------------------------------------------


def test_a_batch_that_comes_by_the_second_way_says_nothing_new() -> None:
    cache = hearing()
    twice = batch(entry())
    assert cache.take(twice, 10.0) == JOB
    assert cache.take(twice, 14.0) is None
    assert of(cache).summaries["pod-a"].at_seconds == 10.0


def test_an_older_batch_that_comes_late_changes_nothing() -> None:
    cache = hearing()
    late = batch(entry(change=1))
    take(cache, entry(change=2, payload=report(2)), now=10.0)
    assert cache.take(late, 11.0) is None
    assert of(cache).summaries["pod-a"].summary.sequence == 2


def test_a_report_that_an_agent_sends_again_to_another_gateway_does_not_become_new() -> None:
    cache = hearing("h")
    take(cache, entry(), now=10.0)
    cache.take(batch(entry(session=2, payload=b""), gateway="h"), 30.0)  # it has connected
    cache.take(batch(entry(session=2, change=2), gateway="h"), 31.0)  # and sends its newest report once more
    assert of(cache).summaries["pod-a"].at_seconds == 10.0
    cache.take(batch(entry(session=2, change=3, payload=report(2)), gateway="h"), 32.0)
    assert of(cache).summaries["pod-a"].at_seconds == 32.0


def test_the_report_of_an_agent_that_was_gone_before_this_session_is_old() -> None:
    cache = hearing()
    take(cache, entry("a"), entry("b", alive=False))
    assert of(cache).summaries["a"].at_seconds == 10.0
    assert of(cache).summaries["b"].at_seconds == -math.inf
    assert of(cache).gone_since_seconds == {"b": 10.0}


def test_pods_that_are_not_announced_any_more_are_forgotten_for_good() -> None:
    cache = hearing()
    take(cache, entry("a"), entry("b"))
    cache.announced(JOB, frozenset({"b", "c"}))
    assert of(cache).alive == set(of(cache).summaries) == {"b"}
    take(cache, entry("a", change=2), entry("c", change=2))  # made by the gateway before it heard of that
    assert of(cache).alive == set(of(cache).summaries) == {"b", "c"}


# -- gateways ----------------------------------------------------------------------------------------------------------


def test_the_pods_of_a_lost_gateway_are_neither_alive_nor_gone() -> None:
    cache = hearing("h")
    take(cache, entry("a"), entry("b", alive=False))
    cache.take(batch(entry("c"), gateway="h"), 10.0)
    assert cache.hear({"h": FIRST}, 20.0) == [JOB]
    assert cache.hear({"h": FIRST}, 21.0) == []
    known = of(cache, now=21.0)
    assert known.alive == {"c"}
    assert known.gone_since_seconds == {}
    assert set(known.summaries) == {"a", "b", "c"}, "what was reported is still known"
    assert cache.hear({"g": FIRST, "h": FIRST}, 22.0) == [JOB]
    known = of(cache, now=22.0)
    assert known.alive == {"a", "c"}
    assert known.gone_since_seconds == {"b": 10.0}


def test_an_agent_that_comes_to_another_gateway_is_alive_at_once() -> None:
    cache = hearing("h")
    take(cache, entry("a"))
    cache.hear({"h": FIRST}, 20.0)
    assert cache.take(batch(entry("a", session=2, payload=b""), gateway="h"), 21.0) == JOB
    assert of(cache, now=21.0).alive == {"a"}
    assert of(cache, now=20.0 + REJOIN_SECONDS).gone_since_seconds == {}


def test_an_agent_that_comes_to_no_other_gateway_is_gone_after_a_while() -> None:
    cache = hearing("h")
    take(cache, entry("a"), entry("b", alive=False))
    cache.hear({"h": FIRST}, 20.0)
    assert of(cache, now=20.0 + REJOIN_SECONDS - 0.1).gone_since_seconds == {}
    late = of(cache, now=20.0 + REJOIN_SECONDS)
    assert late.gone_since_seconds == {"a": 20.0 + REJOIN_SECONDS, "b": 10.0}
    assert late.alive == frozenset()


def test_nobody_is_gone_while_there_is_no_gateway_to_come_to() -> None:
    cache = hearing()
    take(cache, entry("a"))
    cache.hear({}, 20.0)
    assert of(cache, now=1_000.0).gone_since_seconds == {}
    cache.hear({"h": FIRST}, 1_000.0)
    assert of(cache, now=1_000.0 + REJOIN_SECONDS - 0.1).gone_since_seconds == {}
    assert of(cache, now=1_000.0 + REJOIN_SECONDS).gone_since_seconds == {"a": 1_000.0 + REJOIN_SECONDS}


def test_a_gateway_that_began_anew_vouches_only_for_the_agents_that_came_back() -> None:
    cache = hearing()
    take(cache, entry("a"), entry("b"))
    cache.hear({"g": AGAIN}, 20.0)
    assert of(cache, now=20.0).alive == frozenset()
    cache.take(batch(entry("a", session=2), incarnation=AGAIN), 21.0)
    assert cache.incarnations == {"g": AGAIN}
    assert of(cache, now=21.0).alive == {"a"}


def test_batches_that_come_before_their_gateway_is_heard_count_from_then_on() -> None:
    cache = ReportsCache()
    take(cache, entry("a"))
    assert of(cache).alive == frozenset()
    assert cache.agents() == 0
    assert cache.hear({"g": FIRST}, 11.0) == [JOB]
    assert of(cache).alive == {"a"}


# -- rubbish -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (report()[:-1], "Malformed"),
        (b'{"pod_uid": 1}', "Impossible"),
        (b"x" * 300_000, "Impossible"),
        (b"\x98" + report()[1:] + b"\x91" * 60_000, "Malformed"),
    ],
    ids=["cut", "mistyped", "huge", "nested"],
)
def test_a_report_that_cannot_be_read_is_counted_and_leaves_the_last_report(value: bytes, reason: str) -> None:
    cache = hearing()
    take(cache, entry())
    assert take(cache, entry(change=2, payload=value)) == JOB
    assert cache.refused() == {("ns", "job", reason): 1}
    assert list(of(cache).unread) == ["pod-a"]
    assert of(cache).summaries["pod-a"].summary.sequence == 1
    assert of(cache).alive == {"pod-a"}, "it speaks all the same"
    take(cache, entry(change=3, payload=report(3)))
    assert of(cache).unread == {}


def slow_rank(iteration: int, comms: list[CommSignals]) -> RankSignals:
    onset = Onset(iteration=iteration, unix_ns=0, reported_iteration=iteration + 5, before_ns=1, after_ns=2)
    return RankSignals(rank=0, tracking="Tracking", iterations=99, onset=onset, comms=comms)


@pytest.mark.parametrize(("iteration", "kept"), [(7, True), (8, False)])
def test_the_excess_of_a_slowdown_is_kept_while_its_rank_sends_briefs(iteration: int, kept: bool) -> None:
    cache = hearing()
    numbers = itertools.count(1)
    excess = CommSignals(comm=1, size=4, place=0, excess_ns=[5, 6])
    counted = CommSignals(comm=1, size=4, place=0, excess_ns=[5, 6], entered=9, finished=8)
    for onset, comms, detailed in ((7, [counted], (0,)), (iteration, [], ())):
        content = Summary(pod_uid="pod-a", sequence=1, unix_ns=1, generation=1, ranks=[slow_rank(onset, comms)])
        payload = encode_summary(content, detailed)
        take(cache, entry(change=next(numbers), payload=payload))
    (rank,) = of(cache).summaries["pod-a"].summary.ranks
    assert rank.comms == ([excess] if kept else []), "the counts belong to their own moment"


def test_the_others_are_counted_for_a_job_of_which_no_agent_is_heard() -> None:
    cache = hearing()
    jobs = [JobKey("ns", f"job-{number}", f"uid-{number}") for number in range(5)]
    for job in jobs:
        cache.take(batch(entry(), entry(pod="pod-b"), job=job), 10.0)
    assert of(cache, jobs[0]).others == OtherJobs(), "its own agents are heard"
    for job in jobs[:2]:
        silent = entry(change=2, alive=False), entry(pod="pod-b", change=2, alive=False)
        cache.take(batch(*silent, job=job), 20.0)
    cache.take(batch(entry(change=2, alive=False), job=jobs[2]), 20.0)
    assert of(cache, jobs[0], 20.0).others == OtherJobs(reporting=3, silent=1)
    assert of(cache, JobKey("ns", "unheard", "uid-9"), 20.0).others == OtherJobs(reporting=3, silent=2)


def test_jobs_whose_gateway_is_lost_or_whose_pods_are_gone_do_not_report() -> None:
    cache = hearing("h")
    jobs = [JobKey("ns", f"job-{number}", f"uid-{number}") for number in range(3)]
    cache.take(batch(entry(), job=jobs[0], gateway="h"), 10.0)
    cache.take(batch(entry(), job=jobs[1]), 10.0)
    cache.take(batch(entry(), job=jobs[2]), 10.0)
    cache.announced(jobs[2], frozenset())
    cache.hear({"h": FIRST}, 20.0)
    assert of(cache, jobs[1], 20.0).others == OtherJobs(reporting=1)
    cache.hear({}, 30.0)
    assert of(cache, jobs[1], 30.0).others == OtherJobs(silent=1)
