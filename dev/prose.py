"""Name Markdown lines of prose longer than 100 columns, or wrap them: ``python -m dev.prose [--write]``.

Without ``--write``, words of documents, docstrings and comments that are not plain (``dev.plain_words``) are named too.
Paragraphs and list items are prose. Tables, headings, code, links of a whole line and front matter stay as they are.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from dev.limits import tracked
from dev.plain_words import is_checked, unclear_words

COLUMNS = 100
_ITEM = re.compile(r"^(\s*)([-*+]|\d+[.)]) ")
_KEPT = re.compile(r"^\s*(\||#|>|<|!\[|\[[^\]]*\]: )")
# Blanks within a figure or before its unit, and those before a word that would turn the line into Markdown syntax.
_TOGETHER = re.compile(r"(?<=\d) (?=\d{3}\b|[%×])| (?=(?:[-*+>|]|#+|\d+[.)]) )|(?<= [-*+>|#]) ")
_GLUE = "\N{NO-BREAK SPACE}"


class _Block:
    """The lines of one paragraph or list item."""

    def __init__(self, first: str) -> None:
        item = _ITEM.match(first)
        self.indent = " " * (item.end() if item else len(first) - len(first.lstrip()))
        self.lines = [first]

    def wrapped(self) -> list[str]:
        """Return the block's lines, at most COLUMNS long where the words allow it."""
        if all(len(line) <= COLUMNS for line in self.lines):
            return self.lines
        first = self.lines[0]
        start = first[: len(self.indent)]
        text = " ".join([first[len(self.indent) :], *(line.strip() for line in self.lines[1:])])
        lines = textwrap.wrap(
            _TOGETHER.sub(_GLUE, text),
            COLUMNS,
            initial_indent=start,
            subsequent_indent=self.indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [line.replace(_GLUE, " ") for line in lines]


def wrap(text: str) -> str:
    """Return a Markdown document whose prose is wrapped; blocks that fit already keep their lines."""
    return "\n".join(line for part in _parts(text.split("\n")) for line in part)


def _parts(lines: list[str]) -> Iterator[list[str]]:
    """Yield the lines of each block, wrapped, and every other line by itself."""
    block: _Block | None = None
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        plain = fenced or fence or not line.strip() or _KEPT.match(line) or _is_code(line, block)
        if block is not None and (plain or _ITEM.match(line)):
            yield block.wrapped()
            block = None
        if fence:
            fenced = not fenced
        if plain:
            yield [line]
        elif block is None:
            block = _Block(line)
        else:
            block.lines.append(line)
    if block is not None:
        yield block.wrapped()


def _is_code(line: str, block: _Block | None) -> bool:
    """Check whether four blanks make the line code. They do not within a paragraph or an item.

    A line that is an item itself is no code either.
    """
    return block is None and line.startswith("    ") and not _ITEM.match(line)


def long_lines(text: str) -> list[int]:
    """Return the numbers of the prose lines that ``wrap`` would break."""
    wrapped = set(wrap(text).split("\n"))
    lines = enumerate(text.split("\n"), start=1)
    return [number for number, line in lines if len(line) > COLUMNS and line not in wrapped]


def documents() -> list[Path]:
    """Return the Markdown files of the repository."""
    return [Path(path) for path in tracked("*.md")]


def unclear() -> Iterator[str]:
    """Yield each word that is not plain: its place, and what to write instead."""
    for path in filter(is_checked, tracked("*.md", "*.py")):
        for number, remedy in sorted(unclear_words(path, Path(path).read_text())):
            yield f"{path}:{number}: {remedy}"


def main() -> int:
    """Check, or write, all Markdown files."""
    parser = argparse.ArgumentParser(prog="python -m dev.prose", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="wrap the lines")
    write = parser.parse_args().write
    found = False
    for path in documents():
        text = path.read_text()
        if write:
            path.write_text(wrap(text))
            continue
        for number in long_lines(text):
            found = True
            print(f"{path}:{number}: longer than {COLUMNS} columns: make format wraps it")
    for line in () if write else unclear():
        found = True
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
