"""Remove files that the cluster's programs write outside of the cluster's own folders.

containerd, its CNI plugins, the kubelet and iproute2 keep files in places that no setting moves. Other programs of the
machine may use the same places. So a file is removed only where it shows that it is the cluster's, and a folder only
where it is empty and did not exist before the cluster came up.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from dev.cluster.layout import CLUSTER, RUN
from dev.cluster.process import run, write_whole

_NOTE = CLUSTER / "folders.before"
_CNI_RESULTS = "var/lib/cni/results"  # a file a container and interface; only an orderly end removes it
_LOG_LINKS = "var/log/containers"  # the kubelet's, to each container's log
_NAMESPACES = "run/netns"  # `ip netns add` mounts it onto itself
_CHECKPOINTS = "var/tmp/falcon-example"  # of examples/trainingjob.yaml
_FOLDERS = (
    _CNI_RESULTS,
    _LOG_LINKS,
    _NAMESPACES,
    "etc/cni/net.d",
    "run/containerd/s",
    "usr/libexec/kubernetes/kubelet-plugins/volume/exec",
    "var/lib/kubelet/device-plugins",
)
_LOCK = "cni.lock"


class Traces:
    """The places outside the cluster's folders, below ``root``; ``note`` records which of them did not exist before."""

    def __init__(self, root: Path = Path("/"), note: Path = _NOTE, run_folder: Path = RUN) -> None:
        self._root, self._note, self._run = root, note, run_folder

    def remember(self) -> None:
        """Write down the folders that do not exist yet. Call it before the first program starts."""
        if not self._note.exists():  # an interrupted `up` noted them before it made them
            absent = [str(folder) for folder in self._folders() if not folder.is_dir()]
            write_whole(self._note, json.dumps(absent))

    def remove(self) -> None:
        """Remove what the cluster has left. Call it when every program has ended."""
        for file in (*self._cni_results(), *self._log_links()):
            file.unlink(missing_ok=True)
        shutil.rmtree(self._root / _CHECKPOINTS, ignore_errors=True)
        if not self._note.exists():
            return
        absent = set(json.loads(self._note.read_text()))
        for folder in self._folders():
            if str(folder) in absent:
                self._remove_folder(folder)
        self._note.unlink()

    def _folders(self) -> list[Path]:
        """Return each folder and its parents below ``root``, the deepest first."""
        found: set[Path] = set()
        for name in _FOLDERS:
            folder = self._root / name
            found |= {folder, *(parent for parent in folder.parents if parent.is_relative_to(self._root))}
        return sorted(found, key=lambda path: len(path.parts), reverse=True)

    def _cni_results(self) -> Iterator[Path]:
        """Yield the results of containers whose network namespace was in the cluster's run folder."""
        for file in _inside(self._root / _CNI_RESULTS):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # another program's, in another form
                if Path(json.loads(file.read_bytes()).get("netns", "/")).is_relative_to(self._run):
                    yield file

    def _log_links(self) -> Iterator[Path]:
        """Yield the links to logs in the cluster's run folder."""
        for link in _inside(self._root / _LOG_LINKS):
            if link.is_symlink() and link.readlink().is_relative_to(self._run):
                yield link

    def _remove_folder(self, folder: Path) -> None:
        for file in _inside(folder):
            if file.name == _LOCK or (file.is_socket() and not _answers(file)):
                file.unlink(missing_ok=True)
        if not folder.is_dir() or any(folder.iterdir()):
            return
        while _mounted(folder):
            run("umount", folder)
        with contextlib.suppress(OSError):  # someone began to use it
            folder.rmdir()


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _answers(path: Path) -> bool:
    """Check whether a program listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # a full backlog, or another kind of socket: it is in use
            return True
    return True


def _mounted(folder: Path) -> bool:
    """Check whether something is mounted there. ``os.path.ismount`` does not see a bind mount of the same disk."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(folder) for line in lines)
