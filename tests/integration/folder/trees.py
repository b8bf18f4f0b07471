"""What a folder holds, as plain values that tests compare: Falcon's own folder is no part of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

OWN_FOLDER = ".falcon-behind"
FOLDER = "folder"

# By the path below the root: FOLDER, the target of a link after "-> ", or the bytes of a file.
Tree = Mapping[str, str | bytes]


def read_tree(root: Path) -> dict[str, str | bytes]:
    """Return what lies below a folder; files that vanish meanwhile are left out, and pipes and sockets always."""
    return dict(_entries(root, "")) if root.is_dir() else {}


def _entries(root: Path, below: str) -> Iterator[tuple[str, str | bytes]]:
    try:
        names = sorted(path.name for path in (root / below).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if not below and name == OWN_FOLDER:
            continue
        path = f"{below}/{name}" if below else name
        try:
            found = _entry(root / path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if found is not None:
            yield path, found
        if found == FOLDER:
            yield from _entries(root, path)


def _entry(path: Path) -> str | bytes | None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"-> {path.readlink()}"
    if stat.S_ISDIR(mode):
        return FOLDER
    return path.read_bytes() if stat.S_ISREG(mode) else None


def union(*trees: Tree) -> dict[str, str | bytes]:
    """Return what several pods' folders hold together: later ones win."""
    return {path: found for tree in trees for path, found in tree.items()}


def part(tree: Tree, folder: str) -> dict[str, str | bytes]:
    """Return what lies in one folder of a tree, by the paths below it."""
    return {path.removeprefix(f"{folder}/"): found for path, found in tree.items() if path.startswith(f"{folder}/")}


def write(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Make files, each in its folder."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content.encode() if isinstance(content, str) else content)


def difference(expected: Tree, found: Tree) -> str:
    """Return where two trees differ, for people."""
    paths = sorted(path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path))
    return "\n".join(
        f"{path}: expected {_short(expected.get(path))}, found {_short(found.get(path))}" for path in paths
    )


def _short(entry: str | bytes | None) -> str:
    return f"{entry[:40]!r} of {len(entry)}" if isinstance(entry, bytes) else str(entry)


def names_below(folder: Path) -> Iterator[str]:
    """Yield the path of each file and folder below a folder, also while others write and delete there."""
    for top, folders, files in os.walk(folder):  # which passes over a folder that has gone
        yield from (str(Path(top, name).relative_to(folder)) for name in (*folders, *files))
