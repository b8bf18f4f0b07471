"""The processes of numbered groups: who is in the next one, who is called to it, and who has no place."""

from __future__ import annotations

from typing import Any

from tests.unit.client_format import elastic_roster as roster

PATIENCE = 20.0


class Job:
    """A roster, what it has sent to each seat, and whom it has refused."""

    def __init__(self, size: int = 3) -> None:
        self.roster = roster.Roster(size, PATIENCE)
        self.now = 0.0
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.closed: set[int] = set()

    def look(self, seconds: float = 0.0) -> list[tuple[int, dict[str, Any]]]:
        self.now += seconds
        orders = self.roster.look(self.now)
        self.closed |= set(orders.refused)
        return [(seat, message) for seat, message in orders.messages]

    def come(self, seat: int, rank: int) -> None:
        self.roster.enter(seat, rank, 100 + seat)
        self.arrive(seat, 0, has_state=False)

    def arrive(self, seat: int, number: int | None = None, has_state: bool = True) -> None:
        number = self.roster.number if number is None else number
        self.roster.arrive(seat, number, roster.Arrival(f"handle {seat}", [seat], has_state))

    def begin(self) -> None:
        for seat, rank in ((1, 0), (2, 1), (3, 2)):
            self.come(seat, rank)
        assert members(self.look()) == [1, 2, 3]


def members(messages: list[tuple[int, dict[str, Any]]]) -> list[int]:
    """Return the seats that get a group, in its order."""
    assert all("group" in message for _, message in messages)
    return [seat for seat, _ in sorted(messages, key=lambda sent: sent[1]["position"])]


def test_the_first_group_waits_for_all_ranks_and_has_their_order() -> None:
    job = Job()
    job.come(11, 2)
    job.come(12, 0)
    assert job.look(1000) == [], "a rank that comes late is waited for"
    job.come(13, 1)
    messages = job.look()
    assert members(messages) == [12, 13, 11]
    assert all(message["group"] == 1 for _, message in messages)
    assert messages[0][1]["handles"] == ["handle 12", "handle 13", "handle 11"]
    assert job.look(1000) == []


def test_a_member_that_is_gone_calls_the_others_once_and_they_go_on_without_it() -> None:
    job = Job()
    job.begin()
    job.roster.leave(2)
    assert job.look() == [(1, {"renew": 1}), (3, {"renew": 1})]
    assert job.look(1) == []
    job.arrive(3)
    assert job.look(1) == []
    job.arrive(1)
    assert members(job.look()) == [1, 3]
    assert job.roster.number == 2


def test_a_member_that_has_seen_the_error_first_calls_those_that_have_not() -> None:
    job = Job()
    job.begin()
    job.arrive(1)
    assert job.look() == [(2, {"renew": 1}), (3, {"renew": 1})]
    job.arrive(2)
    job.arrive(3)
    assert members(job.look()) == [1, 2, 3], "a fault of the network: nobody is lost"


def test_a_newcomer_is_taken_in_at_the_place_of_its_rank() -> None:
    job = Job()
    job.begin()
    job.roster.leave(1)
    job.look()
    job.arrive(2)
    job.arrive(3)
    assert members(job.look()) == [2, 3]
    job.come(9, 0)
    assert job.look() == [(2, {"renew": 2}), (3, {"renew": 2})]
    job.arrive(2)
    job.arrive(3)
    assert members(job.look()) == [9, 2, 3]


def test_a_process_of_the_same_rank_takes_the_place_of_one_that_was_cut_off() -> None:
    job = Job()
    job.begin()
    job.come(9, 1)
    assert (2, {"refused": roster.EXCLUDED}) in job.look()
    assert job.closed == {2}
    job.arrive(2)
    job.arrive(1)
    job.arrive(3)
    assert members(job.look()) == [1, 9, 3], "what the old one still says is not heard"


def test_a_process_that_knows_an_earlier_group_has_no_place() -> None:
    job = Job()
    job.begin()
    job.roster.leave(2)
    job.look()
    job.arrive(1)
    job.arrive(3)
    job.look()
    job.roster.enter(9, 1)
    job.arrive(9, 1)
    assert job.look() == [(9, {"refused": roster.EXCLUDED})]
    job.arrive(3, 1)
    assert (3, {"refused": roster.EXCLUDED}) in job.look()


def test_a_member_that_hangs_is_left_behind_when_patience_ends() -> None:
    job = Job()
    job.begin()
    job.arrive(1)
    job.arrive(2)
    job.look()
    assert job.look(PATIENCE) == []
    messages = job.look(0.1)
    assert messages[-1] == (3, {"refused": roster.EXCLUDED})
    assert members(messages[:-1]) == [1, 2]
    assert job.closed == {3}


