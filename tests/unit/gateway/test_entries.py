"""Entries of a pod merge to the newest, in whatever order and however often batches come."""

from __future__ import annotations

import itertools

from falcon_gateway import Batch, Entries, Entry

FIRST = Entry(pod_uid="p", session=1, sequence=1, change=4, received_unix_ns=10, alive=True, payload=b"first")
LOST = Entry(
    pod_uid="p", session=1, sequence=1, change=9, received_unix_ns=10, alive=False, silent_ms=2100, payload=b"first"
)
ELSEWHERE = Entry(pod_uid="p", session=2, change=1, alive=True)  # another gateway, which has no report yet
SECOND = Entry(pod_uid="p", session=2, sequence=1, change=2, received_unix_ns=20, alive=True, payload=b"second")


def batch(gateway: str, *entries: Entry) -> Batch:
    return Batch(gateway=gateway, job_uid="j", entries=entries)


def test_the_newest_holds_in_any_order() -> None:
    batches = [batch("a", FIRST), batch("a", LOST), batch("b", ELSEWHERE), batch("b", SECOND)]
    for order in itertools.permutations(batches):
        entries = Entries()
        for each in (*order, *order):
            entries.merge(each)
        newest = entries.pods["p"]
        assert (newest.gateway, newest.payload, newest.alive) == ("b", b"second", True)


def test_only_news_are_named() -> None:
    entries = Entries()
    other = Entry(pod_uid="q", session=1, change=5, alive=True)
    assert entries.merge(batch("a", FIRST, other)) == ["p", "q"]
    assert entries.merge(batch("a", LOST, other)) == ["p"]
    assert entries.merge(batch("a", FIRST, other)) == []


def test_a_gateway_that_has_no_report_yet_takes_none_away() -> None:
    entries = Entries()
    entries.merge(batch("a", LOST))
    entries.merge(batch("b", ELSEWHERE))
    newest = entries.pods["p"]
    assert (newest.payload, newest.received_unix_ns, newest.alive, newest.silent_ms) == (b"first", 10, True, 0)


def test_pods_that_are_gone_are_forgotten() -> None:
    entries = Entries()
    entries.merge(batch("a", FIRST, Entry(pod_uid="q", session=1, change=5)))
    entries.keep({"q"})
    assert list(entries.pods) == ["q"]
