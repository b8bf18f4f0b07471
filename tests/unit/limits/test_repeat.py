"""Judge failed tests by two more runs alone: small tests that fail in some of their runs, in a real pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.repeat import main

ONE = """
from pathlib import Path
import pytest

def test_one():
    runs = Path(__file__).with_name("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    what = {WHAT!r}[len(runs.read_text()) - 1]
    if what == "s":
        pytest.skip("not now")
    assert what == "p"
"""


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # their imports take most of a run's time


@pytest.mark.parametrize(
    ("what", "runs", "code"),
    [
        ("fpp", 3, 0),  # failed by chance
        ("ff", 2, 1),  # a defect
        ("fpf", 3, 1),  # a defect that shows now and then
        ("fps", 3, 1),  # a test that is skipped has not passed
    ],
)
def test_a_failed_test_has_to_pass_twice(
    what: str, runs: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    test = tmp_path / "test_some.py"
    test.write_text(ONE.replace("{WHAT!r}", repr(what)), encoding="utf-8")
    assert main([str(test), "-q"]) == code
    assert len((tmp_path / "runs").read_text(encoding="utf-8")) == runs
    named = "repeat: failed once, passed 2 times alone: test_some.py::test_one" in capfd.readouterr().out
    assert named == (code == 0)


def test_many_failures_are_no_chance(tmp_path: Path) -> None:
    test = tmp_path / "test_some.py"
    each = "\ndef test_{}():\n    open('{}/runs', 'a').write('x')\n    assert 0\n"
    test.write_text("".join(each.format(number, tmp_path) for number in range(4)), encoding="utf-8")
    assert main([str(test), "-q"]) == 1
    assert len((tmp_path / "runs").read_text(encoding="utf-8")) == 4, "nothing was repeated"


def test_an_error_of_the_run_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("import absent_package", encoding="utf-8")
    assert main([str(tmp_path), "-q"]) == 2
