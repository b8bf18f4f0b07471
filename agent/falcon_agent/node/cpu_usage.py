"""Measure how much CPU each pod of the node has used, from the kernel's accounts of control groups (v1 and v2).

The kubelet gives each pod a group of its own, named after the pod's uid, below one group for all pods; where that lies
depends on the kubelet's settings, so it is found by the daemon's own pod. All that shares the pods' cores counts as
well: the group above them that has a quota, or the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from falcon_agent.telemetry.cpu import PROC, quota_of, read_counters

_DEEPEST: Final = 6  # folders below the mount in which the daemon's own pod is looked for
_LOOK_SECONDS: Final = 60.0  # between two looks for it: a node may have thousands of groups
_POD: Final = re.compile(r"(?:^|-)pod([0-9a-f]{8}[-_0-9a-f]{24,28})(?:\.slice)?$")
_PODS: Final = "kubepods"
_NS_A_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Totals since the groups were made, or the machine was started."""

    at: float  # monotonic seconds
    cores: float  # that all of them may use together
    total_ns: int  # by all of them
    pods_ns: dict[str, int]  # by pod uid


class Accounts:
    """The accounts of one node."""

    def __init__(self, mount: Path, pod_uid: str, proc: Path = PROC) -> None:
        """Take the host's ``/sys/fs/cgroup``, the uid of the daemon's own pod, and the host's ``/proc``."""
        self._is_v2 = (mount / "cgroup.controllers").exists()
        self._quotas, self._times = _hierarchies(mount, is_v2=self._is_v2)
        self._uid, self._proc = pod_uid, proc
        self._pods: Path | None = None  # the group of all pods, below its hierarchy
        self._look_at = float("-inf")  # for it, next

    def read(self, now: float) -> Usage | None:
        """Read the CPU time of all pods [ns]; None if the pods' groups or the machine's times are not found."""
        if self._pods is None and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._pods = self._found()
        pods = self._pods
        if pods is None:
            return None
        cores, group = self._capacity(pods)
        total_ns = self._machine_ns() if group is None else self._used_ns(self._times / group)
        if total_ns is None:
            self._pods = None  # the kubelet may have restarted with other groups
            return None
        return Usage(now, cores, total_ns, dict(self._each(self._times / pods)))

    def _found(self) -> Path | None:
        """Find the group of all pods: the topmost above the daemon's own pod that is named so."""
        wanted = {self._uid, self._uid.replace("-", "_")} - {""}
        for folder, below, _ in os.walk(self._times):
            path = Path(folder).relative_to(self._times)
            if any(uid in path.name for uid in wanted):
                above = [each for each in (path, *path.parents) if _PODS in each.name and not _POD.search(each.name)]
                return above[-1] if above else None
            # Groups of single containers lie deeper, and a node may have thousands of them.
            if len(path.parts) >= _DEEPEST:
                below.clear()
        return None

    def _each(self, pods: Path) -> Iterator[tuple[str, int]]:
        """Yield each pod's uid and CPU time [ns], whatever its quality-of-service class."""
        for folder in (pods, *_folders(pods)):
            for pod in _folders(folder):
                named, used_ns = _POD.search(pod.name), self._used_ns(pod)
                if named is not None and used_ns is not None:
                    yield named[1].replace("_", "-"), used_ns

    def _capacity(self, pods: Path) -> tuple[float, Path | None]:
        """Return the cores of all pods together, and the group whose quota limits them (None: the machine)."""
        cores, group = float(os.cpu_count() or 1), None
        for each in (pods, *pods.parents):
            quota = quota_of(self._quotas / each, is_v2=self._is_v2)
            if quota is not None and quota < cores:
                cores, group = quota, each
        return cores, group

    def _used_ns(self, folder: Path) -> int | None:
        try:
            if not self._is_v2:
                return int((folder / "cpuacct.usage").read_text())
            fields = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(fields["usage_usec"]) * 1000
        except (OSError, ValueError, KeyError):
            return None

    def _machine_ns(self) -> int | None:
        ticks = read_counters(proc=self._proc).busy_ticks
        return None if ticks is None else ticks * _NS_A_TICK


def _hierarchies(mount: Path, *, is_v2: bool) -> tuple[Path, Path]:
    """Return where quotas and where times are: with cgroup v1 in two hierarchies, or in one with two names."""
    if is_v2:
        return mount, mount
    joined = next((mount / name for name in ("cpu,cpuacct", "cpuacct,cpu") if (mount / name).is_dir()), None)
    return joined or mount / "cpu", joined or mount / "cpuacct"


def _folders(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # the pod has ended meanwhile
