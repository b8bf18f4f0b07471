"""The ring's reader against files that a test writes slot by slot."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from falcon_agent.rings.ring_reader import HOLE_SECONDS, RingReader
from falcon_core.wire import ring

CAPACITY = 8


class Writer:
    """A ring file under the test's control."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = ring.RingHeader(
            capacity=CAPACITY,
            pid=1,
            generation=2,
            rank=3,
            world_size=4,
            local_rank=0,
            start_unix_ns=0,
            start_ns=0,
            head=0,
        )
        path.write_bytes(ring.pack_header(self.header) + bytes(CAPACITY * ring.RECORD_BYTES))

    def put(self, number: int, *, torn: bool = False) -> None:
        record = np.zeros(1, ring.RECORD_DTYPE)
        record["seq"] = number + 1
        record["bytes"] = number
        record["check"] = ring.checks(record) + np.uint32(torn)
        self._write(ring.HEADER_BYTES + number % CAPACITY * ring.RECORD_BYTES, record.tobytes())

    def head(self, value: int) -> None:
        self._write(0, ring.pack_header(msgspec.structs.replace(self.header, head=value)))

    def _write(self, at: int, content: bytes) -> None:
        file = os.open(self.path, os.O_WRONLY)
        os.pwrite(file, content, at)
        os.close(file)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "g2-r3-1.ring")


def test_reads_each_record_once(writer: Writer) -> None:
    reader = RingReader(writer.path)
    assert reader.header.rank == 3
    assert len(reader.read(0.0).records) == 0
    for number in range(3):
        writer.put(number)
    writer.head(3)
    assert reader.read(0.0).records["bytes"].tolist() == [0, 1, 2]
    assert len(reader.read(0.0).records) == 0


def test_waits_for_a_hole_and_then_passes_it(writer: Writer) -> None:
    reader = RingReader(writer.path)
    writer.put(0)
    writer.put(2)
    writer.head(3)
    assert reader.read(10.0).records["bytes"].tolist() == [0]
    assert len(reader.read(10.0 + HOLE_SECONDS / 2).records) == 0
    reader.read(10.0 + HOLE_SECONDS)
    assert reader.read(10.1 + HOLE_SECONDS).records["bytes"].tolist() == [2]
    assert (reader.holes, reader.lost_records) == (1, 0)


def test_a_hole_that_fills_late_is_read(writer: Writer) -> None:
    reader = RingReader(writer.path)
    writer.put(1)
    writer.head(2)
    assert len(reader.read(0.0).records) == 0
    writer.put(0)
    assert reader.read(0.1).records["bytes"].tolist() == [0, 1]
    assert reader.holes == 0


def test_every_hole_is_waited_for_as_long(writer: Writer) -> None:
    """Check a reader that meets a call in the middle of its append each time: it gives up none of the calls."""
    reader = RingReader(writer.path)
    for number in range(6):
        writer.head(number + 1)
        reader.read(number * HOLE_SECONDS * 0.6)
        writer.put(number)
    assert reader.holes == 0


def test_a_lapped_reader_knows_what_it_lost(writer: Writer) -> None:
    reader = RingReader(writer.path)
    for number in range(20):
        writer.put(number)
    writer.head(20)
    batch = reader.read(0.0)
    assert batch.lost == 20 - CAPACITY
    assert batch.records["bytes"].tolist() == list(range(12, 20))


def test_a_torn_record_is_never_read(writer: Writer) -> None:
    reader = RingReader(writer.path)
    writer.put(0, torn=True)
    writer.put(1)
    writer.head(2)
    reader.read(0.0)
    reader.read(HOLE_SECONDS)
    assert reader.read(HOLE_SECONDS + 0.1).records["bytes"].tolist() == [1]


def test_another_version_is_refused_by_name(writer: Writer) -> None:
    raw = bytearray(writer.path.read_bytes())
    raw[8] = 9
    writer.path.write_bytes(raw)
    with pytest.raises(ring.RingFormatError, match="version 9"):
        RingReader(writer.path)
