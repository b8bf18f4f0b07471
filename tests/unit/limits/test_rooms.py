"""Check which rooms and which includes ``dev.limits`` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.cpp_rooms import LAYERS, TOP, forbidden_includes
from dev.limits import MOST_FILES, ROOT, full_rooms

ROOMS = ((TOP,), ("upper", "other"), ("lower",))


@pytest.mark.parametrize(
    ("path", "included", "is_allowed"),
    [
        ("main.cc", "upper/a.h", True),
        ("upper/b.cc", "upper/a.h", True),
        ("upper/b.cc", "lower/a.h", True),
        ("lower/b.cc", "upper/a.h", False),
        ("upper/b.cc", "other/a.h", False),
        ("upper/b.cc", "main.h", False),
        ("upper/b.cc", "a.h", False),
        ("unknown/b.cc", "lower/a.h", False),
        ("upper/b.cc", "unknown/a.h", False),
    ],
)
def test_a_room_includes_itself_and_lower_layers(tmp_path: Path, path: str, included: str, is_allowed: bool) -> None:
    for header in ("main.h", "upper/a.h", "other/a.h", "lower/a.h", "unknown/a.h"):
        (tmp_path / header).parent.mkdir(exist_ok=True)
        (tmp_path / header).touch()
    (tmp_path / path).write_text(f'#include <map>\n#include "{included}"\n')
    found = {str(file.relative_to(tmp_path)) for file, _, _ in forbidden_includes(tmp_path, ROOMS)}
    assert (path not in found) == is_allowed


@pytest.mark.parametrize("root", LAYERS)
def test_every_declared_room_is_there(root: str) -> None:
    declared = {room for rooms in LAYERS[root] for room in rooms} - {TOP}
    assert declared == {path.name for path in (ROOT / root).iterdir() if path.is_dir()}


def test_a_room_with_one_file_too_many_is_refused() -> None:
    names = [f"room/n{number}.{suffix}" for number in range(MOST_FILES) for suffix in ("cc", "h")]
    assert not dict(full_rooms([*names, "room/inner/a.cc"]))
    assert list(dict(full_rooms([*names, "room/more.cc"]))) == ["room"]
    assert list(dict(full_rooms([*names, "room/n1.def"]))) == ["room"]
