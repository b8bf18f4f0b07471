"""``python -m dev.fidelity [--write]``: checks, or writes, the counts of ``docs/fidelity.md``'s rows by state."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from typing import Final

from dev.limits import ROOT

PATH: Final = ROOT / "docs" / "fidelity.md"
STATES: Final = ("E2E", "DIFF+", "WIRED", "DIFF-", "CORE", "ABSENT", "STUDY")
_HEAD: Final = f"| | rows | {' | '.join(STATES)} |\n{'|---' * (len(STATES) + 2)}|\n"
_ROW: Final = re.compile(r"\| [A-Z]\d+[a-z]? \|.*?\*\*(" + "|".join(map(re.escape, STATES)) + r")\*\*")
_TABLE: Final = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)+")


def counted(text: str) -> str:
    """Return the table of counts: a line for each section with rows, and one for all."""
    counts: dict[str, Counter[str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif found := _ROW.match(line):
            counts.setdefault(section, Counter())[found.group(1)] += 1
    lines = [_line(name, count) for name, count in counts.items()]
    return _HEAD + "".join([*lines, _line("**all**", sum(counts.values(), Counter()))])


def _line(name: str, count: Counter[str]) -> str:
    return f"| {name} | {count.total()} | {' | '.join(str(count[state]) for state in STATES)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.fidelity", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the counts into the file")
    text = PATH.read_text(encoding="utf-8")
    fresh, tables = _TABLE.subn(lambda _: counted(text), text)
    if tables != 1:
        sys.exit(f"{PATH.relative_to(ROOT)}: {tables} tables of counts begin with {_HEAD.splitlines()[0]!r}, not one")
    if parser.parse_args().write:
        PATH.write_text(fresh, encoding="utf-8")
    elif fresh != text:
        sys.exit(f"{PATH.relative_to(ROOT)}: the counts are not those of the rows; python -m dev.fidelity --write")


if __name__ == "__main__":
    main()
