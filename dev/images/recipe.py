"""The four images: what each is built from. An image is built anew when, and only when, one of its inputs changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PYTHON_IMAGE = (
    "pyproject.toml",
    "constraints.txt",
    "dev/images/rootfs.sh",
    "dev/images/requirements.py",
    ".dockerignore",
)
_SHARED_CODE = ("core/falcon_core", "core/falcon_etcd")


@dataclass(frozen=True)
class Recipe:
    """The parts of an image. An image is built anew when one of them changes.

    ``inputs`` and ``binaries`` are files or folders; binaries come from the cache and make up the build context.
    """

    name: str
    dockerfile: str
    inputs: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        return f"localhost/falcon/{self.name}:dev"

    def stamp(self, base: str, binaries: Path) -> str:
        """Return a hash over the base's name and every input's path and content."""
        digest = hashlib.sha256(base.encode())
        for path in (self.dockerfile, *self.inputs):
            for file in _files(ROOT / path):
                digest.update(f"\0{file.relative_to(ROOT)}\0{file.stat().st_mode & 0o111}\0".encode())
                digest.update(file.read_bytes())
        for name in self.binaries:
            digest.update(hashlib.sha256((binaries / name).read_bytes()).digest())
        return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


RECIPES = (
    Recipe("operator", "Dockerfile.operator", (*_PYTHON_IMAGE, *_SHARED_CODE, "operator/falcon_operator")),
    Recipe("agent", "Dockerfile.agent", (*_PYTHON_IMAGE, *_SHARED_CODE, "agent/falcon_agent", "shim")),
    Recipe("etcd", "dev/images/Dockerfile.etcd", binaries=("etcd", "etcdctl")),
    Recipe(
        "trainer", "dev/images/Dockerfile.trainer", ("dev/images/rootfs.sh", "examples/train_gpt.py", ".dockerignore")
    ),
)
