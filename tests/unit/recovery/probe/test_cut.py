"""Where a pause shall stop: a common start of an iteration, from what every rank knows of its own calls."""

from __future__ import annotations

import pytest

from falcon_core.recovery.probe.cut import Channel, DisagreementError, Known, Starts, agreed

WORLD, LEFT, RIGHT = Channel("world"), Channel("left"), Channel("right")
FORWARD = Channel("world", 0, 1)
MEMBERS = {WORLD: (0, 1, 2), LEFT: (0, 1), RIGHT: (1, 2), FORWARD: (0, 1)}
CALLS = {WORLD: 2, LEFT: 1, RIGHT: 3, FORWARD: 8}
ORIGIN = {WORLD: 10, LEFT: 4, RIGHT: 7, FORWARD: 100}


def _known(rank: int, iteration: int = 0, **more: int) -> Known:
    joined = [channel for channel, ranks in MEMBERS.items() if rank in ranks]
    starts = {channel: ORIGIN[channel] + iteration * CALLS[channel] for channel in joined}
    return Known(starts, {channel: CALLS[channel] for channel in joined})


def _shifted(known: Known, channel: Channel, by: int) -> Known:
    return Known({**known.starts, channel: known.starts[channel] + by}, known.calls)


def test_ranks_that_saw_starts_of_different_iterations_agree() -> None:
    found = agreed(MEMBERS, {0: _known(0, 5), 1: _known(1, 6), 2: _known(2, 4)})
    assert found == Starts({channel: ORIGIN[channel] + 5 * CALLS[channel] for channel in MEMBERS}, CALLS)


def test_ranks_that_meet_in_no_common_group_agree_through_other_ranks() -> None:
    members = {LEFT: (0, 1), RIGHT: (1, 2)}
    known = {rank: _known(rank, rank) for rank in range(3)}
    known = {
        rank: Known(
            {c: n for c, n in rank_known.starts.items() if c in members},
            {c: n for c, n in rank_known.calls.items() if c in members},
        )
        for rank, rank_known in known.items()
    }
    assert agreed(members, known).counts == {LEFT: 4, RIGHT: 7}


def test_the_next_start_is_a_start_that_no_rank_has_passed_on_any_channel() -> None:
    starts = Starts({WORLD: 10, FORWARD: 100}, {WORLD: 2, FORWARD: 8})
    assert starts.not_passed({WORLD: 14, FORWARD: 116}).counts == {WORLD: 14, FORWARD: 116}
    assert starts.not_passed({WORLD: 14, FORWARD: 117}).counts == {WORLD: 16, FORWARD: 124}
    assert starts.not_passed({WORLD: 9, FORWARD: 91}).counts == {WORLD: 10, FORWARD: 100}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: None}, "rank 1 is in no regular iteration"),
        ({1: _shifted(_known(1), WORLD, 1)}, "differently"),
        ({2: _shifted(_known(2), RIGHT, 3)}, "differently"),
        ({0: _shifted(_known(0), FORWARD, -1)}, "differently"),
        ({1: Known(_known(1).starts, {**_known(1).calls, LEFT: 2})}, r"make \[1, 2\] calls"),
        ({1: Known(_known(1).starts, {WORLD: 2, LEFT: 1, RIGHT: 3})}, r"make \[0, 8\] calls"),
    ],
    ids=["undetermined", "shifted", "one channel a whole iteration apart", "a send less", "calls", "no receives"],
)
def test_ranks_that_mean_something_else_have_no_common_start(change: dict[int, Known | None], message: str) -> None:
    with pytest.raises(DisagreementError, match=message):
        agreed(MEMBERS, {**{rank: _known(rank) for rank in range(3)}, **change})


def _of_world(starts: list[int]) -> dict[int, Known | None]:
    return {rank: Known({WORLD: start}, {WORLD: 2}) for rank, start in enumerate(starts)}


def test_ranks_with_a_single_channel_may_stop_before_any_call_and_most_of_them_decide() -> None:
    """A ring of data-parallel ranks, of which some take another call of the iteration for its first."""
    for starts, most in (([11, 14, 12], 0), ([10, 15, 13], 1)):
        found = agreed({WORLD: (0, 1, 2)}, _of_world(starts))
        assert (found.counts[WORLD] % 2, found.calls) == (most, {WORLD: 2})


def test_a_rank_with_a_single_channel_follows_those_with_several() -> None:
    known = {0: _known(0, 5), 1: _known(1, 6), 2: Known({WORLD: ORIGIN[WORLD] + 9}, {WORLD: 2})}
    members = {WORLD: (0, 1, 2), LEFT: (0, 1), FORWARD: (0, 1)}
    known[1] = Known(*({c: n for c, n in each.items() if c != RIGHT} for each in (known[1].starts, known[1].calls)))
    found = agreed(members, known)
    assert found.counts == {channel: ORIGIN[channel] + 5 * CALLS[channel] for channel in members}


def test_where_the_receiver_does_not_know_the_order_the_sender_does() -> None:
    receiver = _known(1)
    unordered = Known({c: n for c, n in receiver.starts.items() if c != FORWARD}, receiver.calls)
    assert agreed(MEMBERS, {0: _known(0), 1: unordered, 2: _known(2)}).counts == ORIGIN
    sender = Known({c: n for c, n in _known(0).starts.items() if c != FORWARD}, _known(0).calls)
    with pytest.raises(DisagreementError, match="no rank"):
        agreed(MEMBERS, {0: sender, 1: unordered, 2: _known(2)})
