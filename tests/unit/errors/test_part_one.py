"""The lines that rules were written from keep their classes and steps, however they reach the judge."""

from __future__ import annotations

import random
from itertools import cycle
from pathlib import Path

import pytest

from evaluation.errors import __main__ as evaluation
from evaluation.errors import cases
from evaluation.errors.__main__ import ERRORS, healthy_alarms, is_class_right, measures
from evaluation.errors.judged import judged
from evaluation.errors.lines import FormatError, Labelled, _labelled, part_one
from evaluation.errors.steps import Step, is_right, step_named, step_of
from evaluation.harness import run
from falcon_agent.output.error_lines import LineJudge, WholeLines
from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import Source
from falcon_core.model import Severity

LINES = part_one()
MESSAGES = [each for each in LINES if each.source is Source.OUTPUT]
CUTS = 1  # places at which each of hundreds of messages is cut
MARKS = (("[rank3]: ", ""), ("(RayTrainWorker pid=81, ip=10.0.0.3) ", ""), ("\x1b[31m", "\x1b[0m"))


def test_part_one_keeps_all_limits() -> None:
    short = [share.row() for share in measures([judged(each) for each in LINES]) if not share.kept]
    assert short == []


def test_healthy_output_raises_no_alarm() -> None:
    assert healthy_alarms().right == 0


def found_in(pieces: list[bytes]) -> list[tuple[str, str]]:
    """Return class and text of the errors that an agent finds in output that it reads in pieces."""
    judge, whole = LineJudge(lambda: shipped_judge().classifier), WholeLines()
    errors = [each for piece in pieces for each in judge.read(whole.feed(piece))] + judge.read(whole.flush())
    return sorted((each.error_class.name if each.error_class is not None else "", each.text) for each in errors)


def test_a_message_is_judged_alike_wherever_a_read_cuts_it() -> None:
    other = []
    for line in MESSAGES:
        data = line.text.encode() + b"\n"
        whole = found_in([data])
        chance = random.Random(line.id)
        cuts = [chance.randrange(len(data)) for _ in range(CUTS)]
        other += [(line.id, at) for at in cuts if found_in([data[:at], data[at:]]) != whole]
    assert other == []


def test_marks_and_colours_change_no_class() -> None:
    """Each message has one of the marks, in turn: there are hundreds of messages."""
    other = []
    for line, (mark, end) in zip(MESSAGES, cycle(MARKS), strict=False):
        name = shipped_judge().last_words(line.text).error_class
        text = "\n".join(mark + each + end for each in line.text.splitlines())
        if shipped_judge().last_words(text).error_class != name:
            other.append((line.id, mark))
    assert other == []


def test_a_step_follows_from_each_class() -> None:
    steps = {known.name: step_of(known) for known in shipped_judge().table.classes}
    assert steps["EccError"] is Step.EVICT
    assert steps["ProgramError"] is Step.FAIL
    assert steps["ConnectionReset"] is Step.RETRY
    assert steps["CudaError"] is steps["StorageUnavailable"] is Step.RESTART
    grave = {known.name for known in shipped_judge().table.classes if known.severity is Severity.SEV1}
    assert {name for name, step in steps.items() if step is Step.EVICT} == grave
    assert is_right(Step.RETRY, shipped_judge().get("CudaError"))
    assert is_right(Step.NOTHING, shipped_judge().get("HardwareWarning"))
    assert not is_right(Step.NOTHING, shipped_judge().get("EccError"))
    assert step_named("retry in place, or restart the processes where nothing can be retried", "x") is Step.RETRY


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"text": "x", "stream": "output", "class": "NoSuchClass"}, "lines.jsonl:7: class 'NoSuchClass'"),
        ({"text": "x", "stream": "radio", "class": "EccError"}, "lines.jsonl:7: stream 'radio'"),
        ({"text": "x", "stream": "output", "class": "EccError", "step": "pray"}, "lines.jsonl:7: step 'pray'"),
    ],
)
def test_a_label_that_cannot_be_used_is_named(raw: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("(", r"\(")):
        _labelled(raw, "lines.jsonl:7")
    assert issubclass(FormatError, ValueError)


def test_without_a_second_part_no_limit_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation, "part_two", list)
    monkeypatch.setattr(cases, "HELD_OUT", tmp_path / "cases.jsonl")
    assert run(ERRORS, ["--check", "--only", "two,cases"]) == 1
    short = capsys.readouterr().out.split("Falls short:")[1]
    assert "| lines of part two" in short
    assert "| cases (" in short


def test_wrong_lines_are_counted() -> None:
    """A check that cannot fail is none."""
    wrong = Labelled("x", Source.OUTPUT, "epoch 2", "EccError", frozenset(), Step.EVICT)
    found = judged(wrong)
    assert not is_class_right(found)
    assert {measure.what for measure in measures([found]) if not measure.kept} >= {"classes right", "SEV1 found"}
