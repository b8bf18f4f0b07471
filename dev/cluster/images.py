"""Load images onto the nodes: import docker or OCI archives on the nodes that lack their content."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dev.cluster.layout import BIN, CLUSTER, Node
from dev.cluster.node import PAUSE_IMAGE, ctr
from dev.cluster.process import ClusterError, run, write_whole

PARALLEL_NODES = 2  # unpacking is bound by the disk and the CPU that the training shares


def load(archives: list[Path], nodes: list[Node]) -> None:
    """Import the archives on the nodes that lack their content, a few nodes at a time. Print a line for each archive.

    Raises:
        ClusterError: an archive does not exist, is no image archive, or containerd refuses it.
    """
    for archive in archives:
        images = identities(archive)
        lacking = [node for node in nodes if any(_loaded(node).get(name) != images[name] for name in images)]
        if not lacking:
            print(f"  {archive.name}: there already", flush=True)
            continue
        started = time.monotonic()
        print(f"  {archive.name} → {', '.join(node.name for node in lacking)} …", flush=True)
        with ThreadPoolExecutor(PARALLEL_NODES) as pool:
            for done in [pool.submit(_import, node, archive, images) for node in lacking]:
                done.result()
        print(f"  {archive.name}: {time.monotonic() - started:.0f} s", flush=True)


def identities(archive: Path) -> dict[str, str]:
    """Return what the archive holds: by image name, the digest of the image's configuration or manifest.

    Raises:
        ClusterError: the archive does not exist, or is neither a docker nor an OCI archive.
    """
    if not archive.exists():
        raise ClusterError(f"{archive} does not exist: build it first (make images)")
    try:
        with tarfile.open(archive) as tar:
            return _docker_identities(tar, archive) or _oci_identities(tar, archive)
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise ClusterError(f"{archive} is neither a docker nor an OCI archive: {error}") from None


def _docker_identities(tar: tarfile.TarFile, archive: Path) -> dict[str, str]:
    if "manifest.json" not in tar.getnames():
        return {}
    found: dict[str, str] = {}
    for entry in json.loads(_member(tar, "manifest.json")):
        # The configuration names every layer by its digest; its file's name may say nothing.
        digest = hashlib.sha256(_member(tar, entry["Config"])).hexdigest()
        found.update(dict.fromkeys(entry.get("RepoTags") or [archive.stem], digest))
    return found


def _oci_identities(tar: tarfile.TarFile, archive: Path) -> dict[str, str]:
    manifests: list[dict[str, Any]] = json.loads(_member(tar, "index.json"))["manifests"]
    names = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
    return {
        next((entry["annotations"][key] for key in names if key in entry.get("annotations", {})), archive.stem): str(
            entry["digest"]
        )
        for entry in manifests
    }


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    content = tar.extractfile(name)
    if content is None:
        raise ValueError(f"{name} is not a file")
    return content.read()


def _record(node: Node) -> Path:
    # Inside the image store: it goes when the store goes.
    return node.folder / "containerd" / "loaded.json"


def _loaded(node: Node) -> dict[str, str]:
    path = _record(node)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _import(node: Node, archive: Path, images: dict[str, str]) -> None:
    run(*ctr(node), "images", "import", "--local", "--snapshotter", "overlayfs", archive, timeout_seconds=600)
    write_whole(_record(node), json.dumps({**_loaded(node), **images}))


def pause_archive() -> Path:
    """Make a docker archive that holds only the static pause binary. Return its path."""
    path = CLUSTER / "pause.tar"
    binary = (BIN / "pause").read_bytes()
    layer = _tar({"pause": (binary, 0o755)})
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]).encode()
    content = _tar({"manifest.json": (manifest, 0o644), "config.json": (config, 0o644), "layer.tar": (layer, 0o644)})
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
