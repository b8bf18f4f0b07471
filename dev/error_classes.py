"""``python -m dev.error_classes [--write]``: the tables of docs/errors.md, made from the table of error classes.

Without ``--write`` it compares, and names what is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from falcon_core.errors.table import ErrorClass, Table, shipped

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
BEGIN, END = "<!-- classes -->", "<!-- end of classes -->"


def kinds(known: ErrorClass) -> str:
    """Return what decides besides the severity, in words."""
    words = [name for name in ("consequence", "transient", "permanent", "disruption", "vague") if getattr(known, name)]
    return ", ".join(words)


def tables(table: Table) -> str:
    """Return the classes, and which of them each Xid belongs to, as Markdown."""
    rows = ["| class | severity | domain | kind | what it means | what helps |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{known.name}` | {known.severity} | {known.domain} | {kinds(known)} | {known.meaning} | {known.remedy} |"
        for known in table.classes
    ]
    xids = ["| Xid | class |", "|---|---|"]
    xids += [
        f"| {', '.join(str(number) for number in sorted(rule.xids))} | `{rule.error_class}` |"
        for rule in table.rules
        if rule.xids
    ]
    return "\n".join([*rows, "", *xids])


def page(text: str, table: Table) -> str:
    """Return the page with its tables made anew. Raises ValueError where it has no place for them."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    made, count = re.subn(pattern, lambda _: f"{BEGIN}\n\n{tables(table)}\n\n{END}", text, count=1, flags=re.DOTALL)
    if not count:
        raise ValueError(f"{PAGE} has no place for the tables ({BEGIN})")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write: bool = parser.parse_args().write
    old = PAGE.read_text()
    new = page(old, shipped())
    if write:
        PAGE.write_text(new)
    elif old != new:
        print(f"{PAGE.name} is out of date: python -m dev.error_classes --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
