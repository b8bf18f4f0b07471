"""Chunks that wait for the service's thread: a job that floods loses its own, and the others are read in turn."""

from __future__ import annotations

from falcon_anomaly.inbox import FRAME_BYTES, MOST_BYTES, MOST_JOB_BYTES, Arrival, Inbox


def arrival(uid: str, payload: bytes) -> Arrival:
    return Arrival("team", f"job-{uid}", uid, f"{uid}-0", payload, 0.0)


def test_chunks_come_back_in_the_order_of_their_job() -> None:
    inbox = Inbox()
    for number in range(3):
        inbox.put(arrival("a", bytes([number])))
    assert [each.payload for each in inbox.take(10)] == [b"\0", b"\1", b"\2"]
    assert inbox.take(10) == []


def test_a_job_that_floods_loses_its_own_chunks_and_delays_no_other() -> None:
    inbox = Inbox()
    part = bytes(MOST_JOB_BYTES // 100 - FRAME_BYTES)
    for _ in range(150):
        inbox.put(arrival("flood", part))
    for number in range(3):
        inbox.put(arrival("quiet", bytes([number])))
    assert inbox.dropped == 50
    assert [each.job_uid for each in inbox.take(6)] == ["flood", "quiet"] * 3
    assert len(inbox.take(1000)) == 97


def test_chunks_of_nothing_fill_their_jobs_part_as_well() -> None:
    inbox = Inbox()
    for _ in range(MOST_JOB_BYTES // FRAME_BYTES + 10):
        inbox.put(arrival("flood", b""))
    assert inbox.dropped == 10
    assert len(inbox.take(1_000_000)) == MOST_JOB_BYTES // FRAME_BYTES
    inbox.put(arrival("flood", b""))
    assert inbox.dropped == 10, "what was read makes room"


def test_many_jobs_together_stay_within_the_bound() -> None:
    inbox = Inbox()
    part = bytes(MOST_JOB_BYTES - FRAME_BYTES)
    for number in range(MOST_BYTES // MOST_JOB_BYTES + 5):
        inbox.put(arrival(str(number), part))
    assert inbox.dropped == 5
    assert len(inbox.take(1000)) * MOST_JOB_BYTES == MOST_BYTES
    inbox.put(arrival("late", part))
    assert [each.job_uid for each in inbox.take(1)] == ["late"], "what was read makes room"
