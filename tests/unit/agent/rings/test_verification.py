"""What an agent sums up of verified results: the same on all ranks, however the calls lie in their rings."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_agent.rings.communicators import Shape
from falcon_agent.rings.verification import Results
from falcon_core.wire.reporting.verification import MAX_COMMUNICATORS, WIDTHS, Digest, call_digest, sum_digest
from falcon_core.wire.ring import POINT_TO_POINT, RECORD_DTYPE, Flag, Kind, RecordArray, is_verified

EVERY = 10
SHAPE = Shape(comm=3, size=4, place=1)


def verified(*numbers: int, comm: int = 3, hashed: int = 1 << 63 | 5, flags: int = 0) -> RecordArray:
    """Return records of verified results whose hash depends on the call's number."""
    records: RecordArray = np.zeros(len(numbers), dtype=RECORD_DTYPE)
    records["kind"], records["comm"], records["stream"], records["flags"] = Kind.VERIFIED, comm, 2, flags
    records["comm_seq"] = numbers
    for place, number in enumerate(numbers):
        value = hashed ^ number
        records["group"][place] = value & 0xFFFFFFFF
        records["peer_or_root"][place] = np.uint32(value >> 32).astype(np.int32)
    return records


def chosen(many: int, every: int = EVERY) -> list[int]:
    return [number for number in range(many * every) if is_verified(number, every)]


def digests(results: Results, width: int) -> list[Digest]:
    report = results.report(1, 1)
    assert report is not None
    return [digest for comm in report.comms for digest in comm.digests if digest.width == width]


def shape_of(comm: int) -> Shape | None:
    return SHAPE if comm == SHAPE.comm else None


@pytest.mark.parametrize("every", [1, 2, 7, 1000])
def test_one_call_of_each_turn_is_verified_and_its_place_changes(every: int) -> None:
    found = chosen(300, every)
    assert [number // every for number in found] == list(range(300))
    assert len({number % every for number in found}) > min(every, 200) / 2


def test_the_newest_calls_are_reported_one_by_one() -> None:
    results = Results()
    numbers = chosen(20)
    results.feed(verified(*numbers, flags=Flag.SOLE), EVERY, shape_of)
    report = results.report(1, 2)
    assert report is not None
    assert (report.rank, report.life, report.every) == (1, 2, EVERY)
    (comm,) = report.comms
    assert (comm.comm, comm.size, comm.place, comm.nth, comm.sole) == (3, 4, 1, 2, True)
    newest = numbers[-WIDTHS[1] :]
    assert comm.digests == [Digest(1, number, 1, call_digest(number, (1 << 63 | 5) ^ number)) for number in newest]


def test_sums_are_the_same_in_any_order_and_have_every_call() -> None:
    """A call that Gloo's other thread has finished late joins the sum that it belongs to."""
    numbers = chosen(64 * 7)
    ordered, mixed = Results(), Results()
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
    right, wrong = Results(), Results()
    right.feed(verified(*numbers), EVERY, shape_of)
    records = verified(*numbers)
    records["group"][64 + 9] ^= 1 << 17
    wrong.feed(records, EVERY, shape_of)
    pairs = zip(digests(right, 64), digests(wrong, 64), strict=True)
    assert [one == other for one, other in pairs] == [True, False]


def test_an_agent_that_begins_later_counts_fewer_calls_in_its_first_sum() -> None:
    numbers = chosen(64 * 3)
    late = Results()
    late.feed(verified(*numbers[30:]), EVERY, shape_of)
    assert [(each.first, each.calls) for each in digests(late, 64)] == [(numbers[30], 34), (numbers[64], 64)]


def test_a_change_of_the_sampling_and_lost_records_begin_again() -> None:
    results = Results()
    results.feed(verified(*chosen(100)), EVERY, shape_of)
    results.feed(verified(), EVERY, shape_of, lost=True)
    assert results.report(1, 1) is None, "a sum that lacks calls would differ from the others'"
    results.feed(verified(*chosen(100)), EVERY, shape_of)
    results.feed(verified(*chosen(100)), 7, shape_of)
    both = [number for number in chosen(100) if is_verified(number, 7)]
    assert [each.first for each in digests(results, 1)] == both[-WIDTHS[1] :], "calls of before that others verify, too"
    results.feed(verified(*chosen(100)), 0, shape_of)
    assert results.report(1, 1) is None


def test_whatever_a_ring_says_memory_and_reports_are_bounded_and_can_be_read() -> None:
    results = Results()
    anyone = lambda comm: Shape(comm=comm, size=1 << 31, place=-5)  # noqa: E731
    for comm in (*range(1, 100), POINT_TO_POINT | 1, (1 << 64) - 1):
        records = verified(*chosen(100), comm=1)
        records["comm"] = np.uint64(comm)
        results.feed(records, EVERY, anyone)
    report = results.report(0, 1)
    assert report is not None
    assert [comm.comm for comm in report.comms] == list(range(100 - MAX_COMMUNICATORS, 100))
    assert all(comm.place == 0 for comm in report.comms)


def test_a_communicator_whose_members_are_not_known_is_left_out() -> None:
    results = Results()
    results.feed(verified(*chosen(100), comm=9), EVERY, shape_of)
    assert results.report(1, 1) is None
