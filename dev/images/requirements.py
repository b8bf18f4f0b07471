"""Print what the distribution needs with the given extras, one requirement a line: ``requirements.py EXTRA…``.

The script runs inside a build stage, with the standard library alone. It turns pyproject.toml into a file whose content
changes only when a dependency does, so that an unrelated edit keeps the layer of installed packages.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extra: str) -> set[str]:
    """Return the extra's requirements, and those of other extras of the project itself that the extra names."""
    own = f"{project['name']}["
    found: set[str] = set(project["dependencies"])
    for entry in project["optional-dependencies"][extra]:
        if entry.startswith(own):
            for name in entry.removeprefix(own).rstrip("]").split(","):
                found |= requirements(project, name)
        else:
            found.add(entry)
    return found


if __name__ == "__main__":
    parsed = tomllib.loads(Path("pyproject.toml").read_text())
    wanted = set[str]().union(*(requirements(parsed["project"], extra) for extra in sys.argv[1:]))
    print("\n".join(sorted(wanted)))
