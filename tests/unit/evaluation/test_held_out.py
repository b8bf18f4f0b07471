"""Test that the held-out lines and cases are well formed, and that no line stands in part one as well.

No test shows a line's text: an author of rules must be able to run them.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from evaluation.errors.cases import HELD_OUT as CASES
from evaluation.errors.cases import read_cases
from evaluation.errors.held_out_counts import PAGE, STEPS, counts, near, project, records, replaced, shape
from evaluation.errors.lines import LINES, PART_TWO, part_one, part_two
from evaluation.errors.steps import is_right, step_named
from falcon_core.errors.table import shipped

FIELDS = {"id", "stream", "text", "class", "also", "step", "source"}
OF_RANK = {"rank", "node", "end", "output", "failed_at"}
STREAMS = {"output", "kernel", "event", "pod"}
MOST = 12  # lines of one project and class
ENDS = {"exit_code", "signal", "lives"}
KNOWN = {each.name: each for each in shipped().classes}
# Between two parts there is none: the evaluation itself says so, and ends with 1.
of_a_part = pytest.mark.skipif(not (PART_TWO / LINES).exists() and not CASES.exists(), reason="no part is held out")


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    """Return the held-out lines, as they stand in their file."""
    return records(LINES)


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    """Return the held-out cases, as they stand in their file."""
    return records(CASES.name)


def _repeated(names: list[str]) -> list[str]:
    return [name for name, number in Counter(names).items() if number > 1]


@of_a_part
def test_each_line_has_the_fields_of_a_line(lines: list[dict[str, Any]]) -> None:
    assert [each["id"] for each in lines if set(each) != FIELDS] == []
    assert [each["id"] for each in lines if each["stream"] not in STREAMS or each["step"] not in STEPS] == []
    assert [each["id"] for each in lines if not (each["text"].strip() and each["source"].strip())] == []


@of_a_part
def test_the_files_hold_as_much_as_was_asked_for(lines: list[dict[str, Any]], cases: list[dict[str, Any]]) -> None:
    steps = Counter(each["step"] for each in lines)
    assert len(lines) >= 300
    assert steps["leave the node"] >= 100
    assert steps["nothing"] >= 30
    assert len(cases) >= 45
    assert len(set(map(project, lines))) >= 14


@of_a_part
def test_ids_and_messages_are_unique(lines: list[dict[str, Any]], cases: list[dict[str, Any]]) -> None:
    assert _repeated([each["id"] for each in [*lines, *cases]]) == []
    shapes = [shape(each["text"]) for each in lines]
    assert [each["id"] for each, form in zip(lines, shapes, strict=True) if shapes.count(form) > 1] == []


@of_a_part
def test_no_project_stands_for_a_class_alone(lines: list[dict[str, Any]]) -> None:
    kinds = Counter((project(each), each["class"]) for each in lines)
    assert {kind: number for kind, number in kinds.items() if number > MOST} == {}


@of_a_part
def test_no_line_is_a_line_of_part_one() -> None:
    known = {shape(each.text) for each in part_one()}
    both = [each.id for each in part_two() if shape(each.text) in known]
    assert both == [], "remove these lines from held_out/lines.jsonl, since part one holds them"


@of_a_part
def test_each_class_of_a_line_leads_to_its_step(lines: list[dict[str, Any]]) -> None:
    for each in lines:
        step = step_named(each["step"], each["id"])
        wrong = [name for name in (each["class"], *each["also"]) if not is_right(step, KNOWN.get(name))]
        assert wrong == [], each["id"]
        assert {each["class"], *each["also"]} <= {*KNOWN, "none"}, each["id"]


@of_a_part
def test_each_case_is_whole(cases: list[dict[str, Any]]) -> None:
    assert len(read_cases(CASES)) == len(cases)
    for case in cases:
        ranks, cause = {each["rank"]: each for each in case["ranks"]}, case["cause"]
        assert sorted(ranks) == list(range(len(case["ranks"]))), case["id"]
        assert {each["node"] for each in case["ranks"]} == set(range(case["nodes"])), case["id"]
        assert all(set(each) == OF_RANK and len(ENDS & set(each["end"])) == 1 for each in case["ranks"]), case["id"]
        assert all(case[field].strip() for field in ("source", "why")), case["id"]
        assert case.get("iterations", 0) == 0, case["id"]
        assert {cause["class"], *cause.get("also", [])} <= {*KNOWN, "none"}, case["id"]
        named = [] if cause["rank"] is None else [cause["rank"], *cause.get("also_ranks", [])]
        assert {ranks[number]["node"] for number in named} == {cause["node"]} - {None}, case["id"]


@of_a_part
def test_each_case_has_a_step_that_the_operator_can_take(cases: list[dict[str, Any]]) -> None:
    steps = {"leave the node", "restart the processes", "fail the job at once"}
    assert {case["step"] for case in cases} == steps
    leaving = [case for case in cases if case["step"] == "leave the node"]
    assert [case["id"] for case in leaving if case["cause"]["rank"] is None] == []


@of_a_part
def test_addresses_of_cases_name_their_nodes(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        words = " ".join(each["output"] for each in case["ranks"])
        nodes = {int(number) for number in re.findall(r"\b10\.84\.(\d+)\.\d+\b", words)}
        nodes |= {int(number) for number in re.findall(r"\btrainer-(\d+)\b", words)}
        assert nodes <= set(range(case["nodes"])), case["id"]


@of_a_part
def test_the_page_shows_the_counts() -> None:
    page = PAGE.read_text()
    assert replaced(page, "counts", counts()) == page, "run python -m evaluation.errors.held_out_counts --write"


def test_a_shape_ignores_hosts_and_numbers() -> None:
    assert shape("hgx-17: Xid 0x4f at 12:03, GPU lost") == shape("HGX-3: Xid 99 at 01:44 - gpu lost")
    assert shape("Link down") != shape("Link up")


def test_a_text_is_near_to_one_of_the_same_words() -> None:
    known = ["the adapter of slot 3 does not answer any more"]
    assert near(["the adapter of slot 7 does not answer any more", "the fan failed"], known) == 1


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for 'counts'"):
        replaced("# Lines\n", "counts", "none")
