"""The micro-batches of a broken step: none is lost or counted twice, and the rule is core's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.planning import partial_iteration
from falcon_core.planning.partial_iteration import SegmentState
from tests.unit.client_format import elastic_dealing as dealing

SEGMENTS = 3


def progress(step: int, own: list[int], finished: list[int], reduced: int = 0) -> dealing.Progress:
    return dealing.Progress(step, False, tuple(own), tuple(finished), reduced)


NEWCOMER = dealing.Progress(dealing.NO_STEP)


@given(st.integers(1, 40), st.integers(1, 9))
def test_the_even_split_is_whole_and_even(total: int, size: int) -> None:
    shares = [dealing.even(total, size, index) for index in range(size)]
    assert [number for share in shares for number in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(2, 6), st.integers(1, 30), st.integers(0, SEGMENTS), st.data())
def test_the_rest_of_a_step_is_dealt_as_core_plans_it(
    ranks: int, total: int, reduced: int, data: st.DataObject
) -> None:
    shares = [dealing.even(total, ranks, rank) for rank in range(ranks)]
    done = [len(share) if reduced else data.draw(st.integers(0, len(share))) for share in shares]
    lost = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1))
    left = [rank for rank in range(ranks) if rank not in lost]
    names = [f"segment {number}" for number in range(SEGMENTS)]
    plan = partial_iteration.resume(
        [
            partial_iteration.Progress(
                rank=rank,
                microbatches=tuple(shares[rank]),
                finished=done[rank],
                segments=dict.fromkeys(names[:reduced], SegmentState.REDUCED),
            )
            for rank in range(ranks)
        ],
        lost,
        names,
    )
    members = [progress(7, shares[rank][done[rank] :], shares[rank][: done[rank]], reduced) for rank in left]
    found = dealing.resume(members, total, SEGMENTS)
    assert found.step == 7
    numbers = [number for own in found.own for number in own]
    assert sorted(numbers) == sorted(number for rank in left for number in (*plan.own[rank], *plan.extra[rank])), (
        "the same micro-batches are computed"
    )
    assert max(map(len, found.own)) == max(len(plan.own[rank]) + len(plan.extra[rank]) for rank in left), "as early"
    for rank, own in zip(left, found.own, strict=True):
        assert own[: len(plan.own[rank])] == plan.own[rank], "members keep what is theirs"


def test_what_is_reduced_on_one_member_is_copied_to_the_others() -> None:
    members = [progress(4, [], [0, 1], 1), progress(4, [], [2, 3], 2), NEWCOMER]
    plan = dealing.resume(members, 6, SEGMENTS)
    assert (plan.source, plan.first, plan.reduced) == (1, 0, 2)
    assert plan.newcomers == (2,)
    assert plan.own == ((4,), (5,), ()) or plan.recomputed == 2
    assert sorted(number for own in plan.own for number in own) == [4, 5]
    assert dealing.resume(members[:2], 6, SEGMENTS).first == 1, "what all have is not copied"


def test_a_gradient_that_is_whole_is_not_computed_again() -> None:
    members = [progress(4, [], [0, 1], SEGMENTS), progress(4, [], [2, 3], 1)]
    plan = dealing.resume(members, 6, SEGMENTS)
    assert (plan.first, plan.reduced, plan.recomputed) == (1, SEGMENTS, 0)


def test_a_member_that_is_a_step_behind_gets_that_steps_gradient_and_a_share_of_the_next() -> None:
    members = [progress(4, [], [3, 4, 5], 2), progress(5, [1], [0])]
    plan = dealing.resume(members, 6, SEGMENTS)
    assert (plan.step, plan.source, plan.late) == (5, 1, (0,))
    assert (plan.first, plan.reduced) == (0, SEGMENTS)
    assert sorted((*plan.own[0], *plan.own[1])) == [1, 2, 3, 4, 5]
    assert plan.own[1][0] == 1


def test_behind_the_last_step_nothing_is_computed() -> None:
    over = dealing.Progress(9, True)
    plan = dealing.resume([over, progress(8, [], [0, 1], 2), NEWCOMER], 4, SEGMENTS)
    assert (plan.step, plan.late, plan.newcomers, plan.recomputed) == (9, (1,), (2,), 0)


def test_in_the_first_group_all_take_the_step_of_the_first_member() -> None:
    loaded = [dealing.Progress(dealing.NO_STEP, first=step) for step in (40, 0, 30)]
    plan = dealing.resume(dealing.begin(loaded), 6, SEGMENTS)
    assert (plan.step, plan.source, plan.newcomers) == (40, 0, (1, 2))
    there = [dealing.Progress(7, first=0), dealing.Progress(dealing.NO_STEP, first=40)]
    assert dealing.begin(there) == there, "a newcomer's own checkpoint does not count"


def test_newcomers_that_come_with_a_late_member_keep_the_gradient_that_it_lacks() -> None:
    late, ahead = progress(4, [], [3, 4, 5], 2), progress(5, [1], [0])
    plan = dealing.resume([NEWCOMER, late, ahead], 6, SEGMENTS)
    assert [plan.keeps_copies(member) for member in range(3)] == [True, True, False]
    again = dealing.resume([progress(5, [], []), late, ahead], 6, SEGMENTS)
    assert again.source == 0, "the late one has lost the copies: the newcomer of before may be the source"
    assert all(dealing.resume([NEWCOMER, ahead], 6, SEGMENTS).keeps_copies(member) for member in range(2))


@pytest.mark.parametrize("steps", [[3, 5], [dealing.NO_STEP, dealing.NO_STEP]])
def test_members_that_cannot_be_of_one_group_are_refused(steps: list[int]) -> None:
    with pytest.raises(ValueError):
        dealing.resume([dealing.Progress(step) for step in steps], 4, SEGMENTS)


def test_progress_survives_its_way_through_json() -> None:
    drawn = random.Random(1)
    here = progress(drawn.randrange(100), [1, 2], [0], 1)
    assert dealing.Progress.read([here.step, here.over, list(here.own), list(here.finished), here.reduced, 0]) == here
