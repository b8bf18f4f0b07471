"""The ring as C++ writes it and Python reads it; the writer is the code of the shim in a small driver."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from falcon_core.wire import ring

DRIVER = Path(os.environ.get("SHIM_TEST_OUT", "")) / "ring_stress"


def _start(folder: Path, threads: int, records: int, capacity: int) -> tuple[subprocess.Popen[str], Path]:
    if not DRIVER.is_file():
        pytest.fail(f"{DRIVER} is not built: run the tests through make test-unit")
    process = subprocess.Popen(
        [str(DRIVER), str(folder), str(threads), str(records), str(capacity)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def _read(path: Path) -> tuple[ring.RingHeader, ring.RecordArray]:
    raw = path.read_bytes()
    header = ring.parse_header(raw)
    return header, np.frombuffer(raw, ring.RECORD_DTYPE, header.capacity, ring.HEADER_BYTES)


def _adds_up(records: ring.RecordArray) -> bool:
    return bool((records["bytes"] == records["comm"] * np.uint64(1000003) + records["comm_seq"]).all())


def test_header_and_every_record_of_many_threads(tmp_path: Path) -> None:
    process, path = _start(tmp_path, threads=4, records=5000, capacity=32768)
    assert process.wait(timeout=600) == 0
    header, slots = _read(path)
    assert (header.capacity, header.head, header.pid) == (32768, 20000, process.pid)
    assert (header.generation, header.rank, header.world_size, header.local_rank) == (7, 3, 8, 1)
    records = slots[: header.head]
    assert (records["seq"] == np.arange(1, header.head + 1)).all()
    assert (ring.checks(records) == records["check"]).all()
    assert _adds_up(records)
    for thread in range(1, 5):
        assert (records["comm_seq"][records["comm"] == thread] == np.arange(5000)).all(), "one thread's own order"


def test_counters_stand_beside_the_records(tmp_path: Path) -> None:
    process, path = _start(tmp_path, threads=4, records=500, capacity=256)
    assert process.wait(timeout=600) == 0
    raw = path.read_bytes()
    status = ring.parse_status(raw)
    assert status.counters_offset == ring.HEADER_BYTES + 256 * ring.RECORD_BYTES
    assert (status.waiting, status.gate_waited, status.gate_opened) == (0, 0, 0)
    assert status.gate_reason is ring.GateReason.NONE
    counters = np.frombuffer(raw, ring.COUNTER_DTYPE, status.counters, status.counters_offset)
    used = counters[counters["key"] != 0]
    expected = [ring.counter_key(thread, ring.Traffic.COLLECTIVE) for thread in range(1, 5)]
    assert sorted(used["key"].tolist()) == expected
    assert used["entered"].tolist() == used["finished"].tolist() == [500] * 4


def test_a_ring_of_an_earlier_shim_has_no_counters() -> None:
    header = ring.pack_header(
        ring.RingHeader(
            capacity=256,
            pid=1,
            generation=1,
            rank=0,
            world_size=1,
            local_rank=0,
            start_unix_ns=0,
            start_ns=0,
            head=0,
        )
    )
    assert ring.parse_status(header).counters == 0
    with pytest.raises(ring.RingFormatError):
        ring.parse_status(header[:128])


def test_a_wrapped_ring_holds_the_newest(tmp_path: Path) -> None:
    process, path = _start(tmp_path, threads=2, records=1000, capacity=256)
    assert process.wait(timeout=600) == 0
    header, slots = _read(path)
    assert sorted(slots["seq"].tolist()) == list(range(header.head - 255, header.head + 1))
    assert (ring.checks(slots) == slots["check"]).all()


def test_a_killed_writer_leaves_no_torn_record_that_looks_whole(tmp_path: Path) -> None:
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process, path = _start(folder, threads=3, records=0, capacity=1024)
        while ring.parse_header(path.read_bytes()[:128]).head < 1000:
            time.sleep(0.001)  # a busy machine starts threads late
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=600)
        _, slots = _read(path)
        whole = slots[ring.checks(slots) == slots["check"]]
        published = whole[whole["seq"] > 0]
        assert len(published) > 0
        assert _adds_up(published)
        assert (published["seq"] - 1 & np.uint64(1023) == np.flatnonzero(np.isin(slots["seq"], published["seq"]))).all()


def test_no_file_under_its_name_where_the_space_does_not_suffice(tmp_path: Path) -> None:
    process, path = _start(tmp_path, threads=1, records=1, capacity=1 << 31)
    assert process.wait(timeout=600) == 1
    assert path == Path() or not path.exists()
    assert list(tmp_path.iterdir()) == []
