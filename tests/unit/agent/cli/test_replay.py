"""Captured rings go through the whole chain, so that a complaint becomes a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from falcon_agent.cli.replay import describe, replay
from falcon_agent.rings.recorder import Recording, record
from falcon_agent.rings.ring_reader import RingReader
from falcon_core.wire import ring
from tests.unit.agent.ring_files import COMM, job_rings, write_ring
from tests.unit.signals.members import Job, data_parallel
from tests.unit.signals.streams import MS

SLOW = 1


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write the rings of 80 healthy iterations, 40 with a straggler, and 60 healthy iterations."""
    job = Job(3)
    data_parallel(job, 80)
    data_parallel(job, 40, {SLOW: 1.6})
    data_parallel(job, 60)
    return job_rings(tmp_path_factory.mktemp("rings"), job)


def test_onset_relief_and_the_culprit_are_reported_with_their_iterations(files: list[Path]) -> None:
    report = replay(files)
    assert [rank.rank for rank in report.ranks] == [0, 1, 2]
    for rank in report.ranks:
        assert rank.period_calls == 4
        assert [point.number for point in rank.points] == list(range(1, len(rank.points) + 1))
        (episode,) = rank.episodes
        assert abs(episode.first - 81) <= 2
        assert episode.reported - episode.first < 10
        assert episode.relieved is not None
        assert abs(episode.relieved - 125) <= 6
        assert episode.after_ns / episode.before_ns == pytest.approx(1.5, abs=0.1)
    blamed = [finding for finding in report.findings if finding.verdicts]
    assert {verdict.ranks for finding in blamed for verdict in finding.verdicts} == {(SLOW,)}
    assert sum(finding.last - finding.first + 1 for finding in blamed) >= 25
    assert f"rank {SLOW} takes 1.6x the healthy compute time" in describe(report)
    (profile,) = report.profiles
    assert profile.links == []
    assert profile.waits_ns[SLOW] < 3 * MS
    assert all(profile.waits_ns[rank] == pytest.approx(60 * MS, rel=0.15) for rank in (0, 2))


def test_one_file_alone_shows_times_but_blames_nobody(files: list[Path]) -> None:
    report = replay(files[:1])
    assert len(report.ranks[0].episodes) == 1
    assert [finding.verdicts for finding in report.findings if finding.verdicts] == []


def test_a_file_that_is_no_ring_and_two_files_of_one_rank_are_refused(files: list[Path], tmp_path: Path) -> None:
    not_a_ring = tmp_path / "other"
    not_a_ring.write_bytes(b"x" * 8192)
    with pytest.raises(ring.RingFormatError):
        replay([not_a_ring])
    with pytest.raises(ring.RingFormatError):
        replay([files[0], files[0]])


def test_calls_that_never_recur_are_said_to_be_so(tmp_path: Path) -> None:
    records = np.zeros(3, dtype=ring.RECORD_DTYPE)
    records["kind"], records["bytes"] = ring.Kind.BLOCKING, [1, 2, 3]
    assert "no recurring cycle" in describe(replay([write_ring(tmp_path / "r", records, rank=0, world_size=1)]))


def test_holes_are_passed_and_counted(files: list[Path], tmp_path: Path) -> None:
    raw = bytearray(files[0].read_bytes())
    for number in (100, 101, 300):
        place = ring.HEADER_BYTES + number * ring.RECORD_BYTES
        raw[place : place + ring.RECORD_BYTES] = bytes(ring.RECORD_BYTES)
    holed = tmp_path / files[0].name
    holed.write_bytes(raw)
    whole, with_holes = replay([files[0]]).ranks[0], replay([holed]).ranks[0]
    assert (with_holes.records, with_holes.holes) == (whole.records - 3, 3)
    assert with_holes.points[-1].number > 150


def test_the_recorder_keeps_what_the_ring_forgets(files: list[Path], tmp_path: Path) -> None:
    complete = np.frombuffer(files[0].read_bytes()[ring.HEADER_BYTES :], dtype=ring.RECORD_DTYPE)
    header = ring.parse_header(files[0].read_bytes())
    small, capacity = tmp_path / "small.ring", 64
    slots = np.zeros(capacity, dtype=ring.RECORD_DTYPE)

    def write(head: int) -> None:
        new = complete[max(0, head - capacity) : head]
        slots[(new["seq"].astype(np.int64) - 1) % capacity] = new
        now = {name: getattr(header, name) for name in header.__struct_fields__} | {"capacity": capacity, "head": head}
        small.write_bytes(ring.pack_header(ring.RingHeader(**now)) + slots.tobytes())

    write(10)
    recording = Recording(small, tmp_path / "copy.ring")
    for head in [*range(10, header.head, 40), header.head]:
        write(head)
        recording.poll(0.0)
    recording.close()
    assert (recording.records, recording.lost_records) == (header.head, 0)
    assert replay([tmp_path / "copy.ring"]) == replay([files[0]])
    reader = RingReader(tmp_path / "copy.ring")
    assert (reader.read(0.0).records == complete[: header.head]).all()
    reader.close()


def test_a_run_directory_is_recorded_ring_by_ring(files: list[Path], tmp_path: Path) -> None:
    rings = tmp_path / "run" / "launch" / "rings"
    rings.mkdir(parents=True)
    (rings / "broken.ring").write_bytes(b"no ring")
    for file in files:
        (rings / file.name).write_bytes(file.read_bytes())
    recorded = record(tmp_path / "run", tmp_path / "kept", lambda: False)
    assert sorted(recorded) == [file.name for file in files]
    assert replay([tmp_path / "kept" / file.name for file in files]) == replay(files)


@pytest.mark.slow
def test_the_command_prints_and_draws(files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    picture = tmp_path / "out.png"
    command = [sys.executable, "-m", "falcon_agent", "replay", *map(str, files), "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert f"rank {SLOW} takes 1.6x the healthy compute time" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    command[-1] = str(tmp_path / "missing" / "out.png")
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert refused.returncode == 1
    assert "missing" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_communicators_are_named_by_the_places_in_them(files: list[Path]) -> None:
    healthy_report = replay(files)
    grown = {
        verdict.comm
        for finding in healthy_report.findings
        for verdict in finding.verdicts
        if verdict.kind == "Communication"
    }
    assert grown == set()
    job = Job(3)
    data_parallel(job, 80)
    for _ in range(40):
        job.compute(100 * MS)
        for size in (1 << 20, 1 << 20, 1 << 12):
            job.meet(ring.Op.ALL_REDUCE, size, [range(3)], COMM, lambda _: 12 * MS)
            job.compute(2 * MS)
        job.meet(ring.Op.ALL_REDUCE, 4, [range(3)], COMM, lambda _: 12 * MS)
        job.end_cycle()
    folder = files[0].parent / "link"
    folder.mkdir()
    slow_report = replay(job_rings(folder, job))
    found = [verdict for finding in slow_report.findings for verdict in finding.verdicts]
    assert {slow_link.comm for profile in slow_report.profiles for slow_link in profile.links} == {str(COMM)}
    assert {(verdict.kind, verdict.comm) for verdict in found} == {("Communication", str(COMM))}
