"""A line is judged by its likeness to labelled lines where the rules say nothing, or something unlikely."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.errors.learn import is_current
from evaluation.errors.lines import taught
from falcon_agent.node.problems import of_line
from falcon_core.errors.judge import LIKENESS, ErrorRules, Judge, job_judge, platform_judge, shipped_judge
from falcon_core.errors.likeness.features import MOST_CHARACTERS, PAIR_BITS, WORD_BITS, features
from falcon_core.errors.likeness.model import CLEARLY, LEAST, LEAST_COSTLY, MORE_CLEARLY, SIZE, Model, shipped_model
from falcon_core.errors.likeness.scope import NONE
from falcon_core.errors.table import JobRule, Source, shipped
from falcon_operator.intent.observation.pod_ends import said_class

WORDS = ["disk is full", "card has gone"]
RARITY = np.ones(SIZE - len(Source), dtype=np.float32)


def model(**scores: float) -> Model:
    """Return a model of three classes whose scores are the same for each line."""
    names = [NONE, "DiskFull", "GpuLost"]
    bias = np.array([scores.get(name or "none", -1.0) for name in names], dtype=np.float32)
    return Model(names, np.zeros((SIZE, 3), dtype=np.int8), 1.0, bias, RARITY)


@pytest.mark.parametrize(
    ("scores", "found", "expected"),
    [
        ({"GpuLost": 0.5, "none": 0.5 - MORE_CLEARLY}, NONE, "GpuLost"),
        ({"GpuLost": 0.5, "none": 0.6 - MORE_CLEARLY}, NONE, NONE),
        ({"GpuLost": 0.5, "DiskFull": 0.5 - CLEARLY}, "DiskFull", "GpuLost"),
        ({"none": 0.5, "DiskFull": 0.0}, "DiskFull", NONE),
        ({"GpuLost": LEAST - 0.01, "none": -2.0}, NONE, NONE),
        ({"GpuLost": 5.0}, "OfTheOwner", "OfTheOwner"),
    ],
)
def test_a_clearly_likelier_class_counts(scores: dict[str, float], found: str, expected: str) -> None:
    assert model(**scores).second_opinion("the card has gone away", Source.CONDITION, found) == expected


@pytest.mark.parametrize(
    ("scores", "found", "expected"),
    [
        ({"GpuLost": LEAST_COSTLY, "none": -1.0}, NONE, "GpuLost"),
        ({"GpuLost": LEAST_COSTLY - 0.1, "none": -1.0}, NONE, NONE),
        ({"GpuLost": 0.5, "none": 0.5 - MORE_CLEARLY, "DiskFull": -1.0}, "DiskFull", "GpuLost"),
        ({"GpuLost": 0.5, "none": 0.6 - MORE_CLEARLY, "DiskFull": -1.0}, "DiskFull", "DiskFull"),
    ],
)
def test_a_class_that_costs_a_node_has_to_be_clearly_likelier_than_no_fault(
    scores: dict[str, float], found: str, expected: str
) -> None:
    judged = model(**scores).second_opinion("the card has gone away", Source.CONDITION, found, {"GpuLost"})
    assert judged == expected


@pytest.mark.parametrize("text", ["", "card gone", "[rank3]: error 9 9 9", "Evicted: Evicted: Evicted"])
def test_a_short_name_is_not_judged(text: str) -> None:
    assert model(GpuLost=5.0).second_opinion(text, Source.CONDITION, NONE) == NONE


def test_the_model_was_learned_from_the_lines_as_they_are() -> None:
    assert is_current(), "python -m evaluation.errors.learn"


def test_words_and_pairs_are_features_whatever_the_values() -> None:
    plain = features("GPU 3 lost its link at 0000:c4:00.0 after 81234 s")
    assert features("GPU 3 lost its link at 0000:1b:00.0 after 77777 s") == plain
    assert features("GPU 4 lost its link at 0000:1b:00.0 after 77777 s") != plain
    assert features("GpuLostItsLink")[0] == features("gpu lost its link")[0]
    assert features("gpu lost") != features("lost gpu")


def test_marks_before_a_line_change_no_score() -> None:
    text = "the accelerator has vanished from the bus"
    plain = shipped_model().scores(text, Source.KERNEL).tolist()
    for mark in ("[   12.345678] ", "kern  :err   : [ 1.2] ", "[rank3]: ", "2026-11-30T01:02:03Z "):
        assert shipped_model().scores(mark + text, Source.KERNEL).tolist() == plain


@given(st.text(max_size=2000))
def test_any_text_has_features_in_their_tables(text: str) -> None:
    words, both = features(text)
    assert all(0 <= place < 1 << WORD_BITS for place in words)
    assert all(0 <= place < 1 << PAIR_BITS for place in both)


def test_a_long_text_is_judged_by_its_ends() -> None:
    ends = "x" * (MOST_CHARACTERS // 2), "y" * (MOST_CHARACTERS // 2)
    assert features(ends[0] + "z" * 1_000_000 + ends[1]) == features(f"{ends[0]} {ends[1]}")


@functools.cache
def judged_by_likeness() -> str:
    """Return a report on a device that was lost, of which the rules say nothing and the model does."""
    plain = Judge(shipped(), by_likeness=False)
    reports = [line for line in taught() if line.source is Source.CONDITION and line.is_grave and "\n" not in line.text]
    return next(
        line.text
        for line in reports
        if plain.report(line.text) is None
        and (found := shipped_judge().report(line.text)) is not None
        and found.name == line.error_class
        and found.matched == line.text
    )


def test_a_report_in_strange_words_has_a_class() -> None:
    text = judged_by_likeness()
    found = shipped_judge().report(text)
    assert found is not None
    assert found.rule == LIKENESS
    assert found.error_class.costs_node


@pytest.mark.parametrize(
    "overrides",
    [
        "benign:\n- id: mine\n  patterns: ['.']",
        f"disabled: [{next(rule.id for rule in shipped().rules if not rule.certain and not rule.xids)}]",
    ],
)
def test_what_an_owner_excuses_or_disables_is_not_brought_back(overrides: str) -> None:
    text = judged_by_likeness()
    assert platform_judge(overrides).report(text) is None


def test_words_of_a_program_cost_a_node_by_likeness_only_where_no_rule_says_more() -> None:
    said = "HealthCheckError: HBM of cuda:2 gave back bits that it could not repair (dbe=1), this host must go"
    assert Judge(shipped(), by_likeness=False).words(said).error_class == "OtherSoftwareError"
    known = shipped_judge().get(shipped_judge().words(said).error_class)
    assert known is not None
    assert known.costs_node
    denied = "OSError: [Errno 30] Read-only file system: '/checkpoints/latest'"
    assert shipped_model().second_opinion(denied, Source.OUTPUT, "StorageDenied") == "ReadOnlyFilesystem"
    known = shipped_judge().get(shipped_judge().words(denied).error_class)
    assert known is None or not known.costs_node


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: Lustre target is being recovered",
        "RuntimeError: told to stop by the controller",
        "RuntimeError: experiment tracker is down",
    ],
)
def test_a_program_fails_no_job_by_likeness(words: str) -> None:
    assert shipped_model().second_opinion(words, Source.OUTPUT, "OtherSoftwareError") == "ProgramError"
    known = shipped_judge().get(shipped_judge().words(words).error_class)
    assert known is None or not known.permanent


def test_what_a_pod_asked_for_is_no_fault_of_hardware() -> None:
    text = judged_by_likeness()
    assert said_class(shipped_judge(), text) is None


def test_a_rule_of_the_job_stands() -> None:
    rules = ErrorRules(rules=(JobRule(pattern=".", error_class="DiskFull"),))
    text = judged_by_likeness()
    assert job_judge(rules).words(text).error_class == "DiskFull"


def test_an_exact_number_stands() -> None:
    found = shipped_judge().report(
        "NVRM: Xid (PCI:0000:3b:00): 79, all lights are green and every test of the card passes"
    )
    assert found is not None
    assert found.name == "GpuLost"


@pytest.mark.parametrize(("level", "seen"), [(3, True), (4, False), (6, False)])
def test_only_lines_that_the_kernel_wrote_as_errors_are_judged_by_likeness(level: int, seen: bool) -> None:
    plain = Judge(shipped(), by_likeness=False)
    lines = ["accel 0000:9d:00.0: device vanished from the bus, giving up", "xpu 0000:9d:00.0: card has left the bus"]
    found = [line for line in lines if of_line(line, 0.0, plain) is None and of_line(line, 0.0, shipped_judge())]
    assert found, "no such line is left: the rules know all of them"
    assert (of_line(found[0], 0.0, shipped_judge(), level) is not None) == seen
