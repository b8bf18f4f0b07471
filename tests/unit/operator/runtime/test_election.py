"""The election: pure rules, and two candidates for one Lease on a fake clock."""

from __future__ import annotations

import msgspec
import pytest

from falcon_operator.base import ports
from falcon_operator.base.ports import Conflict, Holder, LeadershipLost, NotFound, lost_leadership
from falcon_operator.runtime import election
from falcon_operator.runtime.election import Election, may_take, observe
from tests.unit.operator.fake_clock import FakeClock


class OneLease:
    """A Lease's storage with resource versions; it can be made to fail."""

    def __init__(self) -> None:
        self.holder: Holder | None = None
        self.down = False
        self.refused = 0  # writes

    async def read(self) -> Holder:
        if self.down:
            raise OSError("no answer")
        if self.holder is None:
            raise NotFound("no lease")
        return self.holder

    async def create(self, holder: Holder) -> Holder:
        if self.holder is not None:
            raise Conflict("exists")
        return self._store(holder)

    async def replace(self, holder: Holder) -> Holder:
        if self.down:
            self.refused += 1
            raise OSError("no answer")
        if self.holder is None or self.holder.resource_version != holder.resource_version:
            raise Conflict("changed")
        return self._store(holder)

    def _store(self, holder: Holder) -> Holder:
        version = int(self.holder.resource_version) + 1 if self.holder else 1
        self.holder = msgspec.structs.replace(holder, resource_version=str(version))
        return self.holder


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
    assert candidate.epoch == 1
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
    assert second.epoch == 2
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
    assert second.epoch == 2


async def test_a_restarted_process_of_the_same_pod_leads_at_once_under_a_new_epoch(clock: FakeClock) -> None:
    leases = OneLease()
    await Election(leases, "a", clock).acquire()
    again = Election(leases, "a", clock)
    before = clock.monotonic()
    await again.acquire()
    assert clock.monotonic() == before
    assert again.epoch == 2


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
    assert await leader.raise_epoch(41) == 41
    assert await leader.raise_epoch(7) == 41
    assert leases.holder is not None
    assert leases.holder.transitions == 41
    await leases.replace(msgspec.structs.replace(leases.holder, identity="b", transitions=42))
    with pytest.raises(Conflict):
        await leader.raise_epoch(50)


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
