"""Lay out a page of text for a terminal: headings, and fields whose text is wrapped next to their label."""

from __future__ import annotations

import textwrap

from falcon_core.text import clean

LABEL = 11  # columns of a label
NARROW, WIDE = 40, 120  # a page is no narrower and no wider


class Page:
    """Collects lines of at most ``width`` columns. Everything that is put in is cleaned of control characters."""

    def __init__(self, width: int) -> None:
        self.width = min(max(width, NARROW), WIDE)
        self._lines: list[str] = []

    def heading(self, text: str) -> None:
        """Begin a part, after an empty line."""
        if self._lines:
            self._lines.append("")
        self.text(text, indent="")

    def text(self, text: str, indent: str = "  ") -> None:
        """Add a paragraph; lines after the first are indented by two columns."""
        self._wrap(indent, "  ", text)

    def field(self, label: str, text: str) -> None:
        """Add ``label  text``; nothing where the text is empty. An empty label goes on below the field before."""
        if text:
            start = f"  {label:<{LABEL}}"
            self._wrap(start, " " * len(start), text)

    def _wrap(self, start: str, further: str, text: str) -> None:
        self._lines += textwrap.wrap(
            " ".join(clean(text).split()),
            self.width,
            initial_indent=start,
            subsequent_indent=further,
            break_on_hyphens=False,
        )

    def raw(self, line: str) -> None:
        """Add a line of a picture or a table as it is."""
        self._lines.append(line.rstrip())

    def __str__(self) -> str:
        return "\n".join(self._lines)
