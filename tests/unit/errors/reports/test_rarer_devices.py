"""Lines of common and of rarer devices: written before a look at their rules, siblings, and collected reports.

The model of likeness has not learned from them: with them it judged fewer lines of part two rightly.
"""

from __future__ import annotations

import msgspec
import pytest

from evaluation.errors.__main__ import is_class_right
from evaluation.errors.judged import judged
from evaluation.errors.lines import PART_ONE, Labelled, _labelled
from falcon_core.errors.table import Source

UNKNOWN = 12  # of the collected reports: no rule tells their classes apart, or part one names another


def _read(name: str) -> list[Labelled]:
    return [_labelled(msgspec.json.decode(line), name) for line in (PART_ONE / name).read_bytes().splitlines()]


WRITTEN = _read("rarer_devices.jsonl")
COLLECTED = _read("rarer_devices_reports.jsonl")


@pytest.mark.parametrize("line", WRITTEN, ids=[line.id for line in WRITTEN])
def test_each_written_line_has_its_class(line: Labelled) -> None:
    found = judged(line)
    assert is_class_right(found), f"{found.name}, wanted {line.error_class}: {line.text}"


def test_collected_reports_have_their_classes_and_no_healthy_one_is_an_alarm() -> None:
    found = [judged(line) for line in COLLECTED]
    assert sum(not is_class_right(each) for each in found) <= UNKNOWN
    assert [each.line.id for each in found if each.alarms and each.line.error_class == "Benign"] == []


@pytest.mark.parametrize("source", [Source.KERNEL, Source.CONDITION])
def test_the_collected_reports_are_of_the_kernel_and_of_monitors(source: Source) -> None:
    assert sum(line.source is source for line in COLLECTED) > 400
