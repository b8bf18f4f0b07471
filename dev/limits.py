"""``python -m dev.limits``: refuses complex functions, long files, full rooms, and C++ includes that lead upwards.

The limits are those of CONTRIBUTING.md. Each exception has a reason. An exception that is no longer needed is refused
as well.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from complexipy import file_complexity

from dev.cpp_rooms import LAYERS, forbidden_includes

MOST_COMPLEXITY = 15  # cognitive complexity of a function, as SonarSource defines it
MOST_LINES = 600  # of a file
MOST_FILES = 15  # of a room, which is a folder; a .cc and a .h of one name count once, an __init__.py not at all
ROOTS_OF_ROOMS = (
    "shim",
    "gateway",
    "core",
    "operator",
    "agent",
    "cli",
    "dev",
    "tests",
    "benchmarks",
    "evaluation",
)  # whose folders MOST_FILES holds for
GENERATED = ("core/falcon_etcd/_proto/", "core/falcon_gateway/_proto/")
ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("*.py", "*.go", "*.cc", "*.h", "*.def")

_ATTEMPTS = "a loop over attempts: each kind of failure has its handler, and reads best beside the others"
EXCEPTIONS = {  # "path::function", "path" of a file or a room, or "path::include" → why
    "core/falcon_etcd/_lease.py::Lease::_keep_alive": _ATTEMPTS,
    "core/falcon_etcd/_transport.py::Transport::_repeat": _ATTEMPTS,
    "gateway/internal/wire/gateway.pb.go": "made by protoc",
}


def modules() -> list[str]:
    """Return the tracked Python files, by their path in the tree."""
    return tracked("*.py")


def tracked(*patterns: str) -> list[str]:
    """Return the tracked files that are not generated Python, by their path in the tree."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.splitlines() if not path.startswith(GENERATED) and (ROOT / path).exists()]


def complex_functions(path: str) -> Iterator[tuple[str, str]]:
    """Yield each function of a module that is too complex: its name as an exception has it, and by how much."""
    for function in file_complexity(str(ROOT / path)).functions:
        if function.complexity > MOST_COMPLEXITY:
            yield f"{path}::{function.name}", f"cognitive complexity {function.complexity}, at most {MOST_COMPLEXITY}"


def long_files(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each file that is too long, and its length."""
    for path in paths:
        lines = len((ROOT / path).read_text().splitlines())
        if lines > MOST_LINES:
            yield path, f"{lines} lines, at most {MOST_LINES}"


def full_rooms(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each room of these files that holds too many of them, and how many."""
    rooms: dict[Path, set[str]] = defaultdict(set)
    for path in map(Path, paths):
        if path.name != "__init__.py":
            rooms[path.parent].add(path.stem if path.suffix in {".cc", ".h"} else path.name)
    for room, names in rooms.items():
        if len(names) > MOST_FILES:
            yield room.as_posix(), f"{len(names)} files, at most {MOST_FILES}: split the room by what imports what"


def upward_includes() -> Iterator[tuple[str, str]]:
    """Yield each include of a C++ room that its layer does not allow, and what to do."""
    for root, layers in LAYERS.items():
        for path, included, remedy in forbidden_includes(ROOT / root, layers):
            name = path.relative_to(ROOT).as_posix()
            yield (f"{name}::{included}" if included else name), remedy


def main() -> int:
    found: dict[str, str] = {}
    for path in modules():
        found |= complex_functions(path)
    found |= long_files(tracked(*_SOURCES))
    found |= full_rooms(tracked(*(f"{root}/{pattern}" for root in ROOTS_OF_ROOMS for pattern in _SOURCES)))
    found |= upward_includes()
    for name in found.keys() - EXCEPTIONS.keys():
        print(f"{name}: {found[name]}")
    for name in EXCEPTIONS.keys() - found.keys():
        print(f"{name}: an exception that is no longer needed (dev/limits.py)")
    return 0 if found.keys() == EXCEPTIONS.keys() else 1


if __name__ == "__main__":
    sys.exit(main())
