"""Create a cgroup subtree for each node, with a CPU capacity; cgroup v1 (hybrid) and v2.

The capacity is a CFS quota with a short period on the node's subtree. So pods without limits of their own share it, and
no pod's own throttling counter moves. On cgroup v1, the kernel does not let a child have more than its parent: there, a
container whose own CPU limit exceeds the node's capacity (or what ``slow`` left of it) does not start.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dev.cluster.layout import CGROUP_PARENT, Node
from dev.cluster.process import ClusterError

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
MIN_QUOTA_US = 1_000  # the kernel refuses less


def v2() -> bool:
    """Check whether the machine has only the unified hierarchy."""
    return (ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if v2():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name != "unified" and not path.is_symlink())


def _cpu(node: Node) -> Path:
    return (ROOT if v2() else ROOT / "cpu") / node.cgroup.lstrip("/")


def create(node: Node) -> None:
    """Create the node's subtree in every hierarchy, ready for a kubelet with ``cgroupRoot``."""
    for hierarchy in _hierarchies():
        parent = hierarchy
        for part in (CGROUP_PARENT, node.name):
            if v2():
                _pass_controllers_down(parent)
            path = parent / part
            path.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset":
                _copy_cpuset(parent, path)
            parent = path


def _pass_controllers_down(parent: Path) -> None:
    controllers = (parent / "cgroup.controllers").read_text().split()
    (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _copy_cpuset(parent: Path, path: Path) -> None:
    """Give a new cpuset its parent's processors and memory: a new cpuset has none."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        (path / file).write_text((parent / file).read_text())


def set_capacity(node: Node, cores: float | None) -> None:
    """Limit all of the node's pods together to ``cores``; None removes the limit."""
    _write_quota(_cpu(node), cores)


def join(node: Node, pid: int) -> None:
    """Put a process with all its threads under the node's capacity."""
    (_cpu(node) / "cgroup.procs").write_text(str(pid))


def limits_for(node: Node, cores: float) -> dict[str, str]:
    """Return the limits to change so that every container has at most ``cores``: their present values, by folder.

    These are the limits of each container, so that its own throttling counter shows the change, and of each pod whose
    own limit is higher: on cgroup v1, a parent cannot have less than its child.
    """
    containers = set(_containers(node))
    before: dict[str, str] = {}
    allowed: dict[Path, float] = {}  # by its own limit and by those of its ancestors
    for path in sorted(_below(pods_folder(node)), key=_depth):
        with _if_there():
            quota = _read_quota(path)
            allowed[path] = min(_cores(quota), allowed.get(path.parent, math.inf))
            if allowed[path] > cores and (path in containers or _cores(quota) < math.inf):
                before[str(path)] = quota
    return before


def limit(node: Node, cores: float, folders: Iterable[str]) -> None:
    """Limit the folders of ``limits_for`` and the whole node to ``cores``, beginning with the leaves."""
    for path in sorted(map(Path, folders), key=_depth, reverse=True):
        with _if_there():
            _write_quota(path, cores)
    set_capacity(node, cores)


def unlimit(node: Node, cores: float, before: Mapping[str, str]) -> None:
    """Undo ``limit``: the node's capacity becomes ``cores``, and the folders get their earlier limits back."""
    set_capacity(node, cores)
    for path in sorted(map(Path, before), key=_depth):
        with _if_there():
            _write_raw(path, *before[str(path)].split())


def limit_volume(node: Node, device: int, bytes_a_second: int) -> None:
    """Hold each of the node's containers to a rate at a block device (``st_dev``), for reads and for writes."""
    name = f"{os.major(device)}:{os.minor(device)}"
    for path in _containers(node):
        with _if_there():
            if v2():
                (path / "io.max").write_text(f"{name} rbps={bytes_a_second} wbps={bytes_a_second}")
                continue
            group = ROOT / "blkio" / path.relative_to(ROOT / "cpu")
            for way in ("read", "write"):
                (group / f"blkio.throttle.{way}_bps_device").write_text(f"{name} {bytes_a_second}")


def weight(path: Path) -> str:
    """Return ``cpu.shares`` (v1) or ``cpu.weight`` (v2), as ``restore_weight`` takes it."""
    return (path / _weight_file()).read_text().strip()


def restore_weight(path: Path, value: str) -> None:
    """Write back what ``weight`` returned."""
    (path / _weight_file()).write_text(value)


def set_weight(path: Path, shares: int) -> None:
    """Write ``cpu.shares`` (v1) or the weight that corresponds to it (v2)."""
    restore_weight(path, str(max(1, min(10_000, shares * 100 // 1024))) if v2() else str(shares))


def _weight_file() -> str:
    return "cpu.weight" if v2() else "cpu.shares"


def competitor_folder(node: Node) -> Path:
    """Return a cgroup next to the node's pods, under the same capacity, without any quota of its own."""
    path = _cpu(node) / "competitor"
    path.mkdir(exist_ok=True)
    return path


def pods_folder(node: Node) -> Path:
    return _cpu(node) / "kubepods"


def _containers(node: Node) -> Iterator[Path]:
    """Return the leaf cgroups of the node's containers: children of pod cgroups."""
    return (path for path in _below(pods_folder(node)) if path.parent.name.startswith("pod"))


def _below(top: Path) -> list[Path]:
    """Return a subtree's folders, the top first. A folder that disappears during the walk is skipped."""
    return [Path(folder) for folder, _, _ in os.walk(top)]


def _depth(path: Path) -> int:
    return len(path.parts)


@contextlib.contextmanager
def _if_there() -> Iterator[None]:
    """Ignore the error of a cgroup that disappeared meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def _cores(quota: str) -> float:
    """Return the number of cores that ``<quota or max> <period>`` allows."""
    limit_us, period_us = quota.split()
    return math.inf if limit_us == "max" else int(limit_us) / int(period_us)


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
    """Return ``<quota or max> <period>``, as cgroup v2 writes it."""
    if v2():
        return (path / "cpu.max").read_text().strip()
    quota = (path / "cpu.cfs_quota_us").read_text().strip()
    return f"{'max' if quota == '-1' else quota} {(path / 'cpu.cfs_period_us').read_text().strip()}"


def kill(node: Node) -> None:
    """Send SIGKILL to every process of the node's pods at once."""
    kill_folder(_cpu(node))


def kill_folder(top: Path) -> None:
    """Send SIGKILL to every process of a cgroup subtree until none is left.

    Raises:
        ClusterError: a process survived for 10 s.
    """
    deadline = time.monotonic() + 10
    while pids := _pids(top):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(pids)[:5]} in {top} survive SIGKILL: see dmesg")
        time.sleep(0.05)


def processes(node: Node) -> set[int]:
    """Return the pids of all processes in the node's pods."""
    return _pids(_cpu(node))


def _pids(top: Path) -> set[int]:
    found: set[int] = set()
    for folder in _below(top):
        with contextlib.suppress(OSError):  # a cgroup may go away while we look
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return found


def remove(node: Node) -> None:
    """Delete the node's subtree in every hierarchy, deepest first."""
    # runc makes folders in a hybrid machine's unified hierarchy, too
    for hierarchy in {*_hierarchies(), *(path for path in (ROOT / "unified",) if path.is_dir())}:
        top = hierarchy / node.cgroup.lstrip("/")
        if not top.exists():
            continue
        for path in sorted(_below(top), key=_depth, reverse=True):
            _remove_folder(path)
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
