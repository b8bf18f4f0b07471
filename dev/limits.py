"""Refuse what goes beyond the limits of the tree: ``python -m dev.limits``.

These are complex functions, long files, full rooms, large structs, C++ includes that lead upwards, and phases of a
slowdown that are set without the functions for it.
The limits are those of CONTRIBUTING.md. Each exception has a reason. An exception that is no longer needed is refused
as well.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from complexipy import file_complexity

from dev import phase_changes
from dev.cpp_rooms import LAYERS, forbidden_includes

MOST_COMPLEXITY = 15  # cognitive complexity of a function, as SonarSource defines it
MOST_LINES = 600  # of a file
MOST_FILES = 15  # of a room, which is a folder; a .cc and a .h of one name count once, an __init__.py not at all
MOST_FIELDS = 20  # of a struct from which core decides; what crosses a process boundary has its fields by contract
DECISIONS = ("falcon_core.recovery", "falcon_core.planning", "falcon_core.signals")  # packages of such structs
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

_ATTEMPTS = "a loop over attempts: each kind of failure has its handler, and reads best next to the others"
EXCEPTIONS = {  # "path::function", "path" of a file or a room, "path::include" or "path::call" → why
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


def large_structs() -> Iterator[tuple[str, str]]:
    """Yield each struct of core's decisions that has too many fields, and how many."""
    for struct in filter(_is_struct, _defined_in(DECISIONS)):
        count = len(struct.__struct_fields__)
        if count > MOST_FIELDS:
            name = f"core/{struct.__module__.replace('.', '/')}.py::{struct.__name__}"
            yield name, f"{count} fields, at most {MOST_FIELDS}: group those that describe one thing"


def _is_struct(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, msgspec.Struct)


def _defined_in(packages: Iterable[str]) -> Iterator[Any]:
    """Yield what the modules of these packages define, without what they import."""
    for package in map(importlib.import_module, packages):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(found.name)).values()
            yield from (value for value in values if getattr(value, "__module__", "") == found.name)


def upward_includes() -> Iterator[tuple[str, str]]:
    """Yield each include of a C++ room that its layer does not allow, and what to do."""
    for root, layers in LAYERS.items():
        for path, included, remedy in forbidden_includes(ROOT / root, layers):
            name = path.relative_to(ROOT).as_posix()
            yield (f"{name}::{included}" if included else name), remedy


def set_phases(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each place in the recovery that sets a slowdown's phase by itself, and what to do."""
    for path in paths:
        if path != phase_changes.OWNER:
            for text, remedy in phase_changes.phase_changes((ROOT / path).read_text()):
                yield f"{path}::{text}", remedy


def main() -> int:
    found: dict[str, str] = {}
    for path in modules():
        found |= complex_functions(path)
    found |= long_files(tracked(*_SOURCES))
    found |= full_rooms(tracked(*(f"{root}/{pattern}" for root in ROOTS_OF_ROOMS for pattern in _SOURCES)))
    found |= upward_includes()
    found |= large_structs()
    found |= set_phases(tracked("core/falcon_core/recovery/*.py"))
    for name in found.keys() - EXCEPTIONS.keys():
        print(f"{name}: {found[name]}")
    for name in EXCEPTIONS.keys() - found.keys():
        print(f"{name}: an exception that is no longer needed (dev/limits.py)")
    return 0 if found.keys() == EXCEPTIONS.keys() else 1


if __name__ == "__main__":
    sys.exit(main())
