"""From which state a group goes on whose ranks have shards of it: the newest one of which no shard is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client_format import elastic_versions as versions

STEP = 7


def member(step: int, size: int, index: int, *steps: int, group: int = 1) -> versions.Progress:
    """Return a member that has its shard, and the copy of its predecessor's, of versions of some steps."""
    shards = (index, (index - 1) % size)
    held = tuple(versions.Held(versions.Version(each, group, size), shards) for each in steps)
    return versions.Progress(step, held=held)


NEWCOMER = versions.Progress(versions.NO_STEP)


@given(st.integers(2, 9), st.data())
def test_a_group_goes_on_unless_two_neighbours_are_lost(size: int, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    left = [index for index in range(size) if index not in lost]
    members = [member(STEP, size, index, STEP) for index in left]
    if any((index + 1) % size in lost for index in lost):
        with pytest.raises(ValueError, match="lost with the ranks that had it and its copy"):
            versions.choose(members)
        return
    source = versions.choose(members)
    assert source is not None
    assert source.version == (STEP, 1, size)
    for shard, holder in enumerate(source.holders):
        assert left[holder] in (shard, (shard + 1) % size)


@given(st.integers(3, 9), st.data())
def test_members_go_on_with_the_next_step_where_one_has_dropped_the_one_before(size: int, data: st.DataObject) -> None:
    """Then all have the copies of the next one, whether or not they know it."""
    lost = data.draw(st.integers(0, size - 1))
    ahead = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    members = [
        member(STEP + 1, size, index, STEP + 1) if index in ahead else member(STEP, size, index, STEP, STEP + 1)
        for index in range(size)
        if index != lost
    ]
    source = versions.choose(members)
    assert source is not None
    assert source.version.step == STEP + 1
    assert not source.newcomers
    furthest = max(each.step for each in members)
    assert members[source.lead].step == furthest


@given(st.integers(3, 9), st.data())
def test_a_step_whose_copies_are_not_whole_is_made_again(size: int, data: st.DataObject) -> None:
    have = data.draw(st.sets(st.integers(1, size - 1), max_size=size - 2))
    members = [member(STEP, size, index, STEP, *([STEP + 1] if index in have else [])) for index in range(1, size)]
    source = versions.choose(members)
    assert source is not None
    whole = {shard for index in have for shard in (index, index - 1)} == set(range(size))
    assert source.version.step == (STEP + 1 if whole else STEP)


def test_a_newcomer_gets_the_place_of_the_member_that_is_furthest() -> None:
    members = [NEWCOMER, member(STEP - 1, 3, 0, STEP - 1, STEP), member(STEP, 3, 1, STEP), member(STEP, 3, 2, STEP)]
    source = versions.choose(members)
    assert source is not None
    assert (source.newcomers, source.lead) == ((0,), 2)


def test_a_state_that_was_divided_again_is_preferred_and_the_one_before_is_good_enough() -> None:
    before = [member(STEP, 4, index, STEP) for index in (0, 2, 3)]
    again = [versions.Held(versions.Version(STEP, 2, 3), (index, (index - 1) % 3)) for index in range(3)]
    both = [each._replace(held=(*each.held, held)) for each, held in zip(before, again, strict=True)]
    all_there, one_lacks_it = versions.choose(both), versions.choose([both[0], *before[1:]])
    assert all_there is not None
    assert one_lacks_it is not None
    assert all_there.version == (STEP, 2, 3)
    assert one_lacks_it.version == (STEP, 1, 4)


def test_the_first_group_begins_without_a_state() -> None:
    assert versions.choose([NEWCOMER, NEWCOMER]) is None


@given(st.integers(1, 50), st.integers(1, 9))
def test_shards_are_cut_as_pytorch_chunks(length: int, size: int) -> None:
    each = -(-length // size)
    cuts = [versions.bounds(length, size, index) for index in range(size)]
    assert [number for first, last in cuts for number in range(first, last)] == list(range(length))
    assert all(last - first == each for first, last in cuts if last < length)


def test_what_a_member_says_survives_json() -> None:
    said = member(STEP, 3, 1, STEP, STEP + 1)
    assert versions.Progress.read(json.loads(json.dumps(list(said)))) == said
