"""Find includes of the C++ sources that lead from a room to one that does not lie below it.

A room is a folder. Each root declares its rooms in layers, the highest first; a room may include itself and rooms of
lower layers. So no two rooms include each other in a circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TOP = "."  # the files that lie in the root itself
LAYERS = {  # root → its layers, the highest first; rooms of one layer do not include each other
    "shim/src/shim": (("nccl", "gloo"), ("cuda",), ("rank",), ("sockets",), ("common",)),
    "shim/src/launch": (
        (TOP,),
        ("generation",),
        ("standby", "measurement", "rescue", "folder"),
        ("command",),
        ("wire", "publication", "units"),
        ("output", "process", "tree"),
        ("common",),
    ),
}
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def forbidden_includes(root: Path, layers: tuple[tuple[str, ...], ...]) -> Iterator[tuple[Path, str, str]]:
    """Yield each include that is not allowed: the file, what it includes, and what to do."""
    depths = {room: depth for depth, rooms in enumerate(layers) for room in rooms}
    for path in sorted(path for path in root.rglob("*") if path.suffix in {".cc", ".h", ".def"}):
        room = _room_of(path.relative_to(root))
        if room not in depths:
            yield path, "", f"the room {room} has no layer: add it to LAYERS in dev/cpp_rooms.py"
            continue
        for included in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            if remedy := _remedy(root, room, included, depths):
                yield path, included, remedy


def _remedy(root: Path, room: str, included: str, depths: dict[str, int]) -> str:
    """Return what to do about an include in a file of ``room``; empty where it is allowed."""
    if not (root / included).is_file():
        return f'no such file in {root.name}: write "room/file.h"'
    other = _room_of(Path(included))
    if other == room or depths.get(other, -1) > depths[room]:
        return ""
    return f"{room} may include rooms of lower layers only: move what it needs below {room}"


def _room_of(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else TOP
