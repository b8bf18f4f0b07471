"""``python -m dev.limits``: refuses functions that are hard to follow and modules that are too long.

The limits are those of CONTRIBUTING.md. Each exception has a reason. An exception that is no longer needed is refused
as well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from complexipy import file_complexity

MOST_COMPLEXITY = 15  # cognitive complexity of a function, as SonarSource defines it
MOST_LINES = 400  # of a module; tests may be longer
GENERATED = ("core/falcon_etcd/_proto/", "core/falcon_gateway/_proto/")
ROOT = Path(__file__).resolve().parents[1]

_ATTEMPTS = "a loop over attempts: each kind of failure has its handler, and reads best beside the others"
EXCEPTIONS = {  # "path::function", or "path" for a module's length → why
    "core/falcon_etcd/_lease.py::Lease::_keep_alive": _ATTEMPTS,
    "core/falcon_etcd/_transport.py::Transport::_repeat": _ATTEMPTS,
}


def modules() -> list[str]:
    """Return the tracked Python files, by their path in the tree."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in tracked.stdout.splitlines() if not path.startswith(GENERATED) and (ROOT / path).exists()]


def beyond(path: str) -> dict[str, str]:
    """Return what is beyond a limit in a module: by the name that an exception would have, by how much."""
    lines = len((ROOT / path).read_text().splitlines())
    found = (
        {path: f"{lines} lines, at most {MOST_LINES}"} if lines > MOST_LINES and not path.startswith("tests/") else {}
    )
    for function in file_complexity(str(ROOT / path)).functions:
        if function.complexity > MOST_COMPLEXITY:
            found[f"{path}::{function.name}"] = f"cognitive complexity {function.complexity}, at most {MOST_COMPLEXITY}"
    return found


def main() -> int:
    found: dict[str, str] = {}
    for path in modules():
        found |= beyond(path)
    for name in found.keys() - EXCEPTIONS.keys():
        print(f"{name}: {found[name]}")
    for name in EXCEPTIONS.keys() - found.keys():
        print(f"{name}: an exception that is no longer needed (dev/limits.py)")
    return 0 if found.keys() == EXCEPTIONS.keys() else 1


if __name__ == "__main__":
    sys.exit(main())
