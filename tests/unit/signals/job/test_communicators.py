"""Job-wide names for communicators, or none where the members are not certain."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.job.communicators import Seat, name_communicators
from falcon_core.topology.parallelism import Axis, Parallelism


def seats(groups: list[tuple[int, list[list[int]]]]) -> list[Seat]:
    """Return the seats of all members; ``groups`` gives each communicator's id and its groups of ranks."""
    return [
        Seat(rank=rank, comm=comm, size=len(group), place=place)
        for comm, comm_groups in groups
        for group in comm_groups
        for place, rank in enumerate(group)
    ]


def named(job_seats: list[Seat], world: int, layout: Parallelism | None = None) -> dict[str, tuple[int, ...]]:
    return {
        communicator.name: communicator.members
        for communicator in name_communicators(job_seats, world, layout).values()
    }


def test_communicators_of_all_ranks_are_numbered_in_the_order_of_their_use() -> None:
    job_seats = seats([(1, [[0, 1, 2]]), (4, [[0, 1, 2]])])
    assert named(job_seats, 3) == {"all ranks": (0, 1, 2), "all ranks, 2": (0, 1, 2)}
    found = name_communicators(job_seats, 3)
    assert (found[1, 1].name, found[1, 4].name) == ("all ranks", "all ranks, 2")


def test_a_process_that_joined_later_knows_the_communicator_by_a_number_of_its_own() -> None:
    job_seats = [Seat(rank=rank, comm=1 if rank == 1 else 3, size=3, place=rank) for rank in range(3)]
    assert named(job_seats, 3) == {"all ranks": (0, 1, 2)}
    missing = [Seat(rank=rank, comm=2, size=2, place=place) for place, rank in enumerate((0, 2))]
    assert named(missing, 3) == {}, "while rank 1 is missing, places do not say who is there"


def test_a_communicator_of_all_ranks_may_lack_a_member_that_has_not_used_it_yet() -> None:
    assert named(seats([(1, [[0, 1, 2]])])[:2], 3) == {"all ranks": (0, 1, 2)}


def test_places_in_another_order_are_not_guessed_at() -> None:
    assert named(seats([(1, [[2, 0, 1]])]), 3) == {}


def test_groups_along_a_declared_axis() -> None:
    layout = Parallelism(tensor=2, data=3)
    job_seats = seats([(1, [[0, 1], [2, 3], [4, 5]]), (2, [[0, 2, 4], [1, 3, 5]])])
    found = named(job_seats, 6, layout)
    assert sorted(found.values()) == [(0, 1), (0, 2, 4), (1, 3, 5), (2, 3), (4, 5)]
    assert found["tensor group of rank 2"] == (2, 3)
    assert named(job_seats, 6) == {}, "not declared"


def test_a_group_that_lacks_a_member_is_unnamed() -> None:
    layout = Parallelism(tensor=2, data=3)
    job_seats = [seat for seat in seats([(1, [[0, 1], [2, 3], [4, 5]])]) if seat.rank != 3]
    assert sorted(named(job_seats, 6, layout).values()) == [(0, 1), (4, 5)]


def test_axes_of_one_size_are_told_apart_by_the_places_of_all_ranks() -> None:
    square = Parallelism(tensor=2, data=2)
    tensor, data = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    job_seats = seats([(1, tensor), (2, data)])
    assert sorted(named(job_seats, 4, square).values()) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert name_communicators(job_seats, 4, square)[0, 2].members == (0, 2), "of rank 0 alone both would fit"
    assert named([seat for seat in job_seats if seat.rank in (0, 3)], 4, square) == {}, "too few have reported"
    behind = [seat for seat in job_seats if (seat.rank, seat.comm) != (3, 2)]
    assert sorted(named(behind, 4, square).values()) == [(0, 1), (0, 2)], "rank 3 has not used its second one yet"


def used_in(layout: Parallelism, stage: int, draw: random.Random) -> Iterator[tuple[Seat, tuple[int, ...]]]:
    """Yield the seats of a pipeline stage's ranks with the members of each; the order of use is the stage's own."""
    ranks = set(layout.group_table(Axis.PIPELINE)[:, stage].tolist())
    tables = [layout.group_table(axis) for axis in Axis]
    tables = [table for table in tables if 1 < table.shape[1] < layout.world]
    draw.shuffle(tables)
    for comm, table in enumerate(tables):
        for row in table.tolist():
            for place in range(len(row)):
                if row[place] in ranks:
                    yield Seat(rank=row[place], comm=comm, size=len(row), place=place), tuple(row)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(*[st.sampled_from([1, 2, 3])] * 3, st.sampled_from([1, 2, 3])),
    st.sampled_from([1, 2]),
    st.randoms(use_true_random=False),
)
def test_no_communicator_gets_a_wrong_member(degrees: tuple[int, ...], expert: int, draw: random.Random) -> None:
    """Each stage uses its communicators in an order of its own, and some ranks have not reported."""
    tensor, context, data, pipeline = degrees
    layout = Parallelism(tensor=tensor, context=context, data=data * expert, pipeline=pipeline, expert=expert)
    members = {seat: row for stage in range(pipeline) for seat, row in used_in(layout, stage, draw)}
    silent = set(draw.sample(range(layout.world), k=layout.world // 4))
    truth = {(seat.rank, seat.comm): row for seat, row in members.items()}
    reported = [seat for seat in members if seat.rank not in silent]
    for seat, communicator in name_communicators(reported, layout.world, layout).items():
        assert communicator.members == truth[seat]
    if not silent and pipeline == 1:
        assert name_communicators(list(members), layout.world, layout).keys() == truth.keys()


def test_a_layout_of_another_world_says_nothing() -> None:
    assert named(seats([(1, [[0, 1], [2, 3]])]), 4, Parallelism(tensor=2, data=3)) == {}


@pytest.mark.parametrize("axis", [Axis.TENSOR, Axis.CONTEXT, Axis.DATA, Axis.PIPELINE])
def test_every_axis_of_a_large_job(axis: Axis) -> None:
    layout = Parallelism(tensor=8, context=2, data=4, pipeline=3)  # data groups hold the context ranks, too: also 8
    rows = layout.group_table(axis).tolist()
    found = named(seats([(1, rows)]), layout.world, layout)
    assert sorted(found.values()) == sorted(map(tuple, rows))
