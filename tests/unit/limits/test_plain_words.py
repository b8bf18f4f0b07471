"""Check which words ``dev.prose`` refuses, and where."""

from __future__ import annotations

import pytest

from dev.plain_words import is_checked, unclear_words

MODULE = '''"""Wait for whoever comes."""

beside = 1  # a name: ``beside`` and `told` are code
limit: int = 2
"""The one limit."""
text = "nobody reads this"


def f() -> None:
    """Return at once.

    Somebody else waits.
    """
    told = 3  # is told later
'''


def test_docstrings_and_comments_of_a_module_are_read_and_its_code_is_not() -> None:
    found = sorted((line, remedy.split("'")[1]) for line, remedy in unclear_words("core/a.py", MODULE))
    assert found == [(1, "whoever"), (5, "The one"), (12, "Somebody"), (14, "told")]


def test_a_documents_links_and_code_are_names() -> None:
    line = "See [the record](adr/0084-a-smoke-test-beside-a-restart.md) and `beside`; nobody waits."
    assert [remedy.split("'")[1] for _, remedy in unclear_words("docs/a.md", line)] == ["nobody"]


@pytest.mark.parametrize(
    ("path", "is_read"),
    [
        ("core/falcon_core/model.py", True),
        ("docs/job-owner.md", True),
        ("README.md", True),
        ("docs/adr/0001-falcon.md", False),
        ("evaluation/signals/RESULTS.md", False),
        ("tests/unit/limits/test_plain_words.py", False),
        ("charts/falcon/values.yaml", False),
    ],
)
def test_records_and_results_keep_the_words_of_their_day(path: str, is_read: bool) -> None:
    assert is_checked(path) == is_read
