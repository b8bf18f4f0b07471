"""Check which docstrings and names of modules ``dev.docstrings`` refuses."""

from __future__ import annotations

import pytest

from dev.docstrings import NO_MODULE_BEGINS_WITH, TREES_OF_MODULES, faults_of_module
from dev.limits import ROOT, modules

PATH = "core/falcon_core/recovery/drain.py"


@pytest.mark.parametrize("word", sorted(NO_MODULE_BEGINS_WITH))
def test_a_module_docstring_begins_with_a_verb(word: str) -> None:
    refused = f'"""{word.capitalize()} nodes that are being emptied."""\n'
    assert [line for line, _ in faults_of_module(PATH, refused)] == [1]
    assert not list(faults_of_module(PATH, '"""Move replicas away from nodes that are being emptied."""\n'))


def test_a_module_without_a_docstring_passes() -> None:
    assert not list(faults_of_module(PATH, "VALUE = 1\n"))


def test_the_first_word_is_checked_in_the_named_trees_alone() -> None:
    refused = '"""What a job is."""\n'
    assert all(list(faults_of_module(f"{tree}/job.py", refused)) for tree in TREES_OF_MODULES)
    assert not list(faults_of_module("core_other/job.py", refused))


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("core/falcon_core/recovery/asked.py", True),
        ("operator/falcon_operator/made_beside.py", True),
        ("operator/falcon_operator/background_loop.py", False),
        ("agent/falcon_agent/reporting/task.py", False),
        ("tests/e2e/failures/test_processes_beside.py", False),
    ],
)
def test_a_module_is_not_named_by_a_participle(path: str, is_refused: bool) -> None:
    assert bool(list(faults_of_module(path, "VALUE = 1\n"))) == is_refused


@pytest.mark.parametrize("tree", TREES_OF_MODULES)
def test_every_named_tree_has_modules(tree: str) -> None:
    assert any(path.startswith(f"{tree}/") for path in modules()), ROOT / tree
