"""What an agent sums up of verified results: the same on all ranks, however the calls lie in their rings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from falcon_agent.rings.communicators import Shape
from falcon_agent.rings.tracker import Tracker
from falcon_agent.rings.verification import Results
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.reporting.verification import WIDTHS, Digest, call_digest, number_digest, sum_digest
from falcon_core.wire.ring import POINT_TO_POINT, RECORD_DTYPE, Flag, Kind, RecordArray, is_verified
from tests.unit.agent.ring_files import descriptor, write_ring

EVERY = 10
SHAPE = Shape(comm=3, size=4, place=1)


def verified(*numbers: int, comm: int = 3, hashed: int = 1 << 63 | 5, flags: int = Flag.SOLE) -> RecordArray:
    """Return records of verified results whose hash depends on the call's number."""
    records: RecordArray = np.zeros(len(numbers), dtype=RECORD_DTYPE)
    records["kind"], records["comm"], records["flags"] = Kind.VERIFIED, comm, flags
    records["comm_seq"] = numbers
    for place, number in enumerate(numbers):
        value = hashed ^ number
        records["group"][place] = value & 0xFFFFFFFF
        records["peer_or_root"][place] = np.uint32(value >> 32).astype(np.int32)
    return records


def chosen(many: int, every: int = EVERY) -> list[int]:
    return [number for number in range(many * every) if is_verified(number, every)]


def digests(results: Results, width: int) -> list[Digest]:
    report = results.report(1)
    assert report is not None
    return [digest for digest in report.digests if digest.width == width]


def shape_of(comm: int) -> Shape | None:
    """Return the communicator's shape: all know of 3 and 4, which have all ranks, and of 5, which has not."""
    return {3: SHAPE, 4: Shape(comm=4, size=4, place=1), 5: Shape(comm=5, size=2, place=1)}.get(comm)


def fresh() -> Results:
    return Results(1, 4)


