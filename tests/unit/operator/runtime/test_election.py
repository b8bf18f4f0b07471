"""The election: pure rules, and two candidates for one Lease on a fake clock."""

from __future__ import annotations

import msgspec
import pytest

from falcon_operator.base import ports
from falcon_operator.base.ports import Conflict, Holder, LeadershipLost, lost_leadership
from falcon_operator.runtime import election
from falcon_operator.runtime.election import EPOCHS_BEGIN, MOST_BY_CLOCK, Election, may_take, next_epoch, observe
from tests.unit.operator.fake_clock import FakeClock
from tests.unit.operator.one_lease import OneLease, epochs_around_a_restore


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Return a clock that goes on when the election sleeps."""
    fake = FakeClock()

    async def sleep(seconds: float) -> None:
        fake.advance(seconds)

    monkeypatch.setattr(election.asyncio, "sleep", sleep)
    return fake


def test_a_renewal_is_timed_from_when_it_was_seen() -> None:
    first = observe(None, Holder(identity="a", renewed="1"), 10.0)
    assert observe(first, Holder(identity="a", renewed="1"), 15.0) == first
    assert observe(first, Holder(identity="a", renewed="2"), 15.0).since == 15.0


@pytest.mark.parametrize(
    ("holder", "age_seconds", "free"),
    [
        (Holder(identity="other"), ports.LEASE_SECONDS - 0.1, False),
        (Holder(identity="other"), ports.LEASE_SECONDS + 0.1, True),
        (Holder(identity="other", lease_seconds=60), 30.0, False),
        (Holder(identity=""), 0.0, True),
        (Holder(identity="me"), 0.0, True),
    ],
)
def test_who_may_take_the_lease(holder: Holder, age_seconds: float, free: bool) -> None:
    assert may_take(observe(None, holder, 100.0), "me", 100.0 + age_seconds) is free


async def test_the_first_candidate_creates_the_lease(clock: FakeClock) -> None:
    leases = OneLease()
    candidate = Election(leases, "a", clock)
    await candidate.acquire()
    assert candidate.leading
    assert candidate.epoch == next_epoch(0, clock.unix())
    assert leases.holder is not None
    assert leases.holder.identity == "a"
    assert leases.holder.renewed == "2026-11-20T12:00:00.000000Z"


async def test_a_dead_leaders_lease_expires_and_the_epoch_grows(clock: FakeClock) -> None:
    leases = OneLease()
    first, second = Election(leases, "a", clock), Election(leases, "b", clock)
    await first.acquire()
    before = clock.monotonic()
    await second.acquire()  # no candidate renews
    assert clock.monotonic() - before <= ports.LEASE_SECONDS + 2 * election.RETRY_SECONDS
    assert second.epoch > leases.epochs[0]
    assert not first.leading
    with pytest.raises(LeadershipLost):
        first.assert_leading()


async def test_a_leader_given_up_is_followed_at_once(clock: FakeClock) -> None:
    leases = OneLease()
    first, second = Election(leases, "a", clock), Election(leases, "b", clock)
    await first.acquire()
    await first.release()
    assert not first.leading
    before = clock.monotonic()
    await second.acquire()
    assert clock.monotonic() == before
    assert second.epoch == leases.epochs[0] + 1


async def test_a_restarted_process_of_the_same_pod_leads_at_once_under_a_new_epoch(clock: FakeClock) -> None:
    leases = OneLease()
    await Election(leases, "a", clock).acquire()
    again = Election(leases, "a", clock)
    before = clock.monotonic()
    await again.acquire()
    assert clock.monotonic() == before
    assert again.epoch == leases.epochs[0] + 1, "within the same second"


async def test_a_leader_that_cannot_renew_ends_before_another_can_begin(clock: FakeClock) -> None:
    leases = OneLease()
    leader = Election(leases, "a", clock)
    await leader.acquire()
    leases.down = True
    before = clock.monotonic()
    with pytest.raises(LeadershipLost):
        await leader.keep()
    assert clock.monotonic() - before < ports.LEASE_SECONDS


async def test_a_renewal_without_an_answer_is_repeated_at_once(clock: FakeClock) -> None:
    leases = OneLease()
    leader = Election(leases, "a", clock)
    await leader.acquire()
    leases.down = True
    with pytest.raises(LeadershipLost):
        await leader.keep()
    pauses = (election.RENEW_DEADLINE_SECONDS - election.RETRY_SECONDS) / election.AGAIN_SECONDS
    assert leases.refused == pytest.approx(pauses, abs=2), "not once in two seconds"


async def test_a_leader_whose_lease_was_taken_ends(clock: FakeClock) -> None:
    leases = OneLease()
    leader = Election(leases, "a", clock)
    await leader.acquire()
    assert leases.holder is not None
    await leases.replace(msgspec.structs.replace(leases.holder, identity="b", transitions=2))
    with pytest.raises(LeadershipLost, match="b holds"):
        await leader.keep()
    assert not leader.leading


async def test_a_renewal_whose_answer_was_lost_is_not_taken_for_another_leader(clock: FakeClock) -> None:
    leases = OneLease()
    leader = Election(leases, "a", clock)
    await leader.acquire()
    assert leases.holder is not None
    await leases.replace(leases.holder)  # our own call, as the server saw it

    async def read_then_fail() -> Holder:
        leases.down = True
        assert leases.holder is not None
        return leases.holder

    leases.read = read_then_fail  # type: ignore[method-assign]
    with pytest.raises(LeadershipLost, match="not renewed"):
        await leader.keep()  # the leader went on until the server stopped answering


async def test_a_candidate_knows_from_the_lease_whether_some_operator_lives(clock: FakeClock) -> None:
    lease = OneLease()
    leader, standby = Election(lease, "a", clock), Election(lease, "b", clock)
    assert not standby.operator_lives, "it has not read the Lease yet"
    await leader.acquire()
    assert leader.operator_lives
    standby._seen = await standby._attempt(None)
    assert standby.operator_lives
    clock.advance(ports.LEASE_SECONDS + 1)
    assert not standby.operator_lives, "the leader is silent"
    assert not leader.operator_lives
    standby._seen = await standby._attempt(standby._seen)
    assert standby.leading
    assert standby.operator_lives


async def test_a_lease_that_was_given_back_counts_until_it_would_have_expired(clock: FakeClock) -> None:
    lease = OneLease()
    lease.holder = Holder(identity="", lease_seconds=15, transitions=3)
    standby = Election(lease, "b", clock)
    standby._seen = observe(None, lease.holder, clock.monotonic())
    assert standby.operator_lives, "this candidate is about to take it"
    clock.advance(16)
    assert not standby.operator_lives


async def test_only_the_holder_can_raise_the_epoch(clock: FakeClock) -> None:
    leases = OneLease()
    leader = Election(leases, "a", clock)
    await leader.acquire()
    raised = leader.epoch + 40
    assert await leader.raise_epoch(raised) == raised
    assert await leader.raise_epoch(7) == raised
    assert leases.holder is not None
    assert leases.holder.transitions == raised
    await leases.replace(msgspec.structs.replace(leases.holder, identity="b", transitions=raised + 1))
    with pytest.raises(Conflict):
        await leader.raise_epoch(raised + 9)


async def test_a_lease_of_yesterday_leads_to_a_higher_epoch_than_any_that_was_given_since() -> None:
    before, after = await epochs_around_a_restore()
    assert after > before


async def test_a_lease_that_was_deleted_leads_to_a_higher_epoch_too(clock: FakeClock) -> None:
    leases = OneLease()
    first, second = Election(leases, "a", clock), Election(leases, "b", clock)
    await first.acquire()
    before = first.epoch
    leases.holder = None
    clock.advance(60.0)
    await second.acquire()
    assert second.epoch > before


async def test_a_leader_from_before_the_restore_ends_at_its_next_renewal(clock: FakeClock) -> None:
    leases = OneLease()
    await Election(leases, "a", clock).acquire()
    backup = leases.holder
    clock.advance(3600.0)
    former = Election(leases, "a", clock)  # the process was restarted after the backup
    await former.acquire()
    assert backup is not None
    leases.holder = msgspec.structs.replace(backup, resource_version="7")
    with pytest.raises(LeadershipLost, match="a holds"):
        await former.keep()
    with pytest.raises(LeadershipLost):
        await former.raise_epoch(2**30)  # it overtakes no successor either
    assert leases.holder.transitions == backup.transitions


async def test_a_stalled_leader_from_before_the_restore_can_neither_speak_nor_raise_its_epoch(clock: FakeClock) -> None:
    leases = OneLease()
    await Election(leases, "a", clock).acquire()
    backup = leases.holder
    stalled = Election(leases, "a", clock)
    await stalled.acquire()
    leases.holder = backup
    clock.advance(election.RENEW_DEADLINE_SECONDS)
    living = Election(leases, "a", clock)
    await living.acquire()
    with pytest.raises(LeadershipLost):
        _ = stalled.epoch
    with pytest.raises(LeadershipLost):
        await stalled.raise_epoch(2**30)
    assert leases.holder is not None
    assert leases.holder.transitions == living.epoch > max(leases.epochs[:2])


async def test_a_leader_whose_epoch_a_person_has_raised_is_followed_by_a_higher_one(clock: FakeClock) -> None:
    leases = OneLease()
    leader = Election(leases, "a", clock)
    await leader.acquire()
    assert leases.holder is not None
    raised = leader.epoch + 10**6
    await leases.replace(msgspec.structs.replace(leases.holder, transitions=raised))
    with pytest.raises(LeadershipLost):
        await leader.keep()
    again = Election(leases, "a", clock)
    await again.acquire()
    assert again.epoch == raised + 1


@pytest.mark.parametrize(
    ("before", "unix_seconds", "epoch"),
    [
        (0, EPOCHS_BEGIN + 90.7, 90),
        (41, EPOCHS_BEGIN + 90.7, 90),
        (90, EPOCHS_BEGIN + 90.7, 91),
        (41, 0.0, 42),  # a clock without a battery
        (41, EPOCHS_BEGIN + 2**33, MOST_BY_CLOCK),
        (MOST_BY_CLOCK, EPOCHS_BEGIN + 2**33, MOST_BY_CLOCK + 1),
    ],
)
def test_an_epoch_grows_whatever_the_clock_says(before: int, unix_seconds: float, epoch: int) -> None:
    assert next_epoch(before, unix_seconds) == epoch
    assert epoch < 2**31  # Kubernetes takes no larger number


async def test_a_lease_given_back_by_nobody_is_left_alone(clock: FakeClock) -> None:
    leases = OneLease()
    await Election(leases, "a", clock).release()
    assert leases.holder is None


def test_several_tasks_that_notice_a_lost_leadership_are_no_failure() -> None:
    """The end is logged as one line then, without a traceback."""
    lost, disk = LeadershipLost("not renewed for 7 s"), OSError("disk")
    assert lost_leadership(lost) is lost
    assert lost_leadership(ExceptionGroup("tasks", [ExceptionGroup("bus", [lost]), lost])) is lost
    assert lost_leadership(ExceptionGroup("tasks", [lost, disk])) is None
    assert lost_leadership(disk) is None
