"""Who waits outside known calls, by CPU time and by stack samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.job.unseen_waits import (
    RanWhile,
    Waiting,
    absent_from_wait,
    at_places_of_their_own,
    standing_elsewhere,
    waiting,
)
from falcon_core.wire.reporting.samples import StackPlace, StackSamples

GROWTH = 0.1


def ranks(compute_ms: list[float], ran_ms: list[float], healthy_ran_ms: float = 105.0) -> RanWhile:
    """Return ranks that computed 100 ms when they were healthy."""
    count = len(compute_ms)
    return RanWhile(
        iteration_ns=np.array(compute_ms) * 1e6 + 100e6,
        compute_ns=np.array(compute_ms) * 1e6,
        healthy_compute_ns=np.full(count, 100e6),
        ran_ns=np.array(ran_ms) * 1e6,
        healthy_ran_ns=np.full(count, healthy_ran_ms * 1e6),
    )


def samples(**places: int) -> StackSamples:
    return StackSamples(
        taken=sum(places.values()), places=[StackPlace([place], count) for place, count in places.items()]
    )


def found(seen: RanWhile, stacks: list[StackSamples | None] | None = None) -> Waiting:
    return waiting(seen, stacks or [None] * len(seen.compute_ns), GROWTH)


def test_ranks_that_did_not_run_wait_for_the_rank_that_did() -> None:
    seen = found(ranks([300, 300, 300, 300], [110, 305, 108, 120]))
    assert (seen.finding, seen.waits.tolist()) == ("Wait", [True, False, True, True])


def test_of_two_ranks_the_one_that_ran_is_waited_for() -> None:
    seen = found(ranks([300, 300], [300, 110]))
    assert (seen.finding, seen.waits.tolist()) == ("Wait", [False, True])


def test_a_rank_that_ran_for_a_little_longer_is_not_waited_for() -> None:
    seen = found(ranks([115, 1100, 1100], [120, 108, 105]))
    assert (seen.finding, seen.waits.tolist()) == ("Alike", [True, True, True])


def test_where_all_ranks_ran_the_job_computes_longer() -> None:
    assert found(ranks([300, 300, 300], [300, 310, 290])).finding == "Run"


def test_most_ranks_that_ran_wait_for_none() -> None:
    """Check a rank that sleeps, while its peers wait for it in a loop that never sleeps."""
    seen = found(ranks([300, 300, 300], [300, 310, 110]))
    assert (seen.finding, seen.waits.any()) == ("Contradict", False)


def test_a_rank_that_waits_for_its_data_alone_is_no_peer_of_a_slow_rank() -> None:
    """Check late data of one rank, and another that computes longer: the other ranks wait in known calls."""
    seen = found(ranks([100, 300, 300, 100, 100], [105, 310, 110, 105, 105]))
    assert not seen.waits.any()


def test_a_rank_that_is_never_found_where_the_others_wait_is_waited_for() -> None:
    """Check ranks that are slow by a third of an iteration, in which none of them runs."""
    stacks: list[StackSamples | None] = [samples(work=28 + n % 3, wait=16 - n % 3, reduce=4) for n in range(8)]
    stacks[2] = samples(work=43, reduce=5)
    seen = found(ranks([200] * 8, [105] * 8), stacks)
    assert (seen.finding, np.flatnonzero(~seen.waits).tolist()) == ("Wait", [2])


@pytest.mark.parametrize(
    ("culprit", "peers", "count", "healthy_ran_ms"),
    [
        (samples(work=11, reduce=1), samples(work=7, wait=4, reduce=1), 8, 105.0),  # too few samples
        (samples(work=39, wait=4, reduce=5), samples(work=28, wait=16, reduce=4), 8, 105.0),  # it waits as well
        (samples(work=43, reduce=5), samples(work=28, wait=16, reduce=4), 2, 105.0),  # too few ranks
        (samples(work=43, reduce=5), samples(work=38, wait=6, reduce=4), 8, 105.0),  # a part of the added time
        (samples(work=43, reduce=5), samples(work=34, wait=10, reduce=4), 8, 80.0),  # as long as ranks waited before
        (samples(work=32, load=8, other=8), samples(work=28, wait=16, reduce=4), 8, 105.0),  # places are missing
    ],
)
def test_samples_leave_it_open_who_is_waited_for(
    culprit: StackSamples, peers: StackSamples, count: int, healthy_ran_ms: float
) -> None:
    culprit = StackSamples(taken=culprit.taken, places=[each for each in culprit.places if each.frames != ["other"]])
    seen = found(ranks([200] * count, [105] * count, healthy_ran_ms), [culprit, *[peers] * (count - 1)])
    assert seen.waits.all()


def test_the_first_of_a_queue_for_a_lock_is_not_waited_for_more_than_the_others() -> None:
    """Check ranks that all sleep behind the lock, always in the same order: the first is never found in the queue."""
    stacks: list[StackSamples | None] = [
        samples(sleep=20, reduce=40),
        samples(wait=20, sleep=20, reduce=20),
        samples(wait=40, sleep=20),
    ]
    assert not absent_from_wait(stacks, ranks([200, 300, 400], [105] * 3)).any()


def test_a_rank_that_sleeps_behind_a_lock_in_any_order_has_a_place_of_its_own() -> None:
    """Check ranks that queue behind it in some of the iterations, and wait for it in known calls in the others."""
    stacks: list[StackSamples | None] = [
        samples(reduce=30, wait=28, hold=2),
        samples(sleep=56, reduce=2, hold=2),
        samples(reduce=34, wait=24, hold=2),
        samples(reduce=26, wait=32, hold=2),
    ]
    seen = ranks([500, 1000, 400, 900], [105] * 4)
    assert not standing_elsewhere(stacks).any()
    assert not absent_from_wait(stacks, seen).any()
    assert found(seen, stacks).waits.tolist() == [True, False, True, True]


def test_a_rank_in_the_middle_of_a_queue_is_not_parted_from_those_behind_it() -> None:
    """Check a queue of one order: the first ranks, the sleeping one and the last have places of their own."""
    stacks: list[StackSamples | None] = [
        samples(reduce=58, hold=2),
        samples(sleep=57, reduce=3),
        samples(wait=57, hold=3),
    ]
    seen = ranks([100, 1100, 1100], [105] * 3)
    assert not at_places_of_their_own(stacks, seen).any()
    assert (found(seen, stacks).finding, found(seen, stacks).waits.tolist()) == ("Alike", [False, True, True])


def test_the_first_of_a_queue_is_waited_for_if_it_is_done_before_the_next() -> None:
    stacks: list[StackSamples | None] = [None, samples(sleep=57, reduce=3), samples(wait=57, hold=3)]
    first = found(ranks([100, 1050, 1110], [105] * 3), stacks)
    assert (first.finding, first.waits.tolist()) == ("Wait", [True, False, True])
    together = found(ranks([100, 1050, 1060], [105] * 3), stacks)
    assert (together.finding, together.waits.tolist()) == ("Alike", [False, True, True])
    last: list[StackSamples | None] = [None, stacks[2], stacks[1]]
    both = found(ranks([100, 1050, 1110], [105] * 3), [None, samples(sleep=50, wait=10), samples(sleep=50, reduce=10)])
    assert (both.finding, both.waits.tolist()) == ("Alike", [False, True, True]), "two sleep at the same place"
    assert found(ranks([100, 1110, 1050], [105] * 3), last).waits.tolist() == [True, True, False]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(3, 64), st.floats(0.1, 0.9), st.integers(0, 2**31))
def test_chance_parts_no_ranks_that_all_sleep_alike(count: int, asleep: float, seed: int) -> None:
    """Check ranks that are found at the same places for the same shares of the time."""
    rng = np.random.default_rng(seed)
    shares = [asleep, (1 - asleep) * 0.7, (1 - asleep) * 0.3]
    stacks: list[StackSamples | None] = [
        samples(**{place: int(n) for place, n in zip("abc", rng.multinomial(60, shares), strict=True)})
        for _ in range(count)
    ]
    seen = ranks([200] * count, [105] * count)
    assert not absent_from_wait(stacks, seen).any()
    assert not at_places_of_their_own(stacks, seen).any()


@pytest.mark.parametrize("healthy_ran_ms", [60.0, float("nan")])
def test_nothing_is_known_where_a_device_may_compute(healthy_ran_ms: float) -> None:
    seen = found(ranks([300, 300, 300], [60, 300, 60], healthy_ran_ms))
    assert (seen.finding, seen.waits.any()) == ("Unknown", False)


def test_a_rank_that_sleeps_stands_elsewhere_than_those_that_wait_for_it() -> None:
    stacks: list[StackSamples | None] = [samples(wait=11, work=1), samples(save=12), samples(wait=12)]
    seen = found(ranks([300, 300, 300], [105, 105, 105]), stacks)
    assert (seen.finding, seen.waits.tolist()) == ("Wait", [True, False, True])


def test_ranks_that_all_stand_at_one_place_wait_for_an_unknown_cause() -> None:
    seen = found(ranks([300, 300, 300], [105, 105, 105]), [samples(read=12)] * 3)
    assert (seen.finding, seen.waits.tolist()) == ("Alike", [True] * 3)


@pytest.mark.parametrize(
    "stacks",
    [
        [samples(wait=12), samples(save=12)],  # which of two waits for the other cannot be seen
        [samples(wait=12), samples(save=12), None],
        [samples(wait=12), samples(save=6, wait=6), samples(wait=12)],
        [samples(wait=12), samples(save=12), samples(wait=12), samples(load=12)],
        [samples(wait=3, work=9), samples(save=12), samples(wait=12)],
        [samples(wait=8, save=4), samples(wait=4, save=8), samples(wait=8, save=4)],  # all do the same in turn: chance
    ],
)
def test_samples_that_do_not_part_the_ranks_show_none(stacks: list[StackSamples | None]) -> None:
    assert not standing_elsewhere(stacks).any()
