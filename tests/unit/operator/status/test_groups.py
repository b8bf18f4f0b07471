"""The words and Events of a group of ranks that goes on without a lost one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.errors.taxonomy import classify_exit
from falcon_core.recovery import Member
from falcon_core.wire.launcher.printed import Printed
from falcon_core.wire.reporting.groups import (
    MAX_CHANGES,
    MAX_LIST,
    GroupChange,
    GroupReport,
    LostRank,
    RankEnd,
    RankGroup,
)
from falcon_operator.api.elastic import GroupChangeStatus, GroupStatus
from falcon_operator.intent.observation.rank_groups import GroupSeen, Loss
from falcon_operator.status.groups.group_events import group_events
from falcon_operator.status.groups.group_status import describe_group, group_words
from tests.unit.operator.intent.test_rank_groups import seen
from tests.unit.operator.status.test_hostile_reports import EXTREMES, places, spoilt

NOW = 1_800_000_000.0
MS = round(1000 * NOW)
PLACE = "(pod gpt2-1, node node-b)"


def member(replica: int = 1) -> Member:
    return Member(replica=replica, pod_name=f"gpt2-{replica}", node="node-b")


def loss(rank: int = 1, how: str = "Gone", code: int | None = None, printed: Printed | None = None) -> Loss:
    end = classify_exit(exit_code=code, signal=None, oom_killed=False) if code is not None else None
    return Loss(rank=rank, member=member(), how=how, end=end, printed=printed)


def described(*changes: GroupChange, losses: dict[int, list[Loss]] | None = None, **fields: Any) -> GroupStatus:
    newest = changes[-1]
    group = RankGroup(newest.number, 4, newest.size, newest.unix_ms, changes=list(changes), **fields)
    return describe_group(GroupSeen(generation=2, group=group, losses=losses or {}), NOW)


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (loss(), "its connection to the others has ended"),
        (loss(code=3), "exited with code 3"),
        (loss(how="Replaced", code=3), "exited with code 3"),
        (loss(how="Late", code=1), "the others waited for it too long"),
        (loss(how="CutOff", code=1), "it was cut off, and came back when the others had gone on"),
        (loss(how="later"), "it lost its place in the group"),
        (loss(code=1, printed=Printed(1, "ValueError: no")), "exited with code 1; its pod printed 'ValueError: no'"),
    ],
)
def test_a_lost_rank_has_its_cause_and_not_what_it_did_afterwards(lost: Loss, why: str) -> None:
    found = described(GroupChange(2, MS, 4, 3), losses={2: [lost]})
    assert found.why == f"lost rank 1 {PLACE}: {why}"
    assert found.lost[0].why == why
    assert bool(found.lost[0].cause) == ("exited" in why)


@pytest.mark.parametrize(
    ("fields", "awaited"),
    [
        ({"missing": [1]}, "a new process of rank 1"),
        ({"late": [0, 2]}, "ranks 0, 2 to meet the others"),
        ({"late": [0], "joining": [1]}, "rank 0 to meet the others; then rank 1 can join"),
    ],
)
def test_the_next_change_waits_for(fields: dict[str, Any], awaited: str) -> None:
    assert described(GroupChange(2, MS, 4, 3), **fields).next == awaited


def test_many_ranks_are_counted() -> None:
    first = [loss(rank) for rank in range(16)]
    found = described(GroupChange(2, MS, 1004, 4), GroupChange(3, MS, 4, 2), losses={2: first})
    assert "and 998 more" in found.changes[0].what
    assert found.next == "new processes of 2 ranks"
    assert len(found.lost) == 5


def test_a_rank_that_is_back_still_says_how_it_was_lost() -> None:
    first, lost, back = GroupChange(1, MS - 9000, 0, 4), GroupChange(2, MS - 5000, 4, 3), GroupChange(3, MS, 3, 4)
    found = described(first, lost, GroupChange(3, MS, 3, 4, joined=[1]), losses={2: [loss(code=9)]})
    assert found.why == "rank 1 joined; rank 1 was lost at 07:59:55: exited with code 9"
    assert group_words(found) == f"4 of 4 ranks since 2027-01-15T08:00:00Z: {found.why}"
    assert described(first, lost, back).why == "all ranks met again after a failed call; none was lost"
    assert described(first).why == ""


def test_a_clock_that_is_ahead_shows_no_time_to_come() -> None:
    assert described(GroupChange(2, MS + 99_000, 4, 3)).since == "2027-01-15T08:00:00Z"


def status(number: int, *changes: tuple[int, int, int], generation: int = 1, lost: tuple[int, ...] = ()) -> GroupStatus:
    return GroupStatus(
        generation=generation,
        number=number,
        ranks=changes[-1][2] if changes else 4,
        wanted=4,
        since="",
        changes=[
            GroupChangeStatus(number=each, at="", before=before, ranks=ranks, what="it happened", lost=list(lost))
            for each, before, ranks in changes
        ],
    )


def reasons(before: GroupStatus | None, after: GroupStatus | None) -> list[str]:
    return [event.reason for event in group_events(before, after)]


def test_each_change_has_one_event_and_many_changes_of_a_kind_share_it() -> None:
    shrunk, both = status(2, (2, 4, 3)), status(5, (2, 4, 3), (3, 3, 4), (4, 4, 3), (5, 3, 4))
    assert reasons(None, None) == reasons(None, status(1)) == reasons(shrunk, None) == []
    assert reasons(status(1), shrunk) == ["Shrunk"]
    assert reasons(shrunk, shrunk) == []
    assert reasons(shrunk, both) == reasons(None, both) == ["Shrunk", "Grown"]
    assert reasons(both, shrunk) == [], "of an earlier group"
    assert "in group 4" in group_events(shrunk, both)[0].note
    assert "in group 2" not in group_events(shrunk, both)[0].note


def test_the_groups_of_another_generation_are_news_though_their_numbers_are_lower() -> None:
    assert reasons(status(9, (9, 4, 3)), status(2, (2, 4, 3), generation=2)) == ["Shrunk"]


def test_a_rank_whose_place_another_process_took_at_once_is_news_and_a_failed_call_is_none() -> None:
    assert reasons(status(1), status(2, (2, 4, 4), lost=(1,))) == ["RankReplaced"]
    assert reasons(status(1), status(2, (2, 4, 4))) == []


def test_changes_beyond_those_that_are_shown_are_counted() -> None:
    (event,) = group_events(status(1), status(9, (9, 4, 3)))
    assert "; 7 earlier changes are not shown" in event.note


def test_whatever_a_launcher_claims_fits_the_status() -> None:
    most = (1 << 31) - 1
    lost = [LostRank(most, most, "x" * 16)] * MAX_LIST
    big = GroupChange((1 << 63) - 1, (1 << 63) // 1_000_000, most, most, lost, [most] * MAX_LIST)
    wild = Printed(1, "\x1b[31m" + "é" * 500, "x" * 64)
    losses = [loss(code=1, printed=wild)] * MAX_LIST
    found = described(*[big] * MAX_CHANGES, losses={big.number: losses}, missing=[most] * MAX_LIST)
    assert len(msgspec.json.encode(found)) < 8000
    for each in found.lost:
        assert "\x1b" not in each.why
        assert len(each.why) <= 256
    assert all(len(each.what) <= 256 for each in found.changes)


def test_no_number_that_a_report_can_hold_exceeds_the_formats_of_the_status() -> None:
    change = GroupChange(2, MS, 4, 3, [LostRank(2, 77, "Gone")], [1])
    good = [
        GroupReport(RankGroup(2, 4, 3, MS, missing=[2], late=[0], joining=[1], changes=[change, change])),
        GroupReport(None, [RankEnd(2, 77, -9, MS)]),
    ]
    fields = msgspec.to_builtins(good)
    for at in places(fields):
        for number in (*EXTREMES, (1 << 31) - 1, 1 << 31):
            try:
                bad = msgspec.convert(spoilt(fields, at, number), list[GroupReport])
            except msgspec.ValidationError:
                continue  # refused and counted
            found = seen(*bad)
            status = describe_group(found, NOW) if found is not None else None
            assert status is None or fits(msgspec.to_builtins(status)), (at, number)


def fits(value: Any, name: str = "") -> bool:
    """Check whether all numbers of an object have the formats of its definition."""
    if isinstance(value, dict):
        return all(fits(each, key) for key, each in value.items())
    if isinstance(value, list):
        return len(value) <= 16 and all(fits(each, name) for each in value)
    most = (1 << 63) - 1 if name in ("number", "generation") else (1 << 31) - 1
    return not isinstance(value, int) or 0 <= value <= most
