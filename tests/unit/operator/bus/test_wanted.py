"""What gateways and etcd shall know: one value a key, revisions that grow, and what etcd lacks of it."""

from __future__ import annotations

import pytest

from falcon_core.wire.keys import DETAIL, PLAN, JobKey
from falcon_etcd import KeyValue
from falcon_gateway import Announce, Publish
from falcon_operator.bus.stored import Stored
from falcon_operator.bus.wanted import Wanted

JOB = JobKey("ns", "job", "uid-1")
OTHER = JobKey("ns", "other", "uid-2")


def announcement(wanted: Wanted, key: JobKey = JOB) -> Announce:
    return Announce.FromString(wanted.values[key.announce])


def command(wanted: Wanted, key: str = JOB.plan) -> Publish:
    return Publish.FromString(wanted.values[key])


def sent(wanted: Wanted) -> list[str]:
    """Return what a stream that begins now sends, as the names of the messages' fields."""
    with wanted.desired.following() as changes:
        return [str(changes.get_nowait().WhichOneof("message")) for _ in range(changes.qsize())]


def test_only_news_are_written_and_each_has_a_higher_revision() -> None:
    wanted = Wanted()
    assert wanted.announce(JOB, {"b", "a"}, 8, epoch=3)
    first = announcement(wanted)
    assert (first.namespace, first.job, first.job_uid) == JOB
    assert (first.pod_uids, first.procs_per_replica) == (["a", "b"], 8)
    assert not wanted.announce(JOB, {"a", "b"}, 8, epoch=3)
    assert announcement(wanted) == first
    assert wanted.announce(JOB, {"a"}, 8, epoch=3)
    assert announcement(wanted).revision > first.revision
    assert wanted.publish(JOB, PLAN, b"plan", epoch=3)
    assert not wanted.publish(JOB, PLAN, b"plan", epoch=3)
    assert command(wanted).revision > announcement(wanted).revision
    assert wanted.published(JOB, PLAN)
    assert not wanted.published(JOB, DETAIL)


def test_whatever_a_later_leader_says_is_newer() -> None:
    former, later = Wanted(), Wanted()
    for number in range(100):
        former.publish(JOB, PLAN, str(number).encode(), epoch=3)
    later.publish(JOB, PLAN, b"plan", epoch=4)
    assert command(later).revision > command(former).revision


def test_an_epoch_that_is_raised_makes_everything_new() -> None:
    wanted = Wanted()
    wanted.announce(JOB, {"a"}, 8, epoch=1)
    wanted.publish(JOB, PLAN, b"plan", epoch=1)
    wanted.announce(OTHER, {"b"}, 8, epoch=41)
    for message in (announcement(wanted), command(wanted), announcement(wanted, OTHER)):
        assert message.revision >> 32 == 41
    assert command(wanted).payload == b"plan"


def test_a_job_that_is_withdrawn_leaves_nothing() -> None:
    wanted = Wanted()
    for key in (JOB, OTHER):
        wanted.announce(key, {"a"}, 8, epoch=1)
        wanted.publish(key, PLAN, b"plan", epoch=1)
    wanted.withdraw(JOB)
    assert list(wanted.values) == [OTHER.announce, OTHER.plan]
    assert sent(wanted) == ["announce", "publish"]
    assert wanted.publish(JOB, PLAN, b"plan", epoch=1), "it is news again"


def test_a_stream_says_that_all_jobs_are_announced_only_when_they_are() -> None:
    wanted = Wanted()
    wanted.announce(JOB, {"a"}, 8, epoch=1)
    wanted.publish(JOB, PLAN, b"plan", epoch=1)
    assert sent(wanted) == ["announce", "publish"]
    with wanted.desired.following() as changes:
        while not changes.empty():
            changes.get_nowait()
        wanted.desired.all_announced()
        assert changes.get_nowait().HasField("all_announced")
    assert sent(wanted) == ["announce", "all_announced", "publish"]


# -- what etcd lacks ---------------------------------------------------------------------------------------------------


def kv(key: str, value: bytes = b"") -> KeyValue:
    return KeyValue(key, value, 2, 2, 1, 0)


@pytest.fixture
def wanted() -> Wanted:
    wanted = Wanted()
    wanted.announce(JOB, {"a"}, 8, epoch=1)
    wanted.publish(JOB, PLAN, b"plan", epoch=1)
    return wanted


def test_etcd_gets_what_it_lacks_the_announcement_first(wanted: Wanted) -> None:
    stored = Stored()
    wanted.announce(JOB, {"a", "b"}, 8, epoch=1)
    assert stored.lacks(wanted.values) == [JOB.announce, JOB.plan]
    for key in (JOB.announce, JOB.plan):
        stored.put(key, wanted.values[key])
    assert stored.lacks(wanted.values) == []
    stored.put(JOB.plan, b"of a former leader")
    assert stored.lacks(wanted.values) == [JOB.plan]
    stored.delete(JOB.announce)
    assert stored.lacks(wanted.values) == [JOB.announce, JOB.plan]
    stored.relist([kv(key, value) for key, value in wanted.values.items()])
    assert stored.lacks(wanted.values) == []
    stored.relist([])
    assert stored.lacks(wanted.values) == [JOB.announce, JOB.plan], "etcd has lost its data"


def test_what_jobs_and_gateways_have_left_is_known_by_its_keys() -> None:
    stored = Stored()
    gone = JobKey("ns", "gone", "uid-3")
    stored.relist(
        [kv(JOB.announce), kv(f"{gone.reports('g')}hot"), kv(f"{gone.reports('h')}s0000"), kv("/falcon/leader")]
    )
    assert stored.jobs() == {JOB, gone}
    assert stored.gateways() == {"g", "h"}
    assert stored.holds(JOB.announce)
    assert not stored.holds(JOB.plan)
    stored.delete_prefix(gone.reports("g"))
    assert stored.gateways() == {"h"}
    stored.delete_prefix(gone.reports("h"))
    assert stored.jobs() == {JOB}
