"""Add a folder in each pod's memory that is filled from a durable folder and copied back to it (docs/adr/0078).

The trainer writes its pages, and so they count as the trainer's memory: its request and its limit are raised by the
folder's size. The launcher keeps both folders alike, since it alone has the trainer's volumes and rights.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

import msgspec

from falcon_operator.api.checkpoint import DirectorySpec
from falcon_operator.base.ports import Manifest
from falcon_operator.manifests.amounts import MISFIT_REMEDY, amount, does_not_fit, not_a_quantity
from falcon_operator.manifests.qos import quantity

VOLUME = "falcon-directory"
LEAST_BYTES = 1 << 20
RESERVED_PATH = "/falcon"
_FIELD = "spec.checkpoint.directory"
# Volumes that end with the pod, or that are read-only.
_NOT_DURABLE = frozenset({"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image"})


class Directory(msgspec.Struct, frozen=True):
    """The folder of a pod."""

    path: str
    size_bytes: int
    copy_to: str
    bytes_per_second: int = 0  # 0: no limit


def directory_of(spec: DirectorySpec | None) -> Directory | None:
    """Return what the spec asks for. Raises ValueError where a quantity is none."""
    if spec is None:
        return None
    return Directory(spec.path, amount(spec.memory), spec.copy_to, amount(spec.bandwidth))


def add(spec: Manifest, trainer: Manifest, directory: Directory) -> None:
    """Add the volume to an instrumented pod."""
    spec["volumes"].append(
        {"name": VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": str(directory.size_bytes)}},
    )
    trainer["volumeMounts"].append({"name": VOLUME, "mountPath": directory.path})
    # Pages of a volume in memory count as those of the container that writes them.
    for kind in ("requests", "limits"):
        amounts = (trainer.get("resources") or {}).get(kind) or {}
        if "memory" in amounts:
            amounts["memory"] = str(int(quantity(amounts["memory"])) + directory.size_bytes)


def options(directory: Directory | None, owner: str) -> list[str]:
    """Return the launcher's options for a job with this uid."""
    if directory is None:
        return []
    return [
        "--directory",
        directory.path,
        "--directory-bytes",
        str(directory.size_bytes),
        "--directory-folder",
        directory.copy_to,
        "--directory-owner",
        owner,
        *(["--directory-bytes-per-second", str(directory.bytes_per_second)] if directory.bytes_per_second else []),
    ]


def problems(
    spec: DirectorySpec | None, pod: dict[str, Any], trainer: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """Yield field, message and remedy of what is wrong with the folder in a pod with this container."""
    if spec is None:
        return
    mounts = [mount for mount in trainer.get("volumeMounts") or [] if isinstance(mount, dict)]
    yield from _memory(spec, pod)
    if not _is_plain(spec.path):
        yield _FIELD + ".path", f"{spec.path} is no plain absolute path", "write one, such as /checkpoints"
    # A folder above or below ours would hide what the launcher and the agent share.
    elif _overlap(spec.path, RESERVED_PATH):
        yield _FIELD + ".path", f"{RESERVED_PATH} and what lies below it are Falcon's", "name another folder"
    else:
        for mount in mounts:
            if _overlap(spec.path, str(mount.get("mountPath", ""))):
                yield (
                    _FIELD + ".path",
                    f"{spec.path} overlaps the volume {mount.get('name')} at {mount.get('mountPath')}",
                    "name a folder of its own; what the script saves there is copied to copyTo",
                )
    yield from _copy_to(spec, pod, mounts)


def _memory(spec: DirectorySpec, pod: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    field = _FIELD + ".memory"
    try:
        size = quantity(spec.memory)
    except ValueError as error:
        yield field, str(error), "write one, such as 16Gi"
        return
    if size < LEAST_BYTES:
        yield field, f"{spec.memory} holds nothing", "set it to four times what the script saves at a time"
    if wrong := not_a_quantity(spec.bandwidth):
        yield _FIELD + ".bandwidth", wrong, "write bytes a second, such as 500M"
    if misfit := does_not_fit(pod, size, spec.memory):
        yield field, misfit, MISFIT_REMEDY


def _copy_to(spec: DirectorySpec, pod: dict[str, Any], mounts: list[Any]) -> Iterator[tuple[str, str, str]]:
    field = _FIELD + ".copyTo"
    if not _is_plain(spec.copy_to):
        yield field, f"{spec.copy_to} is no plain absolute path", "write one on a volume, such as /data/run-1"
        return
    below = [mount for mount in mounts if _is_below(spec.copy_to, str(mount.get("mountPath", "")))]
    if not below:
        message = f"{spec.copy_to} is on no volume that the container mounts, and so would be lost with the pod"
        yield field, message, "mount a volume that all nodes can reach, and name a folder on it"
        return
    # Mounts may lie in each other: the deepest one holds the folder.
    mount = max(below, key=lambda each: len(str(each.get("mountPath", ""))))
    if mount.get("readOnly"):
        yield field, f"{spec.copy_to} is on a volume that is mounted read-only", "mount it writable"
    for volume in pod.get("volumes") or []:
        if not isinstance(volume, dict) or volume.get("name") != mount.get("name"):
            continue
        # Such a volume is lost with the pod or with its node, and copies are for the time after both.
        for kind in sorted(_NOT_DURABLE & volume.keys()):
            message = f"{spec.copy_to} is on the volume {mount.get('name')} of kind {kind}, which outlives no pod"
            yield field, message, "use a volume that all nodes can reach, such as a persistentVolumeClaim"


def _is_plain(path: str) -> bool:
    return path.startswith("/") and path != "/" and posixpath.normpath(path) == path


def _is_below(path: str, folder: str) -> bool:
    folder = posixpath.normpath("/" + folder.lstrip("/"))
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _overlap(path: str, folder: str) -> bool:
    return _is_below(path, folder) or _is_below(posixpath.normpath("/" + folder.lstrip("/")), path)
