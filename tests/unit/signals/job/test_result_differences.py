"""Which ranks are named where results of all-reduces differ, and where nothing is said."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from falcon_core.signals.job.result_differences import Difference, find_differences
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.verification import CommResults, Digest, RankResults

RIGHT, WRONG = 111, 222
replace = msgspec.structs.replace
Calls = Mapping[int, int]  # the digest's value by the call's number


def world(rank: int, size: int, calls: Calls, *, nth: int = 1, sole: bool = True, width: int = 1) -> RankResults:
    """Return what a rank reports of a communicator of all ranks."""
    digests = [Digest(width=width, first=number, calls=width, value=value) for number, value in calls.items()]
    comm = CommResults(comm=nth, size=size, place=rank, nth=nth, sole=sole, digests=digests)
    return RankResults(rank=rank, life=1, every=100, comms=[comm])


def reports(*of_ranks: Calls, sole: bool = True) -> list[RankResults]:
    return [world(rank, len(of_ranks), calls, sole=sole) for rank, calls in enumerate(of_ranks)]


def test_equal_results_say_nothing() -> None:
    assert find_differences(reports({100: RIGHT}, {100: RIGHT}, {100: RIGHT}), 3) == []
    assert find_differences([], 3) == []


def test_the_rank_that_differs_from_a_majority_is_named_with_its_call() -> None:
    (found,) = find_differences(reports({100: 5, 200: RIGHT}, {100: 5, 200: WRONG}, {100: 5, 200: RIGHT}), 3)
    assert found == Difference(comm="all ranks", members=(0, 1, 2), ranks=(1,), first=200, calls=1, turns=1)


def test_several_ranks_may_differ_while_most_agree() -> None:
    (found,) = find_differences(reports({1: RIGHT}, {1: WRONG}, {1: RIGHT}, {1: 333}, {1: RIGHT}), 5)
    assert found.ranks == (1, 3)


@pytest.mark.parametrize("values", [(RIGHT, WRONG), (RIGHT, WRONG, RIGHT, WRONG), (1, 2, 3)])
def test_without_a_majority_the_group_is_named_and_no_rank(values: tuple[int, ...]) -> None:
    (found,) = find_differences(reports(*({1: value} for value in values)), len(values))
    assert (found.members, found.ranks) == (tuple(range(len(values))), ())


def test_only_calls_that_all_members_report_are_compared() -> None:
    assert find_differences(reports({100: RIGHT}, {200: WRONG}, {100: RIGHT}), 3) == []
    assert find_differences(reports({100: RIGHT}, {100: WRONG}), 3) == [], "rank 2 has not reported"
    first, second = reports({100: RIGHT}, {100: WRONG})
    assert find_differences([first, replace(second, every=50)], 2) == [], "they verify other calls"
    assert find_differences([first, replace(second, life=2)], 2) == [], "a process that began again counts from 0"


def test_several_calls_at_once_are_compared_where_each_rank_has_summed_up_the_same() -> None:
    same, other = {0: RIGHT}, {0: WRONG}
    sums = [world(rank, 3, calls, width=64) for rank, calls in enumerate((same, other, same))]
    (found,) = find_differences(sums, 3)
    assert (found.ranks, found.first, found.calls, found.turns) == ((1,), 0, 64, 64)
    digest = replace(sums[1].comms[0].digests[0], calls=63)
    sums[1] = replace(sums[1], comms=[replace(sums[1].comms[0], digests=[digest])])
    assert find_differences(sums, 3) == [], "one of them has missed a call"


def test_a_single_call_comes_before_the_sum_that_contains_it() -> None:
    one, many = reports({70: 1}, {70: 2}, {70: 1}), [world(r, 3, {64: v}, width=64) for r, v in enumerate((5, 6, 5))]
    both = [
        replace(a, comms=[replace(a.comms[0], digests=a.comms[0].digests + b.comms[0].digests)])
        for a, b in zip(many, one, strict=True)
    ]
    assert [each.turns for each in find_differences(both, 3)] == [1, 64]


def test_groups_that_threads_may_have_met_in_another_order_need_an_equal_result_first() -> None:
    """Two groups of all ranks: which one is the first may differ between ranks, and then no call is equal."""
    never_equal = reports({100: 1, 200: 2}, {100: 3, 200: 4}, {100: 1, 200: 2}, sole=False)
    assert find_differences(never_equal, 3) == []
    once_equal = reports({100: 1, 200: 2}, {100: 1, 200: 4}, {100: 1, 200: 2}, sole=False)
    assert [each.ranks for each in find_differences(once_equal, 3)] == [(1,)]


def test_the_second_group_of_all_ranks_is_compared_with_the_second() -> None:
    first = [world(rank, 2, {100: 5, 200: rank}, nth=1, sole=False) for rank in range(2)]
    second = [world(rank, 2, {100: 6, 200: 6}, nth=2, sole=False) for rank in range(2)]
    both = [replace(a, comms=[*a.comms, *b.comms]) for a, b in zip(first, second, strict=True)]
    assert [(each.comm, each.first) for each in find_differences(both, 2)] == [("all ranks", 200)]
    crossed = [both[0], replace(both[1], comms=[replace(c, nth=3 - c.nth) for c in both[1].comms])]
    assert find_differences(crossed, 2) == []


def axis(rank: int, comm: int, place: int, calls: Calls, size: int = 2) -> RankResults:
    digests = [Digest(width=1, first=number, calls=1, value=value) for number, value in calls.items()]
    comms = [CommResults(comm=comm, size=size, place=place, nth=1, sole=True, digests=digests)]
    return RankResults(rank=rank, life=1, every=100, comms=comms)


def test_groups_along_a_declared_axis_are_compared_among_their_members() -> None:
    """Four ranks, tensor 2: the groups of ranks 0 and 1, and of 2 and 3, have results of their own."""
    layout = Parallelism(tensor=2, data=2)
    calls = [{100: 1, 200: 2}, {100: 1, 200: 3}, {100: 7, 200: 8}, {100: 7, 200: 8}]
    found = find_differences([axis(rank, 1, rank % 2, each) for rank, each in enumerate(calls)], 4, layout)
    assert [(each.members, each.ranks, each.first) for each in found] == [((0, 1), (), 200)]
    assert find_differences([axis(rank, 1, rank % 2, each) for rank, each in enumerate(calls)], 4) == [], "not declared"


def test_a_process_that_reports_nonsense_is_left_out() -> None:
    sound = reports({100: RIGHT}, {100: RIGHT}, {100: RIGHT})
    strange = [
        RankResults(rank=7, life=1, every=100, comms=sound[0].comms),
        RankResults(rank=-1, life=1, every=100, comms=sound[0].comms),
        replace(sound[1], comms=[replace(sound[1].comms[0], place=2)]),
        replace(sound[1], comms=[replace(sound[1].comms[0], size=0)]),
    ]
    for each in strange:
        assert find_differences([sound[0], each, sound[2]], 3) == []
