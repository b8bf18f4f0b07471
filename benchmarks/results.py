"""Where measured tables stand: between two comments of a page, with the commit at which they were measured."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Final

from dev.prose import wrap

ROOT: Final = Path(__file__).resolve().parents[1]


def provenance(*code: str, note: str = "") -> str:
    """Return the line that says when a table was measured and with which code.

    ``code``: paths below the repository's root, whose uncommitted changes the line names; none: the whole tree.
    """
    changed = " and changes that were not committed" if _git("status", "--porcelain", "--", *code) else ""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    load = os.getloadavg()[0]
    return f"*Commit {_git('rev-parse', '--short', 'HEAD')}{changed}, {when}, load average {load:.1f}{note}.*\n"


def put(page: Path, body: str, name: str = "measured") -> None:
    """Replace the page's table of that name; its prose is wrapped as the lint step wants it.

    Raises:
        ValueError: the page has no place for the table.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    placed, count = re.subn(
        re.escape(begin) + ".*?" + re.escape(end),
        lambda _: f"{begin}\n{wrap(body)}\n{end}",
        page.read_text(),
        count=1,
        flags=re.DOTALL,
    )
    if not count:
        raise ValueError(f"{page} has no place for the table {name!r}")
    page.write_text(placed)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
