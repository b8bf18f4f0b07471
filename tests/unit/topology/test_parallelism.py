"""Ranks and their coordinates: Megatron's order, every group a partition, and named refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.topology.parallelism import MEGATRON, Axis, Coordinates, LayoutError, Parallelism, derive

small = st.integers(1, 3)
layouts = st.builds(
    lambda tensor, context, expert, replicas, pipeline, order: Parallelism(
        tensor=tensor, context=context, expert=expert, data=expert * replicas, pipeline=pipeline, order=tuple(order)
    ),
    small,
    small,
    small,
    small,
    small,
    st.permutations(MEGATRON),
)


def test_megatrons_example_of_16_ranks() -> None:
    """Check 2 tensor × 4 pipeline × 2 data: the groups that Megatron's documentation lists."""
    layout = derive(16, tensor=2, pipeline=4)
    assert layout.data == 2
    assert layout.groups(Axis.TENSOR) == [(n, n + 1) for n in range(0, 16, 2)]
    assert layout.groups(Axis.DATA) == [(n, n + 2) for n in (0, 1, 4, 5, 8, 9, 12, 13)]
    assert layout.groups(Axis.PIPELINE) == [(n, n + 4, n + 8, n + 12) for n in range(4)]


def test_experts_divide_the_replicas() -> None:
    layout = derive(8, expert=2)
    assert layout.groups(Axis.EXPERT) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert layout.groups(Axis.EXPERT_DATA) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert layout.groups(Axis.DATA) == [tuple(range(8))]


def test_dense_gradients_are_reduced_over_the_context_ranks_too() -> None:
    layout = derive(8, tensor=2, context=2)
    assert layout.groups(Axis.CONTEXT) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert layout.groups(Axis.DATA) == [(0, 2, 4, 6), (1, 3, 5, 7)]


@settings(deadline=None, derandomize=True)
@given(layouts)
def test_coordinates_and_back(layout: Parallelism) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.world)]
    assert len(set(places)) == layout.world
    for rank, at in enumerate(places):
        assert at.data == at.expert_data * layout.expert + at.expert
        again = layout.rank(tensor=at.tensor, context=at.context, data=at.data, pipeline=at.pipeline)
        assert again == rank


@settings(deadline=None, derandomize=True)
@given(layouts)
def test_the_groups_of_an_axis_are_a_partition_whose_members_differ_along_it_alone(layout: Parallelism) -> None:
    names = {
        Axis.TENSOR: {"tensor"},
        Axis.CONTEXT: {"context"},
        Axis.EXPERT: {"expert", "data"},
        Axis.EXPERT_DATA: {"expert_data", "data"},
        Axis.DATA: {"expert", "expert_data", "data", "context"},
        Axis.PIPELINE: {"pipeline"},
    }
    for axis, free in names.items():
        groups = layout.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world))
        for group in groups:
            assert differing(layout, group) <= free, axis
        size = layout.degree(axis) * (layout.context if axis is Axis.DATA else 1)
        assert {len(group) for group in groups} == {size}


def differing(layout: Parallelism, ranks: tuple[int, ...]) -> set[str]:
    """Name the coordinates that are not the same for all ranks."""
    places = [layout.coordinates(rank) for rank in ranks]
    return {name for name in Coordinates.__struct_fields__ if len({getattr(at, name) for at in places}) > 1}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: derive(12, tensor=8), "tensor 8"),
        (lambda: derive(4, tensor=8), "tensor 8"),
        (lambda: derive(8, expert=3), "expert 3"),
        (lambda: derive(8, pipeline=0), "pipeline"),
        (lambda: Parallelism(data=0), "data"),
        (lambda: Parallelism(order=(Axis.TENSOR,)), "order"),
        (lambda: derive(8).coordinates(8), "rank 8"),
        (lambda: derive(8).rank(data=8), "data 8"),
    ],
)
def test_impossible_layouts_are_refused_by_name(make: object, named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        make()  # type: ignore[operator]
