"""Labelled lines as they stand in logs: the class of each, and how often it may be wrong."""

from __future__ import annotations

import pytest

from falcon_core.errors.table import Source, shipped
from falcon_core.model import Severity
from tests.unit.errors.lines import BENIGN, class_of, corpus, labelled

KNOWN_WRONG = {"[W1105 TCPStore.cpp:138] [c10d] recvValue failed on SocketImpl(fd=5): failed to recv, got 0 bytes"}
CORPUS = corpus()
PREFIXES = ("", "[rank3]: ", "[default0]:", "2026-11-20T12:04:10.123456789Z ", "\x1b[31m", "(main_task pid=123) ")


def named(line: str, source: Source | None = None) -> str:
    return class_of(line, source) or BENIGN


def test_the_corpus_is_large_and_names_every_class() -> None:
    assert len(CORPUS) >= 600
    assert {name for name, _ in CORPUS} >= {known.name for known in shipped().classes}


@pytest.mark.parametrize(("expected", "line"), CORPUS, ids=range(len(CORPUS)))
def test_each_line_has_its_class(expected: str, line: str) -> None:
    assert (named(line) == expected) is (line not in KNOWN_WRONG)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_change_nothing(prefix: str) -> None:
    other = [line for _, line in CORPUS if named(prefix + line) != named(line)]
    assert len(other) <= len(CORPUS) // 100, other


@pytest.mark.parametrize(("expected", "line"), labelled("faults.txt"))
def test_every_fault_of_a_real_cluster(expected: str, line: str) -> None:
    assert named(line, Source.CONDITION) == expected


def test_a_grave_class_is_always_seen() -> None:
    grave = {known.name for known in shipped().classes if known.severity is Severity.SEV1}
    missed = [line for name, line in CORPUS if name in grave and named(line) not in grave]
    assert missed == []
