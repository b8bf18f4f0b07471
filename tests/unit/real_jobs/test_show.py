"""A time limit ends a run: what was played by then counts, and what was not is named."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from evaluation.real_jobs import __main__ as program
from evaluation.real_jobs import show
from evaluation.real_jobs.outcome import Case, Outcome

QUICK, ENDLESS, NEXT = (Case(pattern=name, world=16, level="low", seed=0) for name in ("quick", "endless", "next"))


class Player:
    """Plays at once, except what has no end; once it is killed, it has no outcome, as the real one."""

    def __init__(self) -> None:
        self.killed = threading.Event()

    def play(self, case: Case) -> Outcome:
        if case.pattern == "broken":
            raise RuntimeError("no outcome")
        if case == ENDLESS:
            self.killed.wait(30)
            raise RuntimeError("no outcome")
        return Outcome(
            case=case,
            iterations=10_000,
            broken=[],
            incidents=[],
            taken=[],
            tracked=1.0,
            records_crc=0,
            records=0,
            seconds=0.0,
        )

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        """Do nothing: no process was begun."""


@pytest.fixture(autouse=True)
def players(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play without processes."""
    monkeypatch.setattr(show, "_Player", Player)


def test_what_is_not_played_in_time_has_no_outcome_and_begins_no_more() -> None:
    played = show.Show([QUICK, ENDLESS, NEXT], None)
    assert [outcome.case for outcome in played.play(1, seconds=0.3)] == [QUICK]
    assert played.unplayed == [ENDLESS, NEXT]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_case_that_fails_in_time_is_an_error() -> None:
    broken = Case(pattern="broken", world=16, level="low", seed=0)
    with pytest.raises(RuntimeError, match="1 cases have no outcome"):
        show.Show([QUICK, broken], None).play(1, seconds=30)


def test_a_check_that_is_not_played_in_time_fails_and_names_the_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "cases", lambda _: [QUICK, ENDLESS])
    monkeypatch.setattr("sys.argv", ["real_jobs", "--check", "--minutes", "0.005", "--lanes", "1"])
    assert program.main() == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Not played in time (0.005 minutes): endless (16 ranks, low noise, seed 0)."


def test_what_was_played_in_time_is_not_played_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    show.Show([QUICK, ENDLESS], kept).play(1, seconds=0.3)
    assert show.Show([QUICK, NEXT], kept).unplayed == [NEXT]
