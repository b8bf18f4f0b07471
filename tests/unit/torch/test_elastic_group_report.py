"""What a job's own launcher says of its group is what the agent reads, whatever else lies in the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.reporting.groups import MAX_CHANGES, MAX_LIST, GroupReport, LaunchGroup, LostRank, report_of
from tests.unit.client_format import elastic_group_report, elastic_roster

LOST = elastic_roster.Loss(1, 77, "Gone")


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def time_ns(self) -> int:
        return int(self.seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(elastic_group_report, "time", clock)
    return clock


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "launch").mkdir()
    return tmp_path


def standing(
    number: int, *ranks: int, wanted: int = 3, lost: tuple[object, ...] = (), late: tuple[int, ...] = ()
) -> object:
    return elastic_roster.Standing(number, wanted, ranks, late, (), elastic_roster.Change(wanted, lost))


def written(run_dir: Path) -> LaunchGroup:
    found = RunDir(run_dir).group()
    assert found is not None
    return found


def test_the_agent_reads_the_group_and_how_a_lost_rank_has_ended(run_dir: Path, clock: Clock) -> None:
    report = elastic_group_report.GroupReport(str(run_dir / "launch/group.json"), 4)
    report.look(standing(1, 0, 1, 2))
    clock.seconds += 5
    report.look(standing(2, 0, 2, lost=(LOST,), late=(0,)))
    report.end(1, 77, -9)
    said = written(run_dir)
    assert said.group is not None
    assert (said.group.number, said.group.size, said.group.wanted, said.group.unix_ms) == (2, 2, 3, 105_000)
    assert (said.group.missing, said.group.late) == ([1], [0])
    assert [(change.number, change.lost) for change in said.group.changes] == [(1, []), (2, [LostRank(1, 77, "Gone")])]
    assert [(end.rank, end.process, end.code) for end in said.ends] == [(1, 77, -9)]
    assert report_of(said, 4) == GroupReport(said.group, said.ends)
    assert report_of(said, 5) is None, "of an earlier generation"


def test_a_look_is_written_at_once_where_the_group_is_new_and_else_from_time_to_time(
    run_dir: Path, clock: Clock
) -> None:
    report = elastic_group_report.GroupReport(str(run_dir / "launch/group.json"), 1)
    report.look(standing(1, 0, 1, 2))
    report.look(standing(1, 0, 1, 2, late=(1,)))
    group = written(run_dir).group
    assert group is not None
    assert group.late == []
    clock.seconds += elastic_group_report.BETWEEN_SECONDS
    report.look(standing(1, 0, 1, 2, late=(1,)))
    group = written(run_dir).group
    assert group is not None
    assert group.late == [1]


def test_a_large_job_whose_ranks_come_and_go_stays_within_the_bounds(run_dir: Path, clock: Clock) -> None:
    report = elastic_group_report.GroupReport(str(run_dir / "launch/group.json"), 1)
    lost = tuple(elastic_roster.Loss(rank, 1 << 22, "Replaced") for rank in range(4096))
    for number in range(1, 50):
        everyone = tuple(range(4096))
        change = elastic_roster.Change(4096, lost, everyone)
        report.look(elastic_roster.Standing(number, 10_000, everyone, everyone, everyone, change))
        report.end(number, 1 << 22, -11)
    said = written(run_dir)
    assert said.group is not None
    assert [change.number for change in said.group.changes] == list(range(50 - MAX_CHANGES, 50))
    assert len(said.ends) == MAX_LIST


def test_without_an_agent_nothing_is_written_and_a_folder_that_is_gone_stops_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FALCON_CONTROL", raising=False)
    elastic_group_report.GroupReport.of_this_pod().end(0, 1, 1)
    elastic_group_report.GroupReport(str(run_dir / "gone/group.json"), 1).end(0, 1, 1)
    monkeypatch.setenv("FALCON_CONTROL", str(run_dir / "agent/control"))
    monkeypatch.setenv("FALCON_GENERATION", "6")
    elastic_group_report.GroupReport.of_this_pod().end(0, 1, 1)
    assert written(run_dir).generation == 6


@pytest.mark.parametrize(
    "content", [b"[]", b'{"generation": -1}', b'{"generation": 1, "ends": [[0, 0, "x"]]}', b" " * 20_000]
)
def test_what_a_training_process_has_written_instead_is_not_read(run_dir: Path, content: bytes) -> None:
    (run_dir / "launch/group.json").write_bytes(content)
    assert RunDir(run_dir).group() is None
