"""What the agent makes of records of real NCCL ranks (tests/data/nccl): calls that return when they are enqueued."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from falcon_agent.cli.replay import Replay, replay
from falcon_agent.rings.ring_reader import RingReader
from falcon_core.wire.ring import Flag, Kind

KEPT = Path(__file__).parents[3] / "data" / "nccl"


def rings(job: str, folder: Path) -> list[Path]:
    """Unpack the rings of a job's two ranks."""
    found = []
    for rank in range(2):
        path = folder / f"g0-r{rank}-{rank + 1}.ring"
        path.write_bytes(lzma.decompress((KEPT / f"{job}-r{rank}.ring.xz").read_bytes()))
        found.append(path)
    return found


def replayed(job: str, folder: Path) -> Replay:
    return replay(rings(job, folder))


@pytest.mark.parametrize(("job", "calls", "iterations"), [("fsdp", 21, 300), ("pipeline", 17, 300), ("plugin", 3, 200)])
def test_iterations_are_found_and_nobody_is_slow(job: str, calls: int, iterations: int, tmp_path: Path) -> None:
    found = replayed(job, tmp_path)
    for rank in found.ranks:
        assert rank.period_calls == calls
        assert iterations - 2 <= len(rank.points) < iterations
    assert not any(finding.verdicts for finding in found.findings)


def test_the_delayed_rank_is_named_by_the_devices_times(tmp_path: Path) -> None:
    """Both ranks' hosts wait for the device alike: only the times of the calls on the device tell them apart."""
    found = replayed("delayed", tmp_path)
    for rank in found.ranks:
        (episode,) = rank.episodes
        assert 198 <= episode.first <= 201
        assert episode.reported - episode.first <= 6
        assert episode.relieved is None
    (finding,) = found.findings
    assert [(verdict.ranks, round(verdict.ratio, 1)) for verdict in finding.verdicts] == [((1,), 3.9)]


def test_captured_calls_and_launches_of_graphs_are_told_apart(tmp_path: Path) -> None:
    for path in rings("graphs", tmp_path):
        records = RingReader(path).read(0.0).records
        captured = (records["kind"] == Kind.ENQUEUED) & (records["flags"] & Flag.CAPTURED != 0)
        assert captured.sum() == 100
        assert (records["kind"] == Kind.GRAPH_LAUNCH).sum() == 300
        assert not (records["flags"] & Flag.FAILED).any()
