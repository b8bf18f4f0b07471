"""What a training process may put where its ring should be: each is refused once, and the others are followed."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs

from benchmarks.shim import fuzz
from falcon_agent.launch.run_dir import MOST_BYTES, RunDir
from falcon_agent.rings.ring_reader import RingReader
from falcon_agent.rings.tracker import MOST_RINGS, Tracker
from falcon_core.wire import ring
from falcon_core.wire.launcher.launch import RINGS_DIR, RINGS_FILE, STATUS_FILE
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from tests.unit.agent.ring_files import write_ring
from tests.unit.signals.streams import Call, Script

GOOD, BAD = "g1-r0-100.ring", "g1-r1-101.ring"
MS = 1_000_000
HEAD_OFFSET, CAPACITY_OFFSET = 64, 20


def good_ring(folder: Path, name: str = GOOD, rank: int = 0) -> Path:
    script = Script(jitter=0.02)
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    return write_ring(folder / name, script.records, rank=rank, world_size=2)


def patched(path: Path, offset: int, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, content, offset)
    os.close(file)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    # A socket's path has at most 107 bytes.
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)


def link_to_a_ring(path: Path) -> None:
    path.symlink_to(good_ring(path.parent.parent, "elsewhere"))


def sparse(path: Path) -> None:
    """Put a header that says 2 GiB of slots, all of which were written, on a file that takes no space."""
    good_ring(path.parent, path.name)
    patched(path, CAPACITY_OFFSET, struct.pack("<I", 1 << 25))
    patched(path, HEAD_OFFSET, struct.pack("<Q", 1 << 25))
    os.truncate(path, 2 << 30)


def endless(path: Path) -> None:
    good_ring(path.parent, path.name)
    patched(path, HEAD_OFFSET, struct.pack("<Q", (1 << 64) - 2))


def empty(path: Path) -> None:
    path.touch()


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / RINGS_DIR
    folder.mkdir(parents=True)
    good_ring(folder)
    return folder


@pytest.mark.parametrize("put", [fifo, directory, unix_socket, link_to_a_ring, sparse, endless, empty])
def test_what_is_no_ring_is_refused_once_and_the_others_are_followed(rings: Path, put: Callable[[Path], None]) -> None:
    put(rings / BAD)
    tracker = Tracker(rings.parents[1])
    before = open_files()
    with capture_logs() as logs:
        for _ in range(50):
            tracker.poll([GOOD, BAD])
    assert [log["ring"] for log in logs if log["event"] == "ring refused"] == [BAD]
    assert [report.rank for report in tracker.signals(1)] == [0]
    assert tracker.signals(1)[0].iterations > 0
    assert open_files() == before + 1, "the good ring's"


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        (0, b"\0" * 8),  # magic
        (CAPACITY_OFFSET, struct.pack("<I", 1 << 31)),
        (CAPACITY_OFFSET, struct.pack("<I", 16)),
        (HEAD_OFFSET, struct.pack("<Q", 1)),  # it went back
        (HEAD_OFFSET, struct.pack("<Q", 1 << 63)),
    ],
)
def test_a_header_that_is_damaged_after_opening(rings: Path, offset: int, content: bytes) -> None:
    damaged = good_ring(rings, BAD, rank=1)
    tracker = Tracker(rings.parents[1])
    tracker.poll([GOOD, BAD])
    assert len(tracker.signals(1)) == 2
    patched(damaged, offset, content)
    with capture_logs() as logs:
        tracker.poll([GOOD, BAD])
        tracker.poll([GOOD, BAD])
    assert [log["ring"] for log in logs] == [BAD]
    assert [report.rank for report in tracker.signals(1)] == [0]


def test_a_ring_under_another_ranks_name_is_refused(rings: Path) -> None:
    os.link(rings / GOOD, rings / BAD)
    tracker = Tracker(rings.parents[1])
    tracker.poll([GOOD, BAD])
    assert [report.rank for report in tracker.signals(1)] == [0]


def test_a_table_of_counters_that_is_nowhere(rings: Path) -> None:
    """The counts are missing then; the rest of the ring is followed."""
    good_ring(rings, BAD, rank=1)
    tracker = Tracker(rings.parents[1], monotonic_ns=lambda: 10**15)
    patched(rings / BAD, 128, struct.pack("<QII", (1 << 64) - 1, 1 << 30, ring.COUNTER_BYTES))
    tracker.poll([BAD])
    assert tracker.signals(1)[0].comms == []


def test_records_of_noise_end_no_agent(rings: Path) -> None:
    noise = np.frombuffer(np.random.default_rng(7).bytes(4096 * ring.RECORD_BYTES), dtype=ring.RECORD_DTYPE)
    write_ring(rings / BAD, noise, rank=1, world_size=2)
    tracker = Tracker(rings.parents[1])
    for _ in range(3):
        tracker.poll([GOOD, BAD])
        tracker.memory()
        assert 0 in [report.rank for report in tracker.signals(1)]


@pytest.mark.parametrize(
    ("field", "value"), [("t_start_ns", 1 << 62), ("duration_ns", (1 << 64) - 1), ("bytes", 1 << 63)]
)
def test_records_of_impossible_times_and_sizes_are_refused(rings: Path, field: str, value: int) -> None:
    """They would make numbers of 128 bits, which no report can carry: the pod's other ranks would be silent too."""
    script = Script(jitter=0.02)
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    records = script.records
    records[field][40] = value
    write_ring(rings / BAD, records, rank=1, world_size=2)
    tracker = Tracker(rings.parents[1])
    with capture_logs() as logs:
        tracker.poll([GOOD, BAD])
        tracker.poll([GOOD, BAD])
    assert [log["ring"] for log in logs if log["event"] == "ring refused"] == [BAD]
    summary = Summary(pod_uid="p", sequence=1, unix_ns=1, generation=1, ranks=tracker.signals(1))
    assert [report.rank for report in decode_summary(encode_summary(summary, range(2)), "p").ranks] == [0]


