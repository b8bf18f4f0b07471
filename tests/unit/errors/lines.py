"""The labelled lines of tests/data/errors."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).parents[2] / "data" / "errors"
BENIGN = "Benign"


def labelled(name: str) -> list[tuple[str, str]]:
    """Return class and line of each line in a file; the class is BENIGN for what only sounds bad."""
    found, error_class = [], BENIGN
    for line in (DATA / name).read_text().splitlines():
        if line.startswith("== "):
            error_class = line.removeprefix("== ")
        elif line and not line.startswith("# "):
            found.append((error_class, line))
    return found


def corpus() -> list[tuple[str, str]]:
    """Return class and line of all lines as they stand in logs."""
    return [pair for name in ("corpus.txt", "later.txt", "last.txt") for pair in labelled(name)]
