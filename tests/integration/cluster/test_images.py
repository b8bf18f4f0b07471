"""Which images an archive holds, and when two archives hold the same."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.images import identities
from dev.cluster.process import ClusterError


def archive(path: Path, files: dict[str, Any]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, value in files.items():
            content = json.dumps(value).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def docker(path: Path, tag: str | None, layer: str) -> Path:
    config = {"rootfs": {"diff_ids": [layer]}}
    tags = [tag] if tag else None
    return archive(path, {"manifest.json": [{"Config": "config.json", "RepoTags": tags}], "config.json": config})


def oci(path: Path, digest: str, annotations: dict[str, str]) -> Path:
    return archive(path, {"index.json": {"manifests": [{"digest": digest, "annotations": annotations}]}})


def test_a_rebuilt_archive_of_the_same_content_is_the_same(tmp_path: Path) -> None:
    first, second = docker(tmp_path / "a.tar", "x:1", "sha256:1"), docker(tmp_path / "b.tar", "x:1", "sha256:1")
    assert identities(first) == identities(second)


def test_another_layer_under_the_same_name_is_another_image(tmp_path: Path) -> None:
    first, second = docker(tmp_path / "a.tar", "x:1", "sha256:1"), docker(tmp_path / "b.tar", "x:1", "sha256:2")
    assert identities(first).keys() == identities(second).keys() == {"x:1"}
    assert identities(first) != identities(second)


def test_an_oci_archive_is_known_by_its_manifest(tmp_path: Path) -> None:
    named = oci(tmp_path / "a.tar", "sha256:9", {"org.opencontainers.image.ref.name": "x:1"})
    assert identities(named) == {"x:1": "sha256:9"}


def test_containerds_full_name_goes_before_the_bare_reference(tmp_path: Path) -> None:
    names = {"org.opencontainers.image.ref.name": "1", "io.containerd.image.name": "localhost/x:1"}
    assert identities(oci(tmp_path / "a.tar", "sha256:9", names)) == {"localhost/x:1": "sha256:9"}


@pytest.mark.parametrize("name", ["docker", "oci"])
def test_a_nameless_image_goes_by_its_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.tar"
    found = identities(docker(path, None, "sha256:1") if name == "docker" else oci(path, "sha256:9", {}))
    assert list(found) == [name]


def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_text("not a tar")
    with pytest.raises(ClusterError, match=r"x\.tar is neither"):
        identities(tmp_path / "x.tar")


def test_a_missing_archive_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="make images"):
        identities(tmp_path / "x.tar")
