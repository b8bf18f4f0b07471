"""Which ranks are named where results of all-reduces differ, and where nothing is said."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from falcon_core.signals.job.result_differences import Difference, find_differences
from falcon_core.wire.reporting.verification import Digest, RankResults

RIGHT, WRONG = 111, 222
replace = msgspec.structs.replace
Calls = Mapping[int, int]  # the digest's value by the call's number


def of_all(rank: int, size: int, calls: Calls, *, width: int = 1, numbers: int = 9) -> RankResults:
    """Return what a rank reports of the group of all ranks."""
    digests = [Digest(width, number, width, numbers, value) for number, value in calls.items()]
    return RankResults(rank=rank, life=1, every=100, size=size, digests=digests)


def reports(*of_ranks: Calls) -> list[RankResults]:
    return [of_all(rank, len(of_ranks), calls) for rank, calls in enumerate(of_ranks)]


def test_equal_results_say_nothing() -> None:
    assert find_differences(reports({100: RIGHT}, {100: RIGHT}, {100: RIGHT}), 3) == []
    assert find_differences([], 3) == []


def test_the_rank_that_differs_from_a_majority_is_named_with_its_call() -> None:
    (found,) = find_differences(reports({100: 5, 200: RIGHT}, {100: 5, 200: WRONG}, {100: 5, 200: RIGHT}), 3)
    assert found == Difference(ranks=(1,), first=200, calls=1, turns=1)


def test_several_ranks_may_differ_while_most_agree() -> None:
    (found,) = find_differences(reports({1: RIGHT}, {1: WRONG}, {1: RIGHT}, {1: 333}, {1: RIGHT}), 5)
    assert found.ranks == (1, 3)


@pytest.mark.parametrize("values", [(RIGHT, WRONG), (RIGHT, WRONG, RIGHT, WRONG), (1, 2, 3)])
def test_without_a_majority_no_rank_is_named(values: tuple[int, ...]) -> None:
    (found,) = find_differences(reports(*({1: value} for value in values)), len(values))
    assert found.ranks == ()


def test_only_calls_that_all_members_report_are_compared() -> None:
    assert find_differences(reports({100: RIGHT}, {200: WRONG}, {100: RIGHT}), 3) == []
    assert find_differences(reports({100: RIGHT}, {100: WRONG}), 3) == [], "rank 2 has not reported"
    first, second = reports({100: RIGHT}, {100: WRONG})
    assert find_differences([first, replace(second, every=50)], 2) == [], "they verify other calls"
    assert find_differences([first, replace(second, life=2)], 2) == [], "a process that began again counts from 0"


def test_several_calls_at_once_are_compared_where_each_rank_has_summed_up_the_same() -> None:
    same, other = {0: RIGHT}, {0: WRONG}
    sums = [of_all(rank, 3, calls, width=64) for rank, calls in enumerate((same, other, same))]
    (found,) = find_differences(sums, 3)
    assert (found.ranks, found.first, found.calls, found.turns) == ((1,), 0, 64, 64)
    digest = sums[1].digests[0]
    for missed in (replace(digest, calls=63), replace(digest, numbers=10)):
        sums[1] = replace(sums[1], digests=[missed])
        assert find_differences(sums, 3) == [], "one of them has missed a call, or another call than the others"


def test_a_single_call_comes_before_the_sum_that_contains_it() -> None:
    one, many = reports({70: 1}, {70: 2}, {70: 1}), [of_all(r, 3, {64: v}, width=64) for r, v in enumerate((5, 6, 5))]
    both = [replace(a, digests=a.digests + b.digests) for a, b in zip(many, one, strict=True)]
    assert [each.turns for each in find_differences(both, 3)] == [1, 64]


def test_a_group_of_some_ranks_is_not_compared() -> None:
    """A rank may have several groups of one size, and an elastic job that has lost a rank has other groups later."""
    assert find_differences(reports({100: RIGHT}, {100: WRONG}, {100: RIGHT}), 4) == []
    assert find_differences(reports({100: RIGHT}, {100: WRONG}, {100: RIGHT}), 2) == []


def test_where_one_rank_is_not_sure_no_rank_is_compared() -> None:
    """A rank that has had two groups of all ranks reports nothing: a common result, such as zeros, proves nothing."""
    sound = reports({100: 0, 200: 1}, {100: 0, 200: 2}, {100: 0, 200: 1})
    assert [each.ranks for each in find_differences(sound, 3)] == [(1,)]
    for unsure in range(3):
        assert find_differences([each for each in sound if each.rank != unsure], 3) == []


def test_a_process_that_reports_nonsense_is_left_out() -> None:
    sound = reports({100: RIGHT}, {100: WRONG}, {100: RIGHT})
    strange = [
        replace(sound[1], rank=7),
        replace(sound[1], rank=-1),
        replace(sound[1], size=0),
    ]
    for each in strange:
        assert find_differences([sound[0], each, sound[2]], 3) == []
