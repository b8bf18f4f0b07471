"""Each module that a text or a string names exists: such a name does not move with it, and no type checker sees it.

The records under docs/adr are left out: they name what was there when they were written.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OWN = "tests/unit/documents/test_module_names.py"  # names modules that are gone
FOLDERS = {
    "falcon_core": "core",
    "falcon_sim": "core",
    "falcon_operator": "operator",
    "falcon_anomaly": "operator",
    "falcon_agent": "agent",
    "falcon_bench": "agent",
    "falcon_start": "agent",
    "falcon_torch": "agent",
}
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})(?:\.[a-z][a-z_0-9]*)+(?![\w(])")
TEXTS = ("*.py", "*.md", "*.toml", "*.yaml", "*.mk", "*.cc", "*.h", "*.sh", "Makefile", "Dockerfile.*", ".ci/run")


def named_modules() -> Iterator[tuple[str, str]]:
    """Yield each dotted name in the tracked texts, and the file that has it."""
    command = ["git", "ls-files", *TEXTS]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    for path in listed:
        if not path.startswith(("docs/adr/", OWN)) and (ROOT / path).is_file():
            for found in NAMED.finditer((ROOT / path).read_text()):
                yield found.group(), path


def exists(name: str) -> bool:
    """Check whether a dotted name is a package, a module, or something in a module."""
    first, *rest = name.split(".")
    place = ROOT / FOLDERS[first] / first
    for part in rest:
        if place.with_suffix(".py").is_file() or not (place / part).is_dir():
            module = place / f"{part}.py"
            text = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
            return module.is_file() or (text.is_file() and re.search(rf"\b{part}\b", text.read_text()) is not None)
        place /= part
    return True


def test_each_module_that_is_named_exists() -> None:
    named = set(named_modules())
    assert len(named) > 1000, "the tree is read"
    assert sorted((path, name) for name, path in named if not exists(name)) == []


def test_a_name_of_a_moved_module_is_found() -> None:
    assert exists("falcon_agent.agent")
    assert exists("falcon_core.recovery.model.state")
    assert not exists("falcon_agent.life")
    assert not exists("falcon_core.recovery.sharing")
