"""Lines that showed kinds of mistakes, their siblings, and lines that were written after the rules had been mended."""

from __future__ import annotations

import pytest

from evaluation.errors.__main__ import is_class_right
from evaluation.errors.judged import judged
from evaluation.errors.lines import TAUGHT, Labelled, _objects
from falcon_core.errors.judge import Judge, shipped_judge
from falcon_core.errors.table import Source, shipped

UNKNOWN = 8  # of the lines: no rule tells their classes apart
WRONG_BY_RULES = 60  # of the lines, without the model, which has learned from them
LINES = list(_objects(TAUGHT / "kinds_of_mistakes.jsonl"))
HEALTHY = [line for line in LINES if line.error_class == "Benign"]


def _by_rules(line: Labelled, judge: Judge) -> str:
    if line.source is Source.OUTPUT:
        return judge.last_words(line.text).error_class or "Benign"
    found = judge.classifier.line(line.text, line.source)
    return found.name if found is not None else "Benign"


def test_the_lines_have_their_classes() -> None:
    wrong = [line.text for line in LINES if not is_class_right(judged(line))]
    assert len(wrong) <= UNKNOWN, wrong


def test_most_lines_have_their_classes_by_rules_alone() -> None:
    judge = Judge(shipped(), by_likeness=False)
    wrong = [line.text for line in LINES if _by_rules(line, judge) not in {line.error_class, *line.also}]
    assert len(wrong) <= WRONG_BY_RULES, wrong


@pytest.mark.parametrize("line", HEALTHY, ids=[line.id for line in HEALTHY])
def test_what_only_sounds_bad_costs_no_node(line: Labelled) -> None:
    known = judged(line).known
    assert known is None or not known.costs_node, line.text


@pytest.mark.parametrize(
    ("words", "fails_the_job"),
    [
        ("chromadb.errors.RateLimitError: Rate limited, try again in 12 s", False),
        ("hvac.exceptions.VaultDown: Vault is sealed, on get https://vault:8200/v1/secret/data/train", False),
    ],
)
def test_a_raised_exception_that_reads_like_no_fault_is_an_error_all_the_same(words: str, fails_the_job: bool) -> None:
    known = shipped_judge().get(shipped_judge().words(words).error_class)
    assert known is not None
    assert known.permanent == fails_the_job


def test_a_warning_in_the_form_of_an_exception_is_none() -> None:
    said = "UserWarning: 'pin_memory' argument is set as true but no accelerator is found"
    assert shipped_judge().words(said).error_class == ""