def test_patience_begins_when_the_first_member_has_arrived() -> None:
    """All evaluate for long when one is lost: neither the members nor the newcomer that waits lose their place."""
    job = Job()
    job.begin()
    job.roster.leave(2)
    job.look()
    job.come(9, 1)
    assert job.look(10 * PATIENCE) == []
    job.arrive(1)
    assert job.look(PATIENCE) == []
    assert job.look(PATIENCE) == []
    job.arrive(3)
    assert members(job.look()) == [1, 9, 3]
    assert job.closed == set()


def test_patience_begins_again_when_the_member_that_had_arrived_is_gone() -> None:
    job = Job()
    job.begin()
    job.arrive(1)
    job.look()
    job.roster.leave(1)
    assert job.look(2 * PATIENCE) == []
    job.arrive(2)
    assert job.look(PATIENCE) == []
    job.arrive(3)
    assert members(job.look()) == [2, 3]


def test_a_newcomer_whose_source_is_lost_or_hangs_does_not_begin_the_training_again() -> None:
    job = Job(2)
    job.come(1, 0)
    job.come(2, 1)
    job.look()
    job.roster.leave(2)
    job.come(9, 1)
    job.arrive(1)
    assert members(job.look()) == [1, 9]
    job.arrive(9, has_state=False)
    job.look()
    assert job.look(2 * PATIENCE) == [], "the others are of no use without the member that has the state"
    job.roster.leave(1)
    assert job.look() == [(9, {"refused": roster.STATE_LOST})]


def test_a_first_group_that_breaks_before_any_has_the_state_is_formed_again() -> None:
    job = Job()
    job.begin()
    job.roster.leave(1)
    job.look()
    for seat in (2, 3):
        job.arrive(seat, has_state=False)
    assert members(job.look()) == [2, 3]


def test_without_any_member_the_state_is_lost_for_who_comes() -> None:
    job = Job()
    job.begin()
    for seat in (1, 2, 3):
        job.roster.leave(seat)
    assert job.look() == []
    job.come(9, 0)
    assert job.look() == [(9, {"refused": roster.STATE_LOST})]


def test_a_rank_that_has_done_the_last_step_is_no_loss_and_nothing_is_left_for_who_comes() -> None:
    job = Job()
    job.begin()
    job.roster.end(1)
    job.roster.leave(1)
    assert job.look() == []
    job.roster.leave(2)
    assert job.look() == [(3, {"renew": 1})]
    job.arrive(3)
    assert members(job.look()) == [3], "one that has lost the last exchange ends by itself"
    job.roster.end(3)
    job.come(9, 1)
    assert job.look() == [(9, {"refused": roster.ENDED})]


def test_a_group_says_who_was_lost_who_is_late_and_who_has_joined() -> None:
    job = Job()
    assert job.roster.standing() is None
    job.begin()
    assert job.roster.standing() == roster.Standing(1, 3, (0, 1, 2), (), (), roster.Change(0, (), (0, 1, 2)))
    job.roster.leave(2)
    job.look()
    standing = job.roster.standing()
    assert standing.late == (0, 2), "no other has come yet, and the group has lost a member"
    job.arrive(3)
    job.look()
    assert job.roster.standing().late == (0,)
    job.arrive(1)
    job.look()
    lost = roster.Loss(1, 102, roster.GONE)
    assert job.roster.standing() == roster.Standing(2, 3, (0, 2), (), (), roster.Change(3, (lost,), ()))
    job.come(4, 1)
    job.look()
    standing = job.roster.standing()
    assert (standing.number, standing.late, standing.joining) == (2, (0, 2), (1,))
    job.arrive(1)
    job.arrive(3)
    job.look()
    assert job.roster.standing() == roster.Standing(3, 3, (0, 1, 2), (), (), roster.Change(2, (), (1,)))


def test_a_group_says_how_a_process_lost_its_place() -> None:
    job = Job()
    job.begin()
    job.arrive(1)
    job.look()
    job.arrive(2, number=7)
    job.look(PATIENCE + 1)
    change = job.roster.standing().change
    assert [(loss.rank, loss.how) for loss in change.lost] == [(1, roster.CUT_OFF), (2, roster.LATE)]
    job.come(5, 0)
    job.look()
    assert [(loss.rank, loss.process, loss.how) for loss in job.roster._lost.values()] == [(0, 101, roster.REPLACED)]


def test_a_process_that_never_had_a_place_is_no_loss() -> None:
    job = Job()
    job.begin()
    job.come(4, 1)
    job.roster.leave(4)
    for seat in (1, 3):
        job.arrive(seat)
    job.look()
    assert [loss.process for loss in job.roster.standing().change.lost] == [102], "whose place it took"


def test_once_a_rank_is_done_the_group_is_not_said_to_shrink() -> None:
    job = Job()
    job.begin()
    job.roster.end(1)
    job.look()
    assert job.roster.standing() is None
