"""What an image is built from: programs that were built before, and the requirements of an extra."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.images.recipe import RECIPES, ROOT, Recipe
from dev.images.requirements import requirements

ETCD = Recipe("etcd", "dev/images/Dockerfile.etcd", binaries=("etcd", "etcdctl"))


def test_programs_come_from_the_first_folder_that_has_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first / "etcd", second / "etcd", second / "etcdctl"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert ETCD.programs([first, second]) == [first / "etcd", second / "etcdctl"]


def test_a_program_that_was_not_built_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"etcd is in none of {tmp_path}: build it"):
        ETCD.programs([tmp_path])


def test_another_program_makes_another_stamp(tmp_path: Path) -> None:
    program = tmp_path / "etcd"
    stamps = set()
    for content in (b"one", b"two"):
        program.write_bytes(content)
        stamps.add(ETCD.stamp("base", [program]))
    assert len(stamps) == 2


def test_every_input_is_in_the_tree() -> None:
    paths = {path for recipe in RECIPES for path in (recipe.dockerfile, *recipe.inputs)}
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_an_extra_may_name_several_of_the_projects_own() -> None:
    project = {
        "name": "falcon",
        "dependencies": ["numpy"],
        "optional-dependencies": {
            "etcd": ["grpcio"],
            "gateway": ["protobuf"],
            "operator": ["falcon[etcd,gateway]", "kopf"],
        },
    }
    assert requirements(project, "operator") == {"numpy", "grpcio", "protobuf", "kopf"}
