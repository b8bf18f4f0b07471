"""Who holds whose copies: each pod one other pod's, and in another failure domain wherever any choice can do that."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.topology.neighbours import holders

DOMAINS = st.lists(st.sampled_from("abcd"), min_size=2, max_size=40)


@pytest.mark.parametrize(
    ("domains", "expected"),
    [
        ([], []),
        (["a"], []),
        (["node-a", "node-b", "node-c"], [1, 2, 0]),
        (["a", "a", "a"], [1, 2, 0]),
        (["a", "a", "b", "b"], [2, 3, 0, 1]),
        (["a", "b", "a", "b"], [1, 0, 3, 2]),
        (["a", "a", "b"], [2, 0, 1]),
    ],
)
def test_the_ring(domains: list[str], expected: list[int]) -> None:
    assert holders(domains) == expected


@given(DOMAINS)
def test_each_pod_holds_for_one_other(domains: list[str]) -> None:
    held_by = holders(domains)
    assert sorted(held_by) == list(range(len(domains)))
    assert all(holder != replica for replica, holder in enumerate(held_by))


@given(DOMAINS)
def test_as_many_copies_as_possible_are_in_another_domain(domains: list[str]) -> None:
    largest = max(Counter(domains).values())
    crossing = [domains[holder] != domains[replica] for replica, holder in enumerate(holders(domains))]
    others = len(domains) - largest
    assert sum(crossing) == min(len(domains), 2 * others)


PAIRS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda pair: pair[0] != pair[1]), max_size=2)


@given(st.lists(st.sampled_from("abcd"), min_size=4, max_size=12), PAIRS)
def test_replicas_that_are_kept_apart_change_no_more_than_holders(
    domains: list[str], pairs: list[tuple[int, int]]
) -> None:
    apart = {frozenset(pair) for pair in pairs}
    held_by = holders(domains, apart)
    assert sorted(held_by) == list(range(len(domains)))
    assert all(holder != replica for replica, holder in enumerate(held_by))
    usual = holders(domains)
    crossing = sum(domains[holder] != domains[replica] for replica, holder in enumerate(held_by))
    assert crossing >= sum(domains[holder] != domains[replica] for replica, holder in enumerate(usual))


def test_two_of_four_are_kept_apart() -> None:
    assert holders(list("abcd"), {frozenset((0, 1))}) == [3, 2, 1, 0]
    assert holders(list("abc"), {frozenset((0, 1))}) == [1, 2, 0], "of three each two are neighbours"


def test_who_takes_a_role_holds_its_copies() -> None:
    assert holders(list("abcd"), takes={1: 3, 3: 1}) == [2, 3, 0, 1]
    assert holders(list("abcdef"), {frozenset((0, 2))}, {1: 3, 3: 1}) == [5, 3, 4, 1, 2, 0]
    assert holders(list("abc"), takes={1: 2, 2: 1}) == holders(list("abc")), "no pod would hold the first's"
    assert holders(list("ab"), takes={0: 1, 1: 0}) == [1, 0]
