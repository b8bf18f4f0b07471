"""What the client says of a rank's micro-batches is what the agent reads, and never stops a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from falcon_agent.telemetry.microbatches import MicrobatchReportFile
from falcon_core.wire.reporting.microbatches import MAX_HINDRANCE, MAX_TURNS, MicrobatchReport
from tests.unit.client_format import PACKAGE, microbatch_report

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def monotonic_ns(self) -> int:
        return int(self.seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(microbatch_report, "time", clock)
    return clock


def read(path: Path) -> MicrobatchReport:
    found = MicrobatchReportFile(path, 3).look()
    assert found is not None
    return found


def steps(script: Any, clock: Clock, micro_ms: float, times: int = 1) -> None:
    for _ in range(times):
        clock.seconds += 1.0
        script.step(int(3 * micro_ms * MS), 3)


def test_a_time_is_said_after_a_few_steps_and_again_when_it_has_changed(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "microbatches.0"
    script = microbatch_report.ReportWriter(str(path), 3, 4, "")
    steps(script, clock, 10.0, times=microbatch_report.LEAST_STEPS - 1)
    assert read(path).micro_ns is None
    steps(script, clock, 10.0)
    assert read(path).micro_ns == 10 * MS
    written = path.stat().st_ino
    steps(script, clock, 10.05, times=20)
    assert path.stat().st_ino == written, "nothing new"
    steps(script, clock, 20.0, times=microbatch_report.STEPS + 2)
    assert read(path).micro_ns == 20 * MS


def test_single_steps_do_not_count_but_every_other_one_does(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "microbatches.0"
    script = microbatch_report.ReportWriter(str(path), 3, 4, "")
    for number in range(32):
        steps(script, clock, 500.0 if number % 8 == 0 else 10.0)
    assert read(path).micro_ns == 10 * MS
    for number in range(32):
        steps(script, clock, 30.0 if number % 2 else 10.0)
    assert read(path).micro_ns == pytest.approx(20 * MS, rel=0.03)


def test_passes_that_cannot_be_timed_are_not(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "microbatches.0"
    for same_calls in (True, False):
        script = microbatch_report.ReportWriter(str(path), 3, 4, "", timed=False, same_calls=same_calls)
        steps(script, clock, 10.0, times=microbatch_report.STEPS)
        script.turn(2, even=False)
        words = read(path)
        assert (words.micro_ns, words.timed, words.same_calls) == (None, False, same_calls)


def test_each_turn_is_said_at_once_and_the_oldest_are_forgotten(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "microbatches.0"
    script = microbatch_report.ReportWriter(str(path), 3, 4, "")
    for number in range(2 * MAX_TURNS):
        clock.seconds += 5.0
        script.turn(2 if number % 2 else 4, number % 2 == 0)
    turns = read(path).turns
    assert (len(turns), microbatch_report.TURNS) == (MAX_TURNS, MAX_TURNS)
    assert (turns[-1].since_ns, turns[-1].share, turns[-1].even) == (int(clock.seconds * 1e9), 2, False)


def test_a_rank_with_one_micro_batch_or_without_the_folder_goes_on(tmp_path: Path) -> None:
    script = microbatch_report.ReportWriter(str(tmp_path / "gone" / "microbatches.0"), 3, 4, "why")
    script.step(5, 0)
    script.turn(2, False)


def test_the_reasons_of_the_client_fit(tmp_path: Path) -> None:
    path = tmp_path / "microbatches.0"
    microbatch_report.ReportWriter(str(path), 3, 4, "x" * MAX_HINDRANCE)
    assert len(read(path).hindrance) == MAX_HINDRANCE
    for name in ("microbatches.py", "store/sharded.py"):
        text = (PACKAGE / name).read_text()
        reasons = text[text.index("def hindrance(") :]
        assert max(map(len, reasons[: reasons.index("\n\n\n")].splitlines())) < MAX_HINDRANCE
