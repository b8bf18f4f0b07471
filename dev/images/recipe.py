"""Define the six images and what each is built from. An image is built again only when one of its inputs changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
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
_SHARED_CODE = ("core/falcon_core", "core/falcon_gateway", "core/falcon_listen")


@dataclass(frozen=True)
class Recipe:
    """The parts of an image. An image is built again when one of them changes.

    ``inputs`` are files or folders of the tree. ``binaries`` are names of programs that were built before, and that
    make up the build context.
    """

    name: str
    dockerfile: str
    inputs: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        return f"localhost/falcon/{self.name}:dev"

    def programs(self, folders: Sequence[Path]) -> list[Path]:
        """Return the files of ``binaries``, each from the first folder that has it.

        Raises:
            FileNotFoundError: a program is in none of the folders; the message says how to build it.
        """
        found = []
        for name in self.binaries:
            file = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if file is None:
                raise FileNotFoundError(f"{name} is in none of {', '.join(map(str, folders))}: build it (make images)")
            found.append(file)
        return found

    def stamp(self, base: str, programs: Sequence[Path]) -> str:
        """Return a hash over the base's name and every input's path and content."""
        digest = hashlib.sha256(base.encode())
        for path in (self.dockerfile, *self.inputs):
            for file in _files(ROOT / path):
                digest.update(f"\0{file.relative_to(ROOT)}\0{file.stat().st_mode & 0o111}\0".encode())
                digest.update(file.read_bytes())
        for program in programs:
            digest.update(hashlib.sha256(program.read_bytes()).digest())
        return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


RECIPES = (
    Recipe(
        "operator",
        "Dockerfile.operator",
        (*_PYTHON_IMAGE, *_SHARED_CODE, "core/falcon_etcd", "operator/falcon_operator"),
    ),
    Recipe("anomaly", "Dockerfile.anomaly", (*_PYTHON_IMAGE, *_SHARED_CODE, "operator/falcon_anomaly")),
    Recipe("agent", "Dockerfile.agent", (*_PYTHON_IMAGE, *_SHARED_CODE, "agent", "shim")),
    Recipe("gateway", "Dockerfile.gateway", binaries=("falcon-gateway",)),
    Recipe("etcd", "dev/images/Dockerfile.etcd", binaries=("etcd", "etcdctl")),
    Recipe(
        "trainer", "dev/images/Dockerfile.trainer", ("dev/images/rootfs.sh", "examples/train_gpt.py", ".dockerignore")
    ),
)
