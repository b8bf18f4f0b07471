"""Hashes of results in a pod's report: exact, bounded, and no byte where none are asked for."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.wire.reporting.groups import GroupReport
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_core.wire.reporting.verification import (
    MAX_DIGESTS,
    Digest,
    RankResults,
    call_digest,
    number_digest,
    sum_digest,
)

BARE = Summary(pod_uid="p", sequence=1, unix_ns=1, generation=1)
LARGEST = (1 << 63) - 1
replace = msgspec.structs.replace


def results(rank: int = 3, digests: int = MAX_DIGESTS) -> RankResults:
    each = [Digest(width=64, first=(1 << 32) - 1, calls=64, numbers=LARGEST, value=LARGEST)] * digests
    return RankResults(rank=rank, life=1, every=1000, size=1024, digests=each)


def test_results_arrive_as_they_were_sent() -> None:
    for groups in (None, GroupReport()):
        summary = replace(BARE, results=[results(0), results(1)], groups=groups)
        assert decode_summary(encode_summary(summary, ()), "p") == summary


def test_a_report_without_results_has_no_byte_for_them_and_one_with_them_is_bounded() -> None:
    assert len(encode_summary(BARE, ())) <= 64
    assert len(encode_summary(replace(BARE, results=[results()]), ())) <= 400


def test_more_than_the_bounds_is_not_read() -> None:
    for broken in (
        results(digests=MAX_DIGESTS + 1),
        replace(results(), every=-1),
        replace(results(), rank=-2),
    ):
        raw = encode_summary(replace(BARE, results=[broken]), ())
        with pytest.raises(ValueError, match="Expected"):
            decode_summary(raw, "p")


def test_digests_fit_into_a_report_whatever_is_hashed() -> None:
    for number in (0, 1, (1 << 32) - 1):
        assert 0 <= sum_digest(LARGEST, number_digest(number)) <= LARGEST
        for hashed in (0, 1, 1 << 63, (1 << 64) - 1):
            assert 0 <= call_digest(number, hashed) <= LARGEST
            assert 0 <= sum_digest(LARGEST, call_digest(number, hashed)) <= LARGEST
