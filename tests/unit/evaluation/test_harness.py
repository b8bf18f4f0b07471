"""Test what the evaluations share: which tables are made, where they are kept, and how a missed limit ends the run."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from evaluation import harness
from evaluation.harness import Evaluation, Measure, Table, run

SHARE = Measure("right ranks", 0.90, 0.95)
ALARMS = Measure("alarms", 1.0, 2.0, most=True, form=".0f")


@pytest.fixture
def made() -> list[tuple[str, bool]]:
    """Return the tables that were made, with their size; each test begins with none."""
    return []


@pytest.fixture
def evaluation(made: list[tuple[str, bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    """Return an evaluation of two tables, one of which has limits, and whose page has a place for the other."""

    def table(name: str, *measures: Measure) -> Table:
        return Table(f"| {name} |", measures)

    def maker(name: str, *measures: Measure) -> harness.Maker:
        def make(options: argparse.Namespace) -> Table:
            made.append((name, options.full))
            return table(name, *measures)

        return make

    page = tmp_path / "RESULTS.md"
    page.write_text("# Kept\n\n<!-- free -->\n\nold\n<!-- end of free -->\n")
    monkeypatch.setattr(Evaluation, "page", property(lambda _: page))
    return Evaluation(
        name="kept",
        about="",
        code=("evaluation/harness.py",),
        tables={"bound": maker("bound", SHARE, ALARMS), "free": maker("free")},
        checked=["bound"],
        kept=["free"],
    )


def test_without_an_option_all_tables_are_made_roughly_and_nothing_fails(
    evaluation: Evaluation, made: list[tuple[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(evaluation, []) == 0
    assert made == [("bound", False), ("free", False)]
    assert "| right ranks | 90.0% | ≥ 95.0% |" in capsys.readouterr().out
    assert "old" in evaluation.page.read_text()


def test_a_check_makes_what_has_limits_and_fails_where_one_is_missed(
    evaluation: Evaluation, made: list[tuple[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(evaluation, ["--check"]) == 1
    assert made == [("bound", False)]
    out = capsys.readouterr().out
    assert "right ranks" in out
    assert "alarms" not in out, "a limit that is kept does not fall short"


def test_a_full_run_keeps_its_tables_with_their_commit(evaluation: Evaluation, made: list[tuple[str, bool]]) -> None:
    assert run(evaluation, ["--full", "--only", "free"]) == 0
    assert made == [("free", True)]
    page = evaluation.page.read_text()
    assert "old" not in page
    assert "| free |" in page
    assert "*Commit " in page


def test_an_unknown_table_is_refused_with_the_names(
    evaluation: Evaluation, made: list[tuple[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(evaluation, ["--only", "free,fee"])
    assert ended.value.code == 2
    assert "no table is called fee: bound, free" in capsys.readouterr().err
    assert not made


@pytest.mark.parametrize(("value", "most", "kept"), [(1.0, True, True), (1.1, True, False), (0.9, False, False)])
def test_a_limit_is_the_greatest_or_the_least_value(value: float, most: bool, kept: bool) -> None:
    assert Measure("x", value, 1.0, most=most).kept is kept