@pytest.mark.parametrize("every", [1, 2, 7, 1000])
def test_one_call_of_each_turn_is_verified_and_its_place_changes(every: int) -> None:
    found = chosen(300, every)
    assert [number // every for number in found] == list(range(300))
    assert len({number % every for number in found}) > min(every, 200) / 2


def test_the_newest_calls_are_reported_one_by_one() -> None:
    results = fresh()
    numbers = chosen(20)
    results.feed(verified(*numbers), EVERY, shape_of)
    report = results.report(2)
    assert report is not None
    assert (report.rank, report.life, report.every, report.size) == (1, 2, EVERY, 4)
    assert report.digests == [
        Digest(1, number, 1, number_digest(number), call_digest(number, (1 << 63 | 5) ^ number))
        for number in numbers[-WIDTHS[1] :]
    ]


def test_sums_are_the_same_in_any_order_and_have_every_call() -> None:
    """A call that Gloo's other thread has finished late joins the sum that it belongs to."""
    numbers = chosen(64 * 7)
    ordered, mixed = fresh(), fresh()
    ordered.feed(verified(*numbers), EVERY, shape_of)
    shuffled = numbers.copy()
    for place in range(0, len(shuffled) - 1, 2):
        shuffled[place : place + 2] = shuffled[place + 1], shuffled[place]
    for place in range(0, len(shuffled), 5):
        mixed.feed(verified(*shuffled[place : place + 5]), EVERY, shape_of)
    assert digests(ordered, 64) == digests(mixed, 64)
    sums = digests(ordered, 64)
    assert len(sums) == WIDTHS[64]
    assert [each.calls for each in sums] == [64] * len(sums)
    first, value = sums[0].first, 0
    for number in numbers[numbers.index(first) :][:64]:
        value = sum_digest(value, call_digest(number, (1 << 63 | 5) ^ number))
    assert sums[0].value == value


def test_one_other_bit_changes_the_digest_of_a_call_and_the_sum_that_has_it() -> None:
    numbers = chosen(64 * 3)
    right, wrong = fresh(), fresh()
    right.feed(verified(*numbers), EVERY, shape_of)
    records = verified(*numbers)
    records["group"][64 + 9] ^= 1 << 17
    wrong.feed(records, EVERY, shape_of)
    pairs = zip(digests(right, 64), digests(wrong, 64), strict=True)
    assert [one == other for one, other in pairs] == [True, False]


def test_an_agent_that_begins_later_counts_fewer_calls_in_its_first_sum() -> None:
    numbers = chosen(64 * 3)
    late = fresh()
    late.feed(verified(*numbers[30:]), EVERY, shape_of)
    assert [(each.first, each.calls) for each in digests(late, 64)] == [(numbers[30], 34), (numbers[64], 64)]


def test_a_change_of_the_sampling_and_lost_records_begin_again() -> None:
    results = fresh()
    results.feed(verified(*chosen(100)), EVERY, shape_of)
    results.feed(verified(), EVERY, shape_of, lost=True)
    assert results.report(1) is None, "a sum that lacks calls would differ from the others'"
    results.feed(verified(*chosen(100)), EVERY, shape_of)
    results.feed(verified(*chosen(100)), 7, shape_of)
    both = [number for number in chosen(100) if is_verified(number, 7)]
    assert [each.first for each in digests(results, 1)] == both[-WIDTHS[1] :], "calls of before that others verify, too"
    results.feed(verified(*chosen(100)), 0, shape_of)
    assert results.report(1) is None


def test_a_sum_says_which_calls_are_in_it() -> None:
    """Calls in flight when an agent looks: the first, the last and the number of the others are the same."""
    for one, other in (({126}, {127}), ({100, 103}, {101, 102})):
        sums = []
        for missing in (one, other):
            results = fresh()
            results.feed(verified(*(number for number in range(1, 130) if number not in missing)), 1, shape_of)
            sums.append(digests(results, 64)[-1])
        assert sums[0].first == sums[1].first
        assert sums[0].calls == sums[1].calls
        assert sums[0].numbers != sums[1].numbers


def test_groups_of_other_ranks_are_left_out() -> None:
    for comm in (5, 9, POINT_TO_POINT | 3):
        results = fresh()
        results.feed(verified(*chosen(100), comm=comm), EVERY, shape_of)
        assert results.report(1) is None
        results.feed(descriptor(comm, 2, 1), EVERY, shape_of)
        results.feed(verified(*chosen(100)), EVERY, shape_of)
        assert results.report(1) is not None


def test_a_job_of_one_rank_or_of_unknown_size_reports_nothing() -> None:
    for rank, size in ((0, 1), (-1, -1)):
        results = Results(rank, size)
        results.feed(verified(*chosen(100)), EVERY, lambda comm, size=size, rank=rank: Shape(comm, size, rank))
        assert results.report(1) is None


@pytest.mark.parametrize(
    "second",
    [
        descriptor(4, 4, 1),
        verified(*chosen(100), comm=4, flags=0),
        verified(*chosen(100), comm=4),
        verified(*chosen(100), flags=0),
    ],
)
def test_with_a_second_group_of_all_ranks_neither_is_reported_any_more(second: RecordArray) -> None:
    """Another rank may have met the two in another order."""
    results = fresh()
    results.feed(np.concatenate((descriptor(3, 4, 1), verified(*chosen(100)))), EVERY, shape_of)
    assert results.report(1) is not None
    results.feed(second, EVERY, shape_of)
    assert results.report(1) is None
    results.feed(verified(*chosen(100)), EVERY, shape_of, lost=True)
    assert results.report(1) is None


def test_a_second_group_counts_from_before_results_were_asked_for() -> None:
    results = fresh()
    results.feed(np.concatenate((descriptor(3, 4, 1), descriptor(4, 4, 1))), 0, shape_of)
    results.feed(verified(*chosen(100)), EVERY, shape_of)
    assert results.report(1) is None


def test_a_group_that_has_ended_is_reported_no_more() -> None:
    """A newcomer of an elastic job has the next group as its first."""
    results = fresh()
    results.feed(np.concatenate((descriptor(3, 4, 1), verified(*chosen(100)))), EVERY, shape_of)
    ended = descriptor(3, 4, 1)
    ended["flags"] = Flag.ENDED
    results.feed(ended, EVERY, shape_of)
    assert results.report(1) is None
    results.feed(np.concatenate((descriptor(4, 4, 1), verified(*chosen(100), comm=4))), EVERY, shape_of)
    assert results.report(1) is None


def test_an_agent_that_restarts_knows_which_process_of_its_rank_it_follows(tmp_path: Path) -> None:
    (tmp_path / RINGS_DIR).mkdir(parents=True)
    records = np.concatenate((descriptor(3, 4, 1), verified(*chosen(100))))

    def lives(tracker: Tracker, name: str, generation: int = 1) -> list[int]:
        write_ring(tmp_path / RINGS_DIR / name, records, rank=1, world_size=4, generation=generation)
        tracker.verify_every = EVERY
        tracker.poll([name])
        return [each.life for each in tracker.results(generation)]

    first = Tracker(tmp_path)
    assert lives(first, "g1-r1-101.ring") == [1]
    assert lives(Tracker(tmp_path, first.memory()), "g1-r1-101.ring") == [1]
    second = Tracker(tmp_path, first.memory())
    assert lives(second, "g1-r1-102.ring") == [2]
    third = Tracker(tmp_path, second.memory())
    assert lives(third, "g1-r1-102.ring") == [2]
    assert lives(third, "g1-r1-103.ring") == [3]
    assert lives(third, "g2-r1-104.ring", generation=2) == [1]


def test_whatever_a_ring_says_memory_and_reports_are_bounded_and_can_be_read() -> None:
    results = fresh()
    strange = np.concatenate([descriptor(comm, 1 << 31, -5) for comm in range(100)])
    results.feed(strange, EVERY, shape_of)
    results.feed(verified(*chosen(5000), (1 << 32) - 1), EVERY, shape_of)
    report = results.report(1)
    assert report is not None
    assert len(report.digests) == sum(WIDTHS.values())
