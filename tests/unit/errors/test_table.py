"""The table of classes: what it holds, what users add, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from falcon_core.errors.classify import Classifier
from falcon_core.errors.judge import (
    ErrorRules,
    decode_rules,
    encode_rules,
    job_judge,
    platform_judge,
    shipped_judge,
    usable_judge,
)
from falcon_core.errors.table import MOST_JOB_RULES, Domain, JobRule, Source, TableError, parse, shipped
from falcon_core.model import Severity


def job_rules(*raw: dict[str, Any]) -> tuple[JobRule, ...]:
    return msgspec.convert(raw, tuple[JobRule, ...])


UNICRON = {  # table 1
    "Lost connection": "SEV1", "Exited abnormally": "SEV2", "Connection refused/reset": "SEV3",
    "Illegal memory access": "SEV2", "ECC errors": "SEV1", "Invalid DMA mapping": "SEV1", "CUDA errors": "SEV2",
    "NVLink errors": "SEV1", "GPU driver errors": "SEV1", "Other network errors": "SEV3", "NCCL timeout": "SEV3",
    "Link flapping": "SEV3", "Task hang": "SEV2", "Other software errors": "SEV2",
}  # fmt: skip
HOT = {"name": "RackHot", "severity": "SEV2", "domain": "Node", "meaning": "The rack is hot.", "remedy": "Wait."}


def test_unicrons_classes_have_its_severities() -> None:
    assert {known.unicron: str(known.severity) for known in shipped().classes if known.unicron} == UNICRON


def test_the_shipped_table_passes_its_own_checks() -> None:
    own = shipped()
    merged = own.merged({})
    assert merged == own
    text = "version: 1\nclasses: []\nrules: []\n"
    assert parse(text).rules == ()
    used = {rule.error_class for rule in own.rules}
    assert used == {known.name for known in own.classes}


@pytest.mark.parametrize("known", shipped().classes, ids=lambda known: known.name)
def test_a_class_says_in_a_sentence_what_it_means_and_what_helps(known: Any) -> None:
    for sentence in (known.meaning, known.remedy):
        assert re.fullmatch(r"[A-Z].{15,}\.", sentence)
    assert not (known.permanent and known.consequence)


def test_each_xid_has_one_rule() -> None:
    numbers = [number for rule in shipped().rules for number in rule.xids]
    assert len(numbers) == len(set(numbers))


def test_a_users_part_adds_replaces_and_disables() -> None:
    own = {
        "classes": [HOT],
        "rules": [{"id": "rack", "class": "RackHot", "patterns": ["rack \\d+ is hot"], "sources": ["Condition"]}],
        "disabled": ["python"],
    }
    classifier = Classifier(shipped().merged(own))
    finding = classifier.line("rack 7 is hot", Source.CONDITION)
    assert finding is not None
    assert (finding.name, finding.rule, finding.severity) == ("RackHot", "rack", Severity.SEV2)
    assert classifier.line("rack 7 is hot", Source.OUTPUT) is None
    finding = classifier.line("KeyError: 'a'")
    assert finding is None or finding.rule != "python"
    known = shipped().get("GpuLost")
    lighter = {"classes": [{**HOT, "name": "GpuLost"}]}
    assert shipped().merged(lighter).get("GpuLost").severity is not known.severity


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"disabled": ["nothing"]}, r"disabled\[0\]: no rule has the id 'nothing'"),
        ({"classes": [{**HOT, "severity": "SEV9"}]}, r"classes\[0\]\.severity: "),
        ({"classes": [{**HOT, "name": "rack hot"}]}, r"classes\[0\]\.name: 'rack hot' is no CamelCase name"),
        ({"classes": [HOT, HOT]}, r"classes\[1\]\.name: 'RackHot' is empty or there twice"),
        ({"rules": [{"id": "a", "class": "No", "patterns": ["x"]}]}, r"rules\[0\]\.class: no class 'No'"),
        ({"rules": [{"id": "a", "class": "GpuLost"}]}, r"rules\[0\]\.patterns: is empty"),
        ({"rules": [{"id": "a", "class": "GpuLost", "patterns": ["("]}]}, r"rules\[0\]\.patterns\[0\]: is no pattern"),
        ({"rules": [{"id": "a", "class": "GpuLost", "patterns": ["x"], "unless": [""]}]}, r"unless\[0\]: is empty"),
        ({"rules": [{"id": "a", "class": "GpuLost", "patterns": ["(x)\\1"]}]}, r"is no pattern of RE2"),
        ({"rules": [{"id": "a", "class": "GpuLost", "patterns": ["((x{90}){90}){90}"]}]}, r"is no pattern of RE2"),
        ({"rules": [{"id": "a", "class": "GpuLost", "patterns": ["x*"]}]}, r"matches an empty line"),
        ({"rules": [{"id": "a", "class": "GpuLost", "pattern": "x"}]}, r"rules\[0\]: object contains unknown field"),
        ({"benign": [{"id": "b", "patterns": ["["]}]}, r"benign\[0\]\.patterns\[0\]: "),
    ],
)
def test_what_cannot_be_used_is_refused_by_field(own: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=message):
        shipped().merged(own)


def test_other_versions_and_what_is_no_yaml() -> None:
    with pytest.raises(TableError, match="version: 2 is not known"):
        parse("version: 2\nclasses: []\nrules: []")
    with pytest.raises(TableError, match="not YAML"):
        parse("a: [")


def test_a_jobs_own_rules_come_first() -> None:
    judge = job_judge(
        ErrorRules(
            rules=job_rules(
                {"pattern": "CUDA error: launch timed out", "class": "GpuFault", "remedy": "Call us."},
                {"exitCodes": [42, 43], "severity": "SEV1", "domain": "Node"},
                {"pattern": "license server", "severity": "SEV3", "domain": "Program"},
            )
        )
    )
    said = judge.words("INFO retrying: CUDA error: launch timed out")
    known = judge.get(said.error_class)
    assert known is not None
    assert (known.name, known.remedy) == ("GpuFault", "Call us.")
    ended = judge.get(judge.words("whatever", 43).error_class)
    assert ended is not None
    assert (ended.severity, ended.domain) == (Severity.SEV1, Domain.NODE)
    assert ended.meaning == "spec.recovery.rules[1] says so."
    assert judge.words("KeyError: 'a'", 1) == judge.words("KeyError: 'a'") == shipped_judge().words("KeyError: 'a'")
    output = "license server busy\nTraceback (most recent call last):\nValueError: x\n"
    assert judge.last_words(output).text == "license server busy", "the job's owner knows best"
    late = "x" * 400 + " license server"
    assert judge.last_words(f"{late}\nfatal: b\n").text == "license server", "what is cut off says nothing"


def test_jobs_without_rules_share_a_judge() -> None:
    assert job_judge(ErrorRules()) is shipped_judge()
    own = "disabled: [python]"
    assert job_judge(ErrorRules(own)) is platform_judge(own)


def test_rules_travel_as_text_and_never_stop_an_agent() -> None:
    rules = ErrorRules("disabled: [python]", job_rules({"exitCodes": [42], "class": "StorageUnavailable"}))
    assert decode_rules(encode_rules(rules)) == rules
    assert encode_rules(ErrorRules()) == ""
    assert decode_rules("") == decode_rules("[7]") == ErrorRules()
    assert usable_judge(rules).words("", 42).error_class == "StorageUnavailable"
    assert usable_judge(ErrorRules("disabled: [no-such-rule]", rules.rules)) is shipped_judge()
    broken = job_rules({"pattern": "(", "class": "GpuLost"})
    assert usable_judge(ErrorRules("disabled: [python]", broken)) is platform_judge("disabled: [python]")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "says nothing to look for"),
        ({"pattern": "x"}, "give class, or severity and domain"),
        ({"pattern": "x", "class": "GpuLost", "severity": "SEV1"}, "not both"),
        ({"pattern": "x", "class": "Gpulost"}, r"\.class: no class 'Gpulost'"),
        ({"pattern": "x" * 201, "class": "GpuLost"}, r"\.pattern: has 201 characters; at most 200"),
        ({"exitCodes": [0], "class": "GpuLost"}, r"\.exitCodes\[0\]: 0 is no exit code of a failure"),
        ({"exitCodes": list(range(1, 18)), "class": "GpuLost"}, r"\.exitCodes: 17 codes; at most 16"),
        ({"pattern": "x", "class": "GpuLost", "remedy": "x" * 201}, r"\.remedy: has 201 characters; at most 200"),
        ({"pattern": "(", "class": "GpuLost"}, r"\.pattern: "),
    ],
)
def test_a_jobs_rule_is_refused_by_field(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=r"^spec\.recovery\.rules\[0\].*" + message):
        shipped().of_job(job_rules(rule), "spec.recovery.rules")


def test_a_job_has_few_rules() -> None:
    with pytest.raises(TableError, match=r"^rules: 17 rules; at most 16"):
        shipped().of_job(job_rules({"pattern": "x", "class": "GpuLost"}) * (MOST_JOB_RULES + 1))


def test_a_pattern_that_begins_with_a_word_begins_where_a_word_begins() -> None:
    """Without ``\\b`` "efa … not found" is in "default device not found", and costs a node."""
    in_other_words = ("nccl", "srun", "process")  # ProcessGroupNCCL, msrun, subprocess
    loose = [
        (rule.id, alternative)
        for rule in shipped().rules
        for pattern in rule.patterns
        for alternative in alternatives(pattern)
        if (word := re.match(r"([a-z]{2,})[^A-Za-z\[(\\*?+{_]", alternative)) and word[1] not in in_other_words
    ]
    assert loose == []


def alternatives(pattern: str) -> list[str]:
    """Return the parts of a pattern between the bars that stand in no brackets."""
    depth, found = 0, [""]
    for token in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", pattern, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += token
    return found
