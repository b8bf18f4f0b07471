"""One cgroup subtree a node, with a CPU capacity; cgroup v1 (hybrid) and v2.

The capacity is a CFS quota with a short period on the node's subtree, so that pods without limits of their own share it
and no pod's own throttling counter moves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from dev.cluster.layout import CGROUP_PARENT, Node
from dev.cluster.process import ClusterError

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
MIN_QUOTA_US = 1_000  # the kernel refuses less


def v2() -> bool:
    """Whether the machine has the unified hierarchy alone."""
    return (ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if v2():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name != "unified" and not path.is_symlink())


def _cpu(node: Node) -> Path:
    return (ROOT if v2() else ROOT / "cpu") / node.cgroup.lstrip("/")


def create(node: Node) -> None:
    """The node's subtree in every hierarchy, ready for a kubelet with ``cgroupRoot``."""
    for hierarchy in _hierarchies():
        parent = hierarchy
        for part in (CGROUP_PARENT, node.name):
            if v2():
                controllers = (parent / "cgroup.controllers").read_text().split()
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
            path = parent / part
            path.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (path / file).write_text((parent / file).read_text())
            parent = path


def set_capacity(node: Node, cores: float | None) -> None:
    """Limit everything in the node's pods together; None lifts the limit."""
    _write_quota(_cpu(node), cores)


def limit_containers(node: Node, cores: float) -> dict[str, str]:
    """The same limit on every container of the node by itself, so that its own throttling counter shows it.

    Returns:
        The limits before, by cgroup folder, for ``restore_containers``.
    """
    before = {str(path): _read_quota(path) for path in _containers(node)}
    for path in before:
        _write_quota(Path(path), cores)
    return before


def restore_containers(before: dict[str, str]) -> None:
    """Put the limits back; a container that has ended is passed over."""
    for path, quota in before.items():
        if Path(path).exists():
            _write_raw(Path(path), *quota.split())


def set_weight(path: Path, shares: int) -> None:
    """``cpu.shares`` (v1) or the weight that stands for it (v2)."""
    if v2():
        (path / "cpu.weight").write_text(str(max(1, min(10_000, shares * 100 // 1024))))
    else:
        (path / "cpu.shares").write_text(str(shares))


def competitor_folder(node: Node) -> Path:
    """A cgroup beside the node's pods, under the same capacity, without any quota of its own."""
    path = _cpu(node) / "competitor"
    path.mkdir(exist_ok=True)
    return path


def pods_folder(node: Node) -> Path:
    return _cpu(node) / "kubepods"


def _containers(node: Node) -> Iterator[Path]:
    """The leaf cgroups of the node's containers: children of pod cgroups."""
    for pod in pods_folder(node).glob("**/pod*"):
        yield from (path for path in pod.iterdir() if path.is_dir())


def _write_quota(path: Path, cores: float | None) -> None:
    quota = "max" if cores is None else str(max(MIN_QUOTA_US, round(cores * PERIOD_US)))
    _write_raw(path, quota, str(PERIOD_US))


def _write_raw(path: Path, quota: str, period: str) -> None:
    if v2():
        (path / "cpu.max").write_text(f"{quota} {period}")
        return
    # Lifted first: the kernel checks each write against the parent's ratio of quota to period.
    (path / "cpu.cfs_quota_us").write_text("-1")
    (path / "cpu.cfs_period_us").write_text(period)
    if quota != "max":
        (path / "cpu.cfs_quota_us").write_text(quota)


def _read_quota(path: Path) -> str:
    """``<quota or max> <period>``, as cgroup v2 writes it."""
    if v2():
        return (path / "cpu.max").read_text().strip()
    quota = (path / "cpu.cfs_quota_us").read_text().strip()
    return f"{'max' if quota == '-1' else quota} {(path / 'cpu.cfs_period_us').read_text().strip()}"


def kill(node: Node) -> None:
    """SIGKILL every process of the node's pods at once."""
    kill_folder(_cpu(node))


def kill_folder(top: Path) -> None:
    """SIGKILL every process of a cgroup subtree until none is left.

    Raises:
        ClusterError: something survived for 10 s.
    """
    deadline = time.monotonic() + 10
    while pids := _pids(top):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(pids)[:5]} in {top} survive SIGKILL: see dmesg")
        time.sleep(0.05)


def _pids(top: Path) -> set[int]:
    found: set[int] = set()
    for file in top.glob("**/cgroup.procs"):
        with contextlib.suppress(OSError):  # a cgroup may go away while we look
            found.update(int(line) for line in file.read_text().split())
    return found


def remove(node: Node) -> None:
    """Delete the node's subtree in every hierarchy, deepest first."""
    # runc makes folders in a hybrid machine's unified hierarchy, too
    for hierarchy in {*_hierarchies(), *(path for path in (ROOT / "unified",) if path.is_dir())}:
        top = hierarchy / node.cgroup.lstrip("/")
        if not top.exists():
            continue
        for path in sorted((p for p in top.glob("**/*") if p.is_dir()), key=lambda p: -len(p.parts)):
            _remove_folder(path)
        _remove_folder(top)
        parent = top.parent
        if not any(child.is_dir() for child in parent.iterdir()):
            _remove_folder(parent)


def _remove_folder(path: Path) -> None:
    for _ in range(50):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a process is still on its way out
            time.sleep(0.05)
        else:
            return
    raise ClusterError(f"cgroup {path} cannot be removed: a process is left in it ({path}/cgroup.procs)")
