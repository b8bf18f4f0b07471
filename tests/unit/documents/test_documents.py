"""What the documents say of the tree: links, sections that are cited, the records' form, the list of targets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from dev.prose import wrap

ROOT = Path(__file__).parents[3]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
RECORDS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_CITED = re.compile(r"docs/architecture\.md §(\d+)")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in listed.splitlines()]


@pytest.mark.parametrize("path", tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(path: Path) -> None:
    missing = [name for name in _LINK.findall(path.read_text()) if not (path.parent / name).exists()]
    assert missing == []


def test_every_section_that_is_cited_exists() -> None:
    sections = set(re.findall(r"^## (\d+)\. ", ARCHITECTURE.read_text(), flags=re.MULTILINE))
    cited = {
        (path.name, number)
        for path in tracked("*.py", "*.cc", "*.h", "*.md")
        for number in _CITED.findall(path.read_text())
    }
    assert cited
    assert {(name, number) for name, number in cited if number not in sections} == set()


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_decision_record_has_the_form_and_a_line_in_the_index(path: Path) -> None:
    text = path.read_text()
    number = int(path.name[:4])
    assert text.startswith(f"# {number}. ")
    assert len(re.findall(r"^Status: (?:proposed|accepted|superseded)", text, flags=re.MULTILINE)) == 1
    headings = [name for name in re.findall(r"^## (.+)$", text, flags=re.MULTILINE) if name != "Considered"]
    assert headings == ["Context", "Decision", "Consequences"]
    title = text.splitlines()[0].partition(". ")[2]
    assert f"| [{number}]({path.name}) | {title} |" in (ROOT / "docs" / "adr" / "README.md").read_text()


def test_make_help_lists_every_target() -> None:
    makefiles = [path.read_text() for path in tracked("Makefile", "*.mk")]
    declared = {
        name for text in makefiles for line in re.findall(r"^\.PHONY: (.+)$", text, re.M) for name in line.split()
    }
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {line.split()[0] for line in shown.splitlines()} == declared


def test_prose_is_wrapped_and_nothing_else() -> None:
    long = "word " * 30
    text = f"# {long}\n\n{long}\n{long}\n\n- {long}\n  {long}\n\n| {long} |\n\n```\n{long}\n```\n\n    {long}\n"
    lines = wrap(text).split("\n")
    assert [line for line in lines if len(line) > 100] == [f"# {long}", f"| {long} |", long, f"    {long}"]
    assert [line[:3] for line in lines if line.startswith(("-", "  w"))] == ["- w", *["  w"] * 3]
    assert wrap("\n".join(lines)) == "\n".join(lines)


@pytest.mark.parametrize("text", ["1 024", "0.1 %", "- 4", "# 4", "| 4", "2. 4"])
def test_a_line_does_not_begin_with_what_would_change_its_meaning(text: str) -> None:
    for width in range(80, 101):
        wrapped = wrap("x" * width + f" {text} and so on, with more words than there is room for in a line")
        first = text.split()[0]
        assert first in ("1", "0.1") or not any(line.startswith(f"{first} ") for line in wrapped.split("\n"))
        assert first == "2." or text in wrapped
