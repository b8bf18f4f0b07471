"""Slowing a node on the machine's real cgroups: containers of every shape are limited, and healed to what they were."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster import cgroups
from dev.cluster.layout import Node

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="skipped: cgroups take root")

CAPACITY_CORES = 0.5
FREE = "besteffort/podfree/trainer"
LIMITED = "burstable/podlimited"


def quota(path: Path) -> tuple[str, str]:
    if cgroups.v2():
        limit, period = (path / "cpu.max").read_text().split()
        return limit, period
    limit = (path / "cpu.cfs_quota_us").read_text().strip()
    return ("max" if limit == "-1" else limit), (path / "cpu.cfs_period_us").read_text().strip()


def cores(path: Path) -> float:
    limit, period = quota(path)
    return float("inf") if limit == "max" else int(limit) / int(period)


@pytest.fixture
def node() -> Iterator[Node]:
    """Make a node's subtree as a kubelet leaves it: one pod without limits, one of 0.3 cores whose sandbox has none."""
    made = Node(f"test-{os.getpid()}", 99, "worker")
    cgroups.create(made)
    try:
        cgroups.set_capacity(made, CAPACITY_CORES)
        pods = cgroups.pods_folder(made)
        for folder in (FREE, f"{LIMITED}/trainer", f"{LIMITED}/sandbox"):
            path = pods
            path.mkdir(exist_ok=True)
            for part in Path(folder).parts:
                if cgroups.v2():
                    (path / "cgroup.subtree_control").write_text("+cpu")
                path = path / part
                path.mkdir(exist_ok=True)
        for folder in (LIMITED, f"{LIMITED}/trainer"):
            if cgroups.v2():
                (pods / folder / "cpu.max").write_text("30000 100000")
            else:
                (pods / folder / "cpu.cfs_quota_us").write_text("30000")
        yield made
    finally:
        cgroups.remove(made)


def slow(node: Node, to_cores: float) -> dict[str, str]:
    before = cgroups.limits_for(node, to_cores)
    cgroups.limit(node, to_cores, before)
    return before


def all_quotas(node: Node) -> dict[Path, tuple[str, str]]:
    top = cgroups.pods_folder(node)
    return {path: quota(path) for path in (top.parent, top, *top.glob("**/*")) if path.is_dir()}


@pytest.mark.parametrize("to_cores", [0.05, 0.15, 0.4])
def test_healing_restores_every_limit(node: Node, to_cores: float) -> None:
    healthy = {path: value for path, value in all_quotas(node).items() if value[0] != "max"}
    cgroups.unlimit(node, CAPACITY_CORES, slow(node, to_cores))
    now = all_quotas(node)
    assert {path: now[path] for path in healthy} == healthy
    assert {path for path, value in now.items() if value[0] != "max"} == set(healthy)


def test_a_container_without_limit_gets_one_that_its_own_counter_shows(node: Node) -> None:
    slow(node, 0.15)
    assert cores(cgroups.pods_folder(node) / FREE) == pytest.approx(0.15)
    assert cores(cgroups.pods_folder(node).parent) == pytest.approx(0.15)


def test_a_pod_with_a_higher_limit_of_its_own_is_lowered_with_its_containers(node: Node) -> None:
    slow(node, 0.15)
    pod = cgroups.pods_folder(node) / LIMITED
    assert [cores(path) for path in (pod, pod / "trainer", pod / "sandbox")] == pytest.approx([0.15] * 3)


def test_a_lower_limit_is_never_raised(node: Node) -> None:
    slow(node, 0.4)
    pod = cgroups.pods_folder(node) / LIMITED
    assert [cores(path) for path in (pod, pod / "trainer")] == pytest.approx([0.3] * 2)


def test_a_container_that_ended_is_passed_over(node: Node) -> None:
    before = slow(node, 0.15)
    (cgroups.pods_folder(node) / FREE).rmdir()
    cgroups.unlimit(node, CAPACITY_CORES, before)
    assert cores(cgroups.pods_folder(node).parent) == pytest.approx(CAPACITY_CORES)
