"""``python -m dev.images``: build what changed, one archive an image in the cache, and say the sizes.

The base image is made by debootstrap from the mirror that this machine's apt uses; ``--base`` names a public one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon"))
OUT = CACHE / "images"
LOCAL_BASE = "localhost/falcon/base:bookworm"
PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
# Options of the host that a build step may need, passed on only while it builds.
PASSED_ON = ("PIP_CERT", "PIP_INDEX_URL")


class ImageError(RuntimeError):
    """A build failed; the message says which, and quotes the end of what it printed."""


@dataclass(frozen=True)
class Image:
    """One image: its Dockerfile, and the paths whose content decides whether it is built again."""

    name: str
    dockerfile: str
    inputs: tuple[str, ...]
    context: Path = ROOT

    @property
    def tag(self) -> str:
        return f"localhost/falcon/{self.name}:dev"

    @property
    def archive(self) -> Path:
        return OUT / f"{self.name}.tar"

    def stamp(self, base: str) -> str:
        digest = hashlib.sha256(base.encode())
        for path in _files(self.context, (*self.inputs,)):
            digest.update(str(path.relative_to(self.context)).encode() + path.read_bytes())
        digest.update((ROOT / self.dockerfile).read_bytes())
        return digest.hexdigest()


def images() -> list[Image]:
    shared = ("pyproject.toml", "constraints.txt", "dev/images/requirements.py", "core")
    return [
        Image("etcd", "dev/images/Dockerfile.etcd", ("etcd", "etcdctl"), _etcd_context()),
        Image("trainer", "dev/images/Dockerfile.trainer", ("examples/train_gpt.py",)),
        Image("agent", "Dockerfile.agent", (*shared, "agent", "shim")),
        Image("operator", "Dockerfile.operator", (*shared, "operator")),
    ]


def _etcd_context() -> Path:
    """The two binaries alone, as files: a build context follows no link out of itself."""
    folder = OUT / "etcd-context"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("etcd", "etcdctl"):
        source = CACHE / "bin" / name
        if not source.exists():
            raise ImageError(f"{source} is missing: make cluster-build builds it")
        shutil.copy2(source, folder / name)
    return folder


def build(image: Image, base: str) -> None:
    """Build and write the archive, unless it stands for the same inputs already."""
    stamp_file = OUT / f"{image.name}.stamp"
    stamp = image.stamp(base)
    if image.archive.exists() and stamp_file.exists() and stamp_file.read_text() == stamp:
        return
    started = time.monotonic()
    print(f"  image {image.name} …", end="", flush=True)
    arguments = [f"--build-arg=BASE={base}"]
    arguments += [f"--build-arg={name}={os.environ[name]}" for name in PASSED_ON if name in os.environ]
    if (certificates := Path("/etc/ssl/certs")).exists() and image.context == ROOT:
        arguments.append(f"--volume={certificates}:{certificates}:ro")  # a proxy's own authority, if there is one
    _run("buildah", "bud", "--layers", "-f", ROOT / image.dockerfile, "-t", image.tag, *arguments, image.context)
    image.archive.unlink(missing_ok=True)
    _run("buildah", "push", "-q", image.tag, f"docker-archive:{image.archive}:{image.tag}")
    stamp_file.write_text(stamp)
    print(f" {time.monotonic() - started:.0f} s", flush=True)


def local_base() -> str:
    """A minimal Debian by debootstrap, from the mirror that apt itself uses; made once."""
    done = subprocess.run(["buildah", "inspect", "--type", "image", LOCAL_BASE], capture_output=True, check=False)
    if done.returncode == 0:
        return LOCAL_BASE
    started = time.monotonic()
    print("  base image (debootstrap) …", end="", flush=True)
    sites = _run("apt-get", "indextargets", "--format", "$(SITE)").split()
    if not sites:
        raise ImageError("apt knows no mirror: run apt-get update, or pass BASE_IMAGE=<a public Debian image>")
    folder = OUT / "base"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", folder, sites[0])
    for litter in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        for path in (folder / litter).glob("*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    container = _run("buildah", "from", "scratch").strip()
    _run("buildah", "add", "-q", container, folder, "/")
    _run("buildah", "commit", "-q", "--rm", container, LOCAL_BASE)
    shutil.rmtree(folder)
    print(f" {time.monotonic() - started:.0f} s", flush=True)
    return LOCAL_BASE


def install_packages() -> None:
    """What this module calls, from Debian, where it is missing."""
    missing = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    if not missing:
        return
    if os.geteuid() != 0:
        raise ImageError(f"not root, and these are missing: apt-get install {' '.join(missing)}")
    print(f"  installing Debian packages: {' '.join(missing)}", flush=True)
    _run("apt-get", "update", "-qq")
    _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def _files(context: Path, inputs: tuple[str, ...]) -> Iterator[Path]:
    for name in sorted(inputs):
        path = context / name
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
            yield from found
        else:
            yield path


def _run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BUILDAH_ISOLATION": "chroot", "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode != 0:
        told = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise ImageError(f"{' '.join(map(str, command[:3]))} failed:\n{told}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dev.images", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these (default: all)")
    parser.add_argument("--base", default=os.environ.get("BASE_IMAGE"), help="a public base image")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        install_packages()
        base = options.base or local_base()
        for image in images():
            if not options.names or image.name in options.names:
                build(image, base)
    except ImageError as error:
        print(f"\nimages: {error}", file=sys.stderr)
        return 1
    sizes = [f"{i.name} {i.archive.stat().st_size / 1e6:.0f} MB" for i in images() if i.archive.exists()]
    print(f"images: {', '.join(sizes)} (in {OUT})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
