"""Where each rank is to stand still, from where all of them say that their iterations begin."""

from __future__ import annotations

import pytest

from falcon_core.recovery.probe.cut import DisagreementError
from falcon_core.recovery.probe.stop_targets import Reported, stops
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.measurement.probe import ChannelStart, RankStart
from falcon_core.wire.ring import Traffic

WORLD, DATA = 1, 2  # ids of a process's communicators
LAYOUT = Parallelism(data=2, pipeline=2)


ALONE = ChannelStart(8, 1, 0, Traffic.COLLECTIVE, 0, 5, 2)


def world(start: int, calls: int = 3, place: int = 0, size: int = 4) -> ChannelStart:
    return ChannelStart(WORLD, size, place, Traffic.COLLECTIVE, 0, start, calls)


def reported(rank: int, iteration: int, *more: ChannelStart, begun: int = 0, age: float = 0.0) -> Reported:
    """Return the word of a rank whose agent has named the start of that iteration."""
    return Reported(RankStart(rank, [world(10 + 3 * iteration, place=rank), *more], begun), age)


def cut(
    ranks: list[Reported], lead: float = 0.5, iteration: float = 1.0, layout: Parallelism | None = None
) -> dict[int, int]:
    found = stops(ranks, len(ranks), layout, lead_seconds=lead, iteration_seconds=iteration)
    assert found.calls_before == {}
    return found.iterations


def test_ranks_that_have_named_different_iterations_stand_still_at_the_same_one() -> None:
    found = cut([reported(0, 5, begun=4), reported(1, 7, begun=2), reported(2, 5, begun=4), reported(3, 8, begun=1)])
    assert {rank: found[rank] + begun for rank, begun in ((0, 5), (1, 7), (2, 5), (3, 8))} == dict.fromkeys(
        range(4), 10
    )


def test_the_cut_lies_beyond_whoever_is_farthest_by_as_much_as_the_order_takes() -> None:
    ranks = [reported(0, 0, begun=4), reported(1, 0, begun=5, age=1.0), reported(2, 0), reported(3, 0)]
    assert cut(ranks, lead=0.0)[0] == 6
    assert cut(ranks, lead=2.5)[0] == 9
    assert cut(ranks, lead=2.5, iteration=10.0)[0] == 6


def test_a_rank_with_a_single_channel_that_takes_another_call_for_its_iterations_first_stops_where_the_others_do() -> (
    None
):
    odd = Reported(
        RankStart(2, [world(14, place=2)], begun=3)
    )  # 4 calls after the others' start: one iteration and one
    found = stops(
        [reported(0, 0), reported(1, 0), odd, reported(3, 0)], 4, None, lead_seconds=0.5, iteration_seconds=1.0
    )
    counts = {rank: 10 + 3 * found.iterations[rank] for rank in (0, 1, 3)}
    counts[2] = 14 + 3 * found.iterations[2] - found.calls_before[2]
    assert set(counts.values()) == {10 + 3 * 5}, "the rank may be 13 calls after the others' start"
    assert found.calls_before == {2: 1}


def test_sends_and_receives_are_counted_by_their_ends() -> None:
    """Ranks 0 and 1 are the first stage, and send to 2 and 3."""
    ranks = []
    for rank in range(4):
        peer, sends = (rank + 2) % 4, rank < 2
        traffic = Traffic.SEND if sends else Traffic.RECV
        group = ChannelStart(DATA, 2, rank % 2, Traffic.COLLECTIVE, 0, 40 + rank // 2, 1)
        ranks.append(reported(rank, 2, group, ChannelStart(WORLD, 4, rank, traffic, peer, 80, 8)))
    assert set(cut(ranks, layout=LAYOUT).values()) == {1}
    sent = ranks[3].start.channels[2]
    behind = [*ranks[3].start.channels[:2], ChannelStart(WORLD, 4, 3, Traffic.RECV, 1, sent.start - 4, sent.calls)]
    with pytest.raises(DisagreementError, match="differently"):
        cut([*ranks[:3], Reported(RankStart(3, behind))], layout=LAYOUT)


def test_what_a_rank_calls_by_itself_binds_nobody() -> None:
    graph = ChannelStart(9, 0, -1, Traffic.GRAPH, 0, 77, 1)
    assert set(cut([reported(0, 0, graph, ALONE), *(reported(rank, 0) for rank in range(1, 4))]).values()) == {1}


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([reported(0, 0), reported(1, 0)], "2 of 3 ranks"),
        (
            [reported(0, 0), reported(1, 0), Reported(RankStart(2, why="its calls are not regular now"))],
            "rank 2: its calls are not",
        ),
        ([reported(0, 0), reported(1, 0), Reported(RankStart(2))], "rank 2: it makes no calls"),
        ([reported(0, 0), reported(1, 0, ALONE), Reported(RankStart(2, [world(11, place=2), ALONE]))], "differently"),
        ([reported(0, 0), reported(1, 0), Reported(RankStart(2, [world(10, calls=4, place=2)]))], "calls of"),
        ([reported(0, 0), reported(1, 0), Reported(RankStart(2, [world(10, place=0, size=2)]))], "not known who calls"),
        (
            [reported(0, 0, ChannelStart(WORLD, 3, 0, Traffic.SEND, 3, 4, 1)), reported(1, 0), reported(2, 0)],
            "sends to",
        ),
    ],
)
def test_without_a_common_start_nobody_is_stopped(ranks: list[Reported], why: str) -> None:
    sized = [
        Reported(
            RankStart(
                each.start.rank,
                [
                    ChannelStart(c.comm, 3 if c.size == 4 else c.size, c.place, c.traffic, c.peer, c.start, c.calls)
                    for c in each.start.channels
                ],
                each.start.begun,
                each.start.why,
            )
        )
        for each in ranks
    ]
    with pytest.raises(DisagreementError, match=why):
        stops(sized, 3, None, lead_seconds=0.5, iteration_seconds=1.0)
