"""What is no report, and what is beyond the bounds of one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.wire.launcher.printed import MOST_PRINTED, Printed, RankOutput
from falcon_core.wire.reporting.bounds import MAX_TEXT
from falcon_core.wire.reporting.messages import (
    MAX_COMMS,
    MAX_FRAMES,
    RECENT_ITERATIONS,
)
from falcon_core.wire.reporting.microbatches import MicroShare
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_core.wire.reporting.samples import MAX_PLACE_FRAMES, MAX_PLACE_TEXT, MAX_PLACES
from tests.unit.wire.test_reports import NOW_NS, fields, pod, rank, refused, replace


def test_the_output_of_many_processes_stays_within_a_gateways_bound() -> None:
    long = Printed(NOW_NS, "é" * 512, "x" * 64, False)
    many = replace(pod([], []), output=[RankOutput(number, [long] * MOST_PRINTED) for number in range(64)])
    raw = encode_summary(many, ())
    assert len(raw) < 64 << 10
    arrived = decode_summary(raw, "p").output
    assert [len(each.printed) for each in arrived] == [MOST_PRINTED] * 64
    assert arrived[0].printed[0].text.startswith("é" * 50)


@pytest.mark.parametrize(
    "output",
    [
        [[0, [[1, "x" * 513]]]],
        [[0, [[-1, "x"]]]],
        [[0, [[1 << 63, "x"]]]],
        [[0, [[1, "x", "y" * 65]]]],
        [[0, [[1, "x"]] * (MOST_PRINTED + 1)]],
        [[-1, []]],
        [[0, [], -1]],
    ],
)
def test_output_beyond_the_bounds_is_refused(output: list[Any]) -> None:
    refused([*fields(), output])


@pytest.mark.parametrize("version", [0, 1, 4, -1, "2"])
def test_other_versions_are_refused(version: object) -> None:
    refused([version, *fields()[1:]])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (2, -5),  # iterations
        (2, (1 << 64) - 1),
        (4, float("nan")),  # the iteration time
        (4, float("inf")),
        (4, -2),
        (4, 1.5),
        (1, 3),  # tracking
        (15, [1, 1 << 63, 1, 1, 1]),  # onset
    ],
)
def test_a_rank_with_impossible_numbers_is_refused(place: int, value: object) -> None:
    report = fields()
    report[6][0][place] = value
    refused(report)


def test_more_than_the_bounds_is_refused() -> None:
    many = fields(0)
    many[6][0][16][0] = [1] * (RECENT_ITERATIONS + 1)
    refused(many)
    comms = fields(0)
    comms[6][0][16][3] = [[1]] * (MAX_COMMS + 1)
    refused(comms)
    carried = fields(0)
    carried[6][0][16][-1] = [[1, 2, -1]]
    refused(carried)
    text = fields()
    text[4][7] = "x" * (1 << 20)
    refused(text)


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xc1", b'{"version": 1}', encode_summary(pod([], []), ())[:-3]])
def test_what_is_no_report_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_summary(raw, "p")


@pytest.mark.parametrize("stack", [["f"] * (MAX_FRAMES + 1), ["f" * (MAX_TEXT + 1)], [7]])
def test_a_stack_beyond_the_bounds_is_refused(stack: list[object]) -> None:
    report = fields(0)
    report[7] = [stack]
    refused(report)


def test_ranks_at_the_same_place_send_its_stack_once() -> None:
    same, other = ["all_reduce (c10d.py:9)" * 10, "step (train.py:40)"], ["load (data.py:7)"]
    ranks = [rank(number, stack=other if number == 3 else same) for number in range(8)]
    report = encode_summary(pod(ranks, []), range(8))
    assert report.count(same[0].encode()) == 1
    assert [each.stack for each in decode_summary(report, "p").ranks] == [each.stack for each in ranks]
    assert same[0].encode() not in encode_summary(pod(ranks, []), {3}), "without detail no stack"


@pytest.mark.parametrize("place", [1, 7, -1])
def test_a_place_without_a_stack_is_no_stack(place: int) -> None:
    report = fields(0)
    report[7] = [["step (train.py:40)"]]
    report[6][0][16][10] = place
    assert decode_summary(msgspec.msgpack.encode(report), "p").ranks[0].stack == []


def test_work_of_an_unknown_kind_is_refused() -> None:
    report = fields(0)
    report[6][0][16][8] = 3
    refused(report)


@pytest.mark.parametrize("shared", [[0, 0, 1, 5], [0, 4, 0, 5], [0, 4, 4, -3], [0, 4, 4, 1 << 60], [-2, 4, 4, 5]])
def test_impossible_micro_batches_are_refused(shared: list[int]) -> None:
    raw = msgspec.msgpack.decode(encode_summary(pod([rank(0, micro=MicroShare(per_rank=4, share=4))], []), ()))
    place = raw.index([[0, 4, 4, -1]])
    raw[place] = [shared]
    with pytest.raises(msgspec.ValidationError):
        decode_summary(msgspec.msgpack.encode(raw), "p")


@pytest.mark.parametrize(
    "samples",
    [
        [12, [[["f"] * (MAX_PLACE_FRAMES + 1), 1]]],
        [12, [[["f" * (MAX_PLACE_TEXT + 1)], 1]]],
        [12, [[["f"], 1]] * (MAX_PLACES + 1)],
        [-1, []],
        [12, [[["f"], -1]]],
    ],
)
def test_samples_beyond_the_bounds_are_refused(samples: list[Any]) -> None:
    report = fields(0)
    report[6][0][16][-2] = samples
    with pytest.raises(msgspec.ValidationError):
        decode_summary(msgspec.msgpack.encode(report), "p")
