"""Write the tables of docs/errors.md from the table of error classes: ``python -m dev.error_classes [--write]``.

Without ``--write`` it compares, and names what is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import msgspec

from falcon_core.errors.table import ErrorClass, Table, shipped
from falcon_core.recovery.views import REPAIRS, repair_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
BEGIN, END = "<!-- classes -->", "<!-- end of classes -->"


def kinds(known: ErrorClass) -> str:
    """Return what decides besides the severity, in words."""
    return ", ".join(field.name for field in msgspec.structs.fields(known) if getattr(known, field.name) is True)


def tables(table: Table) -> str:
    """Return the classes, which of them each Xid belongs to, and what repairs each, as Markdown."""
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
    return "\n".join([*rows, "", *xids, "", *repairs(table)])


def repairs(table: Table) -> list[str]:
    """Return which classes lead to which repair, as Markdown. The last repair takes all classes that are left."""
    found = [(repair, [kind.name for kind in table.classes if repair_of(kind) is repair]) for repair in REPAIRS]
    *others, (last, _) = [(repair, names) for repair, names in found if names]
    rows = [
        f"| {repair.name} | {repair.explanation} | {', '.join(f'`{name}`' for name in names)} |"
        for repair, names in others
    ]
    return [
        "| repair | what happens | classes |",
        "|---|---|---|",
        *rows,
        f"| {last.name} | {last.explanation} | all others |",
    ]


def page(text: str, table: Table) -> str:
    """Return the page with its tables made again. Raises ValueError where it has no place for them."""
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