def test_counters_of_noise_are_left_out(rings: Path) -> None:
    script = Script(jitter=0.02)
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    counters = {7: (60, 60), 8: ((1 << 64) - 1, 3), 9: (3, 1 << 63)}
    write_ring(rings / BAD, script.records, rank=1, world_size=2, counters=counters)
    reader = RingReader(rings / BAD)
    found = reader.counters()
    reader.close()
    assert found is not None
    assert found["key"].tolist() == [7]


@pytest.mark.parametrize("seed", [0, 4, 13, 20, 39, 2038])  # each ended the agent, or made its whole report unreadable
def test_what_the_fuzz_has_found_stays_mended(tmp_path: Path, seed: int) -> None:
    findings = fuzz.Findings()
    findings.seed = seed
    structlog.configure(processors=[findings.caught])
    try:
        fuzz.play(np.random.default_rng(seed), tmp_path, findings)
    finally:
        structlog.reset_defaults()
    assert findings.seeds == {}


def test_names_and_numbers_of_rings_are_bounded(rings: Path) -> None:
    odd = ["../../status.json", "g1-r0-1.ring\n", "g1-r0-½.ring", "g1-r0-1.ring.new", "\udcff.ring", ""]
    names = [f"g1-r{rank}-{200 + rank}.ring" for rank in range(100, 10_100)]
    for rank, name in enumerate(names[:200], 100):
        good_ring(rings, name, rank)
    for name in names[200:]:
        os.link(rings / GOOD, rings / name)
    tracker = Tracker(rings.parents[1])
    before = resident_bytes()
    tracker.poll([*odd, *names])
    assert 0 < len(tracker.signals(1)) <= MOST_RINGS
    assert resident_bytes() - before < 100 << 20


@pytest.mark.parametrize("put", [fifo, directory, unix_socket])
def test_what_is_no_file_of_the_launchers_is_not_read(tmp_path: Path, put: Callable[[Path], None]) -> None:
    run_dir = RunDir(tmp_path)
    (tmp_path / "launch").mkdir()
    put(tmp_path / STATUS_FILE)
    assert run_dir.status() is None
    (tmp_path / RINGS_FILE).write_bytes(b" " * (MOST_BYTES + 1))
    assert run_dir.rings() is None
    (tmp_path / RINGS_FILE).unlink()
    (tmp_path / RINGS_FILE).write_bytes(b'{"version":1,"own":["g1-r0-100.ring"]}')
    assert run_dir.rings() == [GOOD]
