"""Find the tests that a document cites, and say which of them CI runs.

A citation names a file or a folder by the end of its path, with or without ``tests/`` and ``.py``, or one function:
``unit/recovery/failslow/test_incidents``, ``agent/test_probe``, ``integration/checkpoint``,
``test_copies::test_a_lost_node_costs_no_more_steps_than_a_killed_process``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BY_HAND: Final = frozenset({"slow", "long", "soak", "gpu"})  # marks of the tests that .ci/run leaves out
KINDS: Final = ("unit", "stories", "integration", "e2e", "gpu")  # the folders of tests/ that hold tests
_FOLDER = rf"(?:tests/(?:{'|'.join(KINDS)})\b|(?:{'|'.join(KINDS)})/\w+)(?:/\w+)*"
_FILE = rf"(?:(?:{'|'.join(KINDS)}) )?(?:\w+/)*test_\w+"
CITATION: Final = re.compile(rf"(?<![\w/.])(?:{_FOLDER}|{_FILE})(?:\.py)?(?:::test_\w+)?")


class CitationError(ValueError):
    """A citation that names no test, or more than one file."""


@dataclass(frozen=True)
class Function:
    """A test function."""

    path: str  # of its file, from tests/ on, without .py
    name: str
    marks: frozenset[str]  # those of BY_HAND

    @property
    def is_e2e(self) -> bool:
        """Check whether the test runs on a cluster."""
        return self.path.startswith("e2e/")

    @property
    def runs(self) -> str:
        """Return "in CI", or "by hand" with the marks for which CI leaves the test out."""
        return f"by hand: {', '.join(sorted(self.marks))}" if self.marks else "in CI"


def functions(tests: Path) -> list[Function]:
    """Return all test functions below the folder ``tests``."""
    return [found for path in sorted(tests.rglob("test_*.py")) for found in _functions_of(path, tests)]


def _functions_of(path: Path, tests: Path) -> Iterator[Function]:
    name = path.relative_to(tests).with_suffix("").as_posix()
    module = ast.parse(path.read_text(encoding="utf-8"))
    common = {"gpu"} if name.startswith("gpu/") else set()
    for node in module.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]:
            common |= _marks(node.value.elts if isinstance(node.value, ast.List) else [node.value])
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Function(name, node.name, frozenset((common | _marks(node.decorator_list)) & BY_HAND))


def _marks(decorators: list[ast.expr]) -> set[str]:
    """Return the names of the marks. Those of single parameters do not count: CI runs the others."""
    names = [ast.unparse(node.func if isinstance(node, ast.Call) else node) for node in decorators]
    return {name.removeprefix("pytest.mark.") for name in names if name.startswith("pytest.mark.")}


def citations(text: str) -> list[str]:
    """Return what the text cites, as it is written."""
    return CITATION.findall(text)


def resolve(citation: str, tests: Mapping[str, list[Function]]) -> list[Function]:
    """Return the functions that a citation names; ``tests`` has those of each file by its path.

    Raises:
        CitationError: no test has this name, or tests of several files have.
    """
    kind, _, rest = citation.rpartition(" ")
    path, _, function = rest.partition("::")
    path = path.removeprefix("tests/").removesuffix(".py")
    if "/" not in path and not function and (named := _named(path, tests)):
        return named
    of_kind = {name: found for name, found in tests.items() if name.startswith(f"{kind}/" if kind else "")}
    files = {name: found for name, found in of_kind.items() if f"/{name}".endswith(f"/{path}")}
    if len(files) > 1:
        raise CitationError(f"{citation}: name more of its path, there are {', '.join(files)}")
    files = files or {name: found for name, found in of_kind.items() if name.startswith(f"{path}/")}
    found = [test for of_file in files.values() for test in of_file if function in {"", test.name}]
    if not found:
        raise CitationError(f"{citation}: {'no such function' if files else 'no such test'}")
    return found


def _named(name: str, tests: Mapping[str, list[Function]]) -> list[Function]:
    """Return the functions of this name in any file, unless a file has the name itself."""
    if any(path.rpartition("/")[2] == name for path in tests):
        return []
    return [test for of_file in tests.values() for test in of_file if test.name == name]
