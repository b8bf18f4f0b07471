"""What pods have used of a node's cores: real control groups with real processes, laid out as a kubelet does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from falcon_agent.node.cpu_contention import Busy
from falcon_agent.node.cpu_usage import Accounts
from falcon_agent.node.pod_names import pod_name
from tests.integration.agent.cpus import ROOT, V2, cgroup, limit, weigh

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root")

OWN, GUARANTEED, HOG = (f"{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "abc")
CORES = 0.5
SECONDS = 5.0  # of a reading
MOST_READINGS = 8


class Groups:
    """The groups of a node in the hierarchies that hold quotas and times."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    def run(self, name: str, command: str) -> subprocess.Popen[bytes]:
        """Start a process in a pod's group."""
        joins = "; ".join(f"echo $$ > {folder / name}/cgroup.procs" for folder in self._folders)
        return subprocess.Popen(["sh", "-c", f"{joins}; {command}"])


@pytest.fixture
def groups() -> Iterator[Groups]:
    """Make a node of half a core, with a guaranteed pod, and two burstable pods of which one is the daemon's."""
    tops = [ROOT] if V2 else [ROOT / "cpu", ROOT / "cpuacct"]
    made = []
    names = [
        "",
        "kubepods",
        f"kubepods/pod{GUARANTEED}",
        "kubepods/burstable",
        f"kubepods/burstable/pod{OWN}",
        f"kubepods/burstable/pod{HOG}",
    ]
    with contextlib.ExitStack() as stack:
        for top in tops:
            base = top / f"falcon-accounts-{os.getpid()}"
            for name in names:
                stack.enter_context(cgroup(base / name if name else base))
            made.append(base)
        weigh(made[0], 4)  # its half a core is its own, whatever else runs on this machine
        limit(made[0], CORES)
        yield Groups(made)


@pytest.mark.alone  # figures of time
def test_a_pod_that_takes_the_cores_is_named_with_what_it_takes(groups: Groups, tmp_path: Path) -> None:
    (tmp_path / f"batch_etl-5_{HOG}").mkdir()
    (tmp_path / f"train_gpt2-1_{GUARANTEED}").mkdir()
    accounts = Accounts(ROOT, OWN)
    before = accounts.read(time.monotonic())
    assert before is not None
    assert set(before.pods_ns) == {OWN, GUARANTEED, HOG}
    assert before.cores == CORES
    busy = Busy(lambda uid: pod_name(tmp_path, uid))
    busy.feed(before)
    hog = groups.run(f"kubepods/burstable/pod{HOG}", "while :; do :; done")
    light = groups.run(f"kubepods/pod{GUARANTEED}", "exec sleep 60")
    try:
        for _ in range(MOST_READINGS):  # other processes of this machine may take a part of its half a core
            time.sleep(SECONDS)
            after = accounts.read(time.monotonic())
            assert after is not None
            busy.feed(after)
            if busy.condition.holds:
                break
    finally:
        for process in (hog, light):
            process.kill()
            process.wait()
    print(busy.condition)
    assert after.pods_ns[HOG] - before.pods_ns[HOG] > 50 * (after.pods_ns[GUARANTEED] - before.pods_ns[GUARANTEED])
    name, _, cores = busy.condition.message.removeprefix("of 0.50 cores: ").partition(" ")
    assert name == "batch/etl-5"
    assert float(cores) == pytest.approx(CORES, rel=0.1)


def test_without_the_daemons_own_pod_nothing_is_read() -> None:
    assert Accounts(ROOT, "dddddddd-dddd-dddd-dddd-dddddddddddd").read(0.0) is None


def test_the_names_of_systemds_groups_are_read_as_well(tmp_path: Path) -> None:
    """Check the other layout and the other version, by files such as the kernel shows: one machine has but one."""
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    top = tmp_path / "kubelet.slice/kubelet-kubepods.slice"
    own = OWN.replace("-", "_")
    pod = top / f"kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{own}.slice"
    static = top / "kubelet-kubepods-pod0123456789abcdef0123456789abcdef.slice"
    for folder, usage in ((pod, 7), (static, 5)):
        folder.mkdir(parents=True)
        (folder / "cpu.stat").write_text(f"usage_usec {usage}\nuser_usec 1\n")
    (top.parent / "cpu.max").write_text("50000 100000\n")
    (top.parent / "cpu.stat").write_text("usage_usec 20\n")
    usage = Accounts(tmp_path, OWN).read(3.0)
    assert usage is not None
    assert usage == (3.0, 0.5, 20_000, {OWN: 7_000, "0123456789abcdef0123456789abcdef": 5_000})


def test_pods_that_are_not_found_are_looked_for_once_a_minute(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    accounts = Accounts(tmp_path, OWN)
    assert accounts.read(5.0) is None
    pod = tmp_path / f"kubepods/pod{OWN}"
    pod.mkdir(parents=True)
    (pod / "cpu.stat").write_text("usage_usec 7\n")
    assert accounts.read(64.0) is None, "a walk through thousands of groups is not for each reading"
    usage = accounts.read(65.0)
    assert usage is not None
    assert usage.pods_ns == {OWN: 7_000}
