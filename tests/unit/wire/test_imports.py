"""The record of imports on its way: what is too long is not sent, and what is no record is refused."""

from __future__ import annotations

import random
import zlib

import pytest

from falcon_core.wire.launcher.imports import MOST_BYTES, MOST_PACKED, pack, unpack
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary

RECORD = b"p 7\n" + b"".join(b"i torch.module%d\n" % number for number in range(1000))


def test_it_comes_back_as_it_was() -> None:
    assert unpack(pack(RECORD)) == RECORD
    assert len(pack(RECORD)) < len(RECORD) / 4


def test_what_is_too_long_is_not_sent() -> None:
    assert pack(b"") == b""
    assert pack(b"x" * (MOST_BYTES + 1)) == b""
    assert pack(random.Random(1).randbytes(MOST_PACKED + 1)) == b""


@pytest.mark.parametrize(
    "packed", [b"", b"nonsense", pack(RECORD)[:-5], zlib.compress(b"x" * (MOST_BYTES + 1))], ids=range(4)
)
def test_what_is_no_record_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="record of imports"):
        unpack(packed)


def test_a_report_carries_it() -> None:
    summary = Summary(pod_uid="pod", sequence=1, unix_ns=5, generation=2, imported=pack(RECORD))
    assert decode_summary(encode_summary(summary, ()), "pod").imported == pack(RECORD)


def test_a_report_with_too_long_a_record_is_not_read() -> None:
    summary = Summary(pod_uid="pod", sequence=1, unix_ns=5, generation=2, imported=b"x" * (MOST_PACKED + 1))
    with pytest.raises(ValueError, match="Expected `bytes` of length"):
        decode_summary(encode_summary(summary, ()), "pod")
