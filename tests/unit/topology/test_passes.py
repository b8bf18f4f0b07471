"""Link tests: every link once, no rank twice in a pass, and no more passes than promised."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.topology.passes import Pass, binary_tree, ring_passes, tree_passes


def disjoint(passes: list[Pass]) -> None:
    for link_pass in passes:
        busy = [rank for pair in link_pass for rank in pair]
        assert busy, "an empty pass"
        assert len(set(busy)) == len(busy)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 500), min_size=2, max_size=70, unique=True))
def test_a_ring_in_two_passes_or_three(ranks: list[int]) -> None:
    passes = ring_passes(ranks)
    disjoint(passes)
    links = [frozenset(pair) for link_pass in passes for pair in link_pass]
    assert len(set(links)) == len(links)
    assert set(links) == {frozenset(pair) for pair in zip(ranks, ranks[1:] + ranks[:1], strict=True)}
    assert len(passes) == (1 if len(ranks) == 2 else 2 + len(ranks) % 2)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 10**6), max_size=60))
def test_any_tree_in_as_many_passes_as_its_busiest_rank_has_links(draws: list[int]) -> None:
    parents: list[int | None] = [None, *(draw % (index + 1) for index, draw in enumerate(draws))]
    passes = tree_passes(parents)
    disjoint(passes)
    links = sorted(pair for link_pass in passes for pair in link_pass)
    assert links == [(rank, parent) for rank, parent in enumerate(parents) if parent is not None]
    degrees = [0] * len(parents)
    for pair in links:
        for rank in pair:
            degrees[rank] += 1
    assert len(passes) == max(degrees)


@pytest.mark.parametrize(("count", "passes"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1000, 3)])
def test_a_binary_tree_in_three(count: int, passes: int) -> None:
    assert len(tree_passes(binary_tree(count))) == passes


def test_what_is_no_ring_or_tree_is_refused() -> None:
    assert ring_passes([4]) == []
    with pytest.raises(ValueError, match="twice"):
        ring_passes([1, 2, 1])
    for parents, named in (([None, None], "2 roots"), ([None, 2, 1], "circle"), ([None, 7], "unknown")):
        with pytest.raises(ValueError, match=named):
            tree_passes(parents)
