"""Call buildah: the local base image, the builds, the archives. Images and layers live in FALCON_CACHE."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dev.images import host, layers
from dev.images.recipe import ROOT, Recipe

CACHE = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon"))
ARCHIVES = CACHE / "images"
LOCAL_BASE = "localhost/falcon-base:bookworm"
_DOCUMENTATION = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian")
_REBUILDABLE = ("var/cache/apt", "var/lib/apt/lists", "var/cache/debconf", "var/log")
_TOOLS = ("buildah", "debootstrap")


class BuildError(RuntimeError):
    """The error of an image that could not be built; the message ends with the build's last lines."""


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other build runs on this machine: two builds would share layers and archives."""
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    with (ARCHIVES / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_tools() -> None:
    """Install Debian's buildah and debootstrap, where they are missing."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not missing:
        return
    print(f"  apt-get install {' '.join(missing)}", flush=True)
    _run("apt-get", "-qq", "update", timeout_seconds=300)
    _run("apt-get", "-qq", "install", "--no-install-recommends", *missing, timeout_seconds=600)


def make_local_base() -> None:
    """Make a minimal Debian without documentation, once, as a replacement for a public image."""
    if _has_image(LOCAL_BASE):
        return
    started = _begin(f"building debootstrap {LOCAL_BASE}")
    mirror = host.debian_mirror(host.debian_sources())
    with tempfile.TemporaryDirectory(prefix="falcon-base-") as folder:
        root = Path(folder) / "root"
        _run("debootstrap", "--variant=minbase", host.SUITE, str(root), mirror, timeout_seconds=900)
        for path in (*_DOCUMENTATION, *_REBUILDABLE):
            shutil.rmtree(root / path, ignore_errors=True)
            (root / path).mkdir(parents=True)
        (root / "etc/apt/sources.list").write_text("")  # the mirror is this machine's business
        (root / "etc/resolv.conf").unlink(missing_ok=True)
        container = _buildah("from", "scratch").strip()
        try:
            _buildah("copy", "--quiet", container, str(root), "/")
            _buildah(
                "config", "--cmd", "/bin/sh", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", container
            )
            _buildah("commit", "--quiet", container, LOCAL_BASE)
        finally:
            _buildah("rm", container)
    _end(started)


def build(recipe: Recipe, base: str, folders: Sequence[Path]) -> None:
    """Build an image and write its archive, unless the archive was written from the same inputs.

    ``folders``: where the recipe's programs are.

    Raises:
        FileNotFoundError: a program has not been built.
        BuildError: the build failed; the message holds its last lines.
        HostError: the machine's apt or pip configuration does not suffice.
    """
    archive = ARCHIVES / f"{recipe.name}.tar"
    mark = ARCHIVES / f"{recipe.name}.stamp"
    programs = recipe.programs(folders)
    # The stamp is a hash of all inputs: an image with the same stamp needs no build.
    stamp = recipe.stamp(base, programs)
    if archive.exists() and mark.exists() and mark.read_text() == stamp and _builds(recipe).exists():
        return
    if base == LOCAL_BASE and not programs:
        make_local_base()
    started = _begin(f"building {recipe.tag}")
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory(prefix="falcon-build-") as folder:
        context = ROOT
        if programs:
            context = Path(folder) / "context"
            context.mkdir()
            for program in programs:
                shutil.copy2(program, context)
        secrets = [] if programs else host.write_secrets(Path(folder))
        said = _buildah(
            "bud", "--layers", "--force-rm", f"--build-arg=BASE={base}", *secrets,
            f"--ulimit=nofile={most_files}:{most_files}",  # zig runs many compilers side by side
            "-f", str(ROOT / recipe.dockerfile), "-t", recipe.tag, str(context),
        )  # fmt: skip
        # Under another name until it is whole: a node must never import half an archive.
        partial = ARCHIVES / f".{recipe.name}.{os.getpid()}.tar"
        _buildah("push", "--quiet", recipe.tag, f"docker-archive:{partial}:{recipe.tag}")
        partial.rename(archive)
        mark.write_text(stamp)
    known = _builds(recipe).read_text().splitlines() if _builds(recipe).exists() else []
    _builds(recipe).write_text("\n".join(layers.remember(known, layers.steps(said))))
    _end(started)


def prune(recipes: Sequence[Recipe]) -> None:
    """Remove the layers that the recipes' last builds did not use, and containers that a killed build left.

    Nothing is removed while some image's layers are not recorded: that image was built before layers were recorded.
    """
    known = [recipe for recipe in recipes if _builds(recipe).exists()]
    if any((ARCHIVES / f"{recipe.name}.tar").exists() for recipe in recipes if recipe not in known):
        return
    kept = {step for recipe in known for step in _builds(recipe).read_text().split()}
    stored = msgspec.json.decode(_buildah("images", "--all", "--no-trunc", "--json"), type=list[layers.Stored] | None)
    old = layers.obsolete(stored or [], kept)
    if not old:
        return
    started = _begin(f"removing {len(old)} layers of older builds")
    try:
        _buildah("rm", "--all")
        _buildah("rmi", *old)
    except BuildError as error:  # the images are built all the same
        print(f" {error}", end="", flush=True)
    _end(started)


def summary(recipes: Sequence[Recipe]) -> str:
    """Return a line for each image: its tag and the size of its archive."""
    width = max(len(recipe.tag) for recipe in recipes)
    return "\n".join(
        f"  {recipe.tag:{width}}  {(ARCHIVES / f'{recipe.name}.tar').stat().st_size / 1e6:6.0f} MB"
        for recipe in recipes
    )


def _builds(recipe: Recipe) -> Path:
    """Return the file that holds the layers of the recipe's last builds, a line for each build."""
    return ARCHIVES / f"{recipe.name}.layers"


def _has_image(name: str) -> bool:
    return bool(_buildah("images", "--quiet", "--filter", f"reference={name}").strip())


def _buildah(*arguments: str) -> str:
    store = CACHE / "buildah"
    (store / "tmp").mkdir(parents=True, exist_ok=True)
    place = (f"--root={store / 'root'}", f"--runroot={store / 'run'}", "--storage-driver=overlay")
    return _run("buildah", *place, *arguments, timeout_seconds=1800)


def _run(*command: str, timeout_seconds: float) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
        env={
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "DEBIAN_FRONTEND": "noninteractive",
            "TMPDIR": str(CACHE / "buildah" / "tmp"),
        },
    )
    if done.returncode != 0:
        last_lines = (done.stdout + done.stderr).splitlines()[-25:]
        raise BuildError(f"{Path(command[0]).name} failed with {done.returncode}:\n" + "\n".join(last_lines))
    return done.stdout


def _begin(what: str) -> float:
    print(f"  {what} …", end="", flush=True)
    return time.monotonic()


def _end(started: float) -> None:
    print(f" {time.monotonic() - started:.0f} s", flush=True)
