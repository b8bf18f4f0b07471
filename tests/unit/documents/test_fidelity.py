"""Check what ``dev.fidelity`` refuses and what it writes: short names, "shown", counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dev.cited_tests import BY_HAND, CitationError, Function, citations, functions, resolve
from dev.fidelity import renewed
from dev.limits import ROOT

TESTS = {
    "e2e/slow/test_named.py": "def test_quick(): ...\n@pytest.mark.long  # minutes\ndef test_lengthy(): ...\n",
    "e2e/slow/test_calm.py": "pytestmark = [pytest.mark.timeout(9), pytest.mark.soak]\nasync def test_calm(): ...\n",
    "unit/rules/test_named.py": "def helper(): ...\n@pytest.mark.parametrize('x', [1])\ndef test_rule(x): ...\n",
    "unit/rules/test_costly.py": "@pytest.mark.slow\ndef test_costly(): ...\n",
    "gpu/test_device.py": "def test_device(): ...\n",
}
PAGE = """| AA1 | test_named::test_quick | – |
| BB1 | test_named::test_lengthy | in CI |

| | rows | E2E | DIFF+ | WIRED | DIFF- | CORE | ABSENT | STUDY |
|---|---|---|---|---|---|---|---|---|
| old |

| shown | E2E | DIFF+ | WIRED | DIFF- | CORE | ABSENT | STUDY |
|---|---|---|---|---|---|---|---|
| old |

## Paper

{}
"""


@pytest.fixture
def tests(tmp_path: Path) -> dict[str, list[Function]]:
    for name, text in TESTS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found: dict[str, list[Function]] = {}
    for test in functions(tmp_path):
        found.setdefault(test.path, []).append(test)
    return found


def faults_of(row: str, tests: dict[str, list[Function]]) -> list[str]:
    return renewed(PAGE.format(row), tests, lambda name: name == "benchmarks/cost").faults


def test_each_function_has_the_marks_for_which_ci_leaves_it_out(tests: dict[str, list[Function]]) -> None:
    assert {test.name: test.runs for of_file in tests.values() for test in of_file} == {
        "test_quick": "in CI",
        "test_lengthy": "by hand: long",
        "test_calm": "by hand: soak",
        "test_rule": "in CI",
        "test_costly": "by hand: slow",
        "test_device": "by hand: gpu",
    }


@pytest.mark.parametrize(
    ("citation", "names"),
    [
        ("unit rules/test_named", {"test_rule"}),
        ("unit/rules/test_named", {"test_rule"}),
        ("tests/unit/rules/test_named.py", {"test_rule"}),
        ("rules/test_named::test_rule", {"test_rule"}),
        ("e2e test_named::test_lengthy", {"test_lengthy"}),
        ("test_calm", {"test_calm"}),
        ("test_lengthy", {"test_lengthy"}),
        ("unit/rules", {"test_rule", "test_costly"}),
        ("tests/gpu", {"test_device"}),
    ],
)
def test_a_citation_is_a_file_a_folder_or_a_function(
    tests: dict[str, list[Function]], citation: str, names: set[str]
) -> None:
    assert citations(f"it is shown ({citation}, and more)") == [citation]
    assert {test.name for test in resolve(citation, tests)} == names


@pytest.mark.parametrize(
    ("citation", "why"),
    [
        ("unit rules/test_gone", "no such test"),
        ("unit/rules/test_named::test_gone", "no such function"),
        ("e2e rules/test_named", "no such test"),
        ("test_named", "name more of its path"),
    ],
)
def test_a_citation_that_names_no_single_file_is_refused(
    tests: dict[str, list[Function]], citation: str, why: str
) -> None:
    with pytest.raises(CitationError, match=why):
        resolve(citation, tests)


@pytest.mark.parametrize(
    ("state", "text", "shown"),
    [
        ("E2E", "AA1, BB1, unit/rules/test_named", "cluster in CI"),
        ("E2E", "BB1", "cluster by hand"),
        ("E2E", "BB1, unit/rules/test_named", "cluster by hand, parts in CI"),
        ("WIRED", "unit/rules", "parts in CI"),
        ("WIRED", "unit/rules/test_costly", "parts by hand"),
        ("CORE", "tests/gpu", "GPU by hand"),
        ("DIFF+", "`python -m benchmarks.cost`", "measured by hand"),
        ("DIFF+", "`python -m tests.e2e.campaigns.measure --only shares`", "measured by hand"),
        ("CORE", "evaluation/simulator", "simulated"),
        ("CORE", "nothing", "–"),
        ("ABSENT", "AA1 shows another thing", "–"),
    ],
)
def test_shown_follows_from_what_a_row_cites(
    tests: dict[str, list[Function]], state: str, text: str, shown: str
) -> None:
    page = renewed(PAGE.format(f"| F1 | §1 | it | **{state}** | old | {text} |"), tests, lambda _: True)
    assert page.faults == []
    assert f"| F1 | §1 | it | **{state}** | {shown} | {text} |\n" in page.text
    assert "| AA1 | test_named::test_quick | in CI |\n| BB1 | test_named::test_lengthy | by hand: long |" in page.text
    assert "| Paper | 1 | " in page.text
    assert f"\n| {shown.partition(',')[0]} | " in page.text
    assert "old" not in page.text


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| F1 | §1 | it | **CORE** | – | unit rules/test_gone |", "F1: unit rules/test_gone: no such test"),
        ("| F1 | §1 | it | **CORE** | – | see CC1 |", "F1: CC1 is no short name of the table"),
        ("| F1 | §1 | it | **CORE** | – | benchmarks/gone |", "F1: no benchmarks/gone"),
        ("| F1 | §1 | it | **E2E** | – | unit/rules |", "F1: E2E, but it cites no test of tests/e2e"),
        ("| F1 | §1 | it | **DIFF+** | – | it is so |", "F1: DIFF+, but it cites no test and no benchmark"),
        ("| F1 | §1 | it | **DONE** | – | AA1 |", "F1: want"),
        ("| F1 | §1 | it | **E2E** | AA1 |", "F1: want"),
        ("| CC1 | test_named::test_gone | in CI |", "CC1: e2e test_named::test_gone: no such function"),
    ],
)
def test_a_row_that_a_person_must_mend_is_named(tests: dict[str, list[Function]], row: str, fault: str) -> None:
    assert [found[: len(fault)] for found in faults_of(row, tests)] == [fault]


def test_a_page_without_a_table_of_counts_is_refused(tests: dict[str, list[Function]]) -> None:
    assert len(renewed("## Paper\n", tests, lambda _: True).faults) == 2


def test_what_counts_as_by_hand_is_what_the_makefile_leaves_out() -> None:
    makefile = (ROOT / "Makefile").read_text()
    selections = re.findall(r"^\t@(?:pytest|\$\(PY\) -m dev\.repeat) tests/.* -m \"(.*)\"", makefile, re.MULTILINE)
    left_out = {name for selection in selections for name in re.findall(r"not (\w+)", selection)}
    assert left_out - {"alone"} == BY_HAND - {"gpu"}, "tests that run alone are run by themselves"
