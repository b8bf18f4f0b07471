"""Images onto the nodes: docker or OCI archives imported where their content is not there yet."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dev.cluster.layout import BIN, CLUSTER, Node
from dev.cluster.node import PAUSE_IMAGE, ctr
from dev.cluster.process import ClusterError, run


def load(archives: list[Path], nodes: list[Node]) -> None:
    """Import the archives on the nodes that lack them, two nodes at a time, a line for each import.

    Raises:
        ClusterError: an archive does not exist or containerd refuses it.
    """
    for archive in archives:
        if not archive.exists():
            raise ClusterError(f"{archive} does not exist: build it first (make images)")
        mark = f"{archive.stat().st_size}-{archive.stat().st_mtime_ns}"
        missing = [node for node in nodes if _loaded(node, archive) != mark]
        if not missing:
            continue
        started = time.monotonic()
        print(f"  {archive.name} → {', '.join(node.name for node in missing)} …", end="", flush=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda node: _import(node, archive, mark), missing))  # noqa: B023 - consumed at once
        print(f" {time.monotonic() - started:.0f} s", flush=True)


def _mark(node: Node, archive: Path) -> Path:
    # Beside the image store: it goes when the store goes.
    return node.folder / "containerd" / f"loaded-{archive.stem}"


def _loaded(node: Node, archive: Path) -> str:
    mark = _mark(node, archive)
    return mark.read_text() if mark.exists() else ""


def _import(node: Node, archive: Path, mark: str) -> None:
    run(*ctr(node), "images", "import", "--local", "--snapshotter", "overlayfs", archive, timeout_seconds=600)
    _mark(node, archive).write_text(mark)


def pause_archive() -> Path:
    """A docker archive with the static pause binary alone."""
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
