"""What refuses to start: addresses in use, packages missing, the cluster of another cache."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest

from dev.cluster import machine, packages
from dev.cluster.layout import nodes
from dev.cluster.process import ClusterError, Processes

OURS = ("10.250.0.0/24", "10.251.0.0/16")


@pytest.mark.parametrize(
    "route",
    ["10.251.7.0/24 dev lo", "10.250.0.9 dev tun0 scope link", "10.0.0.0/8 via 10.1.1.1", "blackhole 10.251.0.0/20"],
)
def test_a_route_into_our_addresses_is_found(route: str) -> None:
    assert machine.overlapping(["default via 10.9.9.1 dev eth0", route], OURS) == route


@pytest.mark.parametrize("route", ["default via 10.250.0.1 dev eth0", "10.249.0.0/16 dev eth1", "192.168.1.0/24 dev a"])
def test_other_routes_are_none_of_our_business(route: str) -> None:
    assert machine.overlapping([route], OURS) is None


def test_missing_packages_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("ip", "tc") else f"/usr/bin/{name}")
    assert packages.missing({"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}) == ["iproute2"]


def test_without_root_the_packages_to_install_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="apt-get install nothing-like-it"):
        packages.ensure({"/nonexistent": "nothing-like-it"})


def test_without_root_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="as root"):
        machine.check()


def test_the_running_cluster_of_another_cache_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = _other_cache(tmp_path, monkeypatch)
    processes = Processes(theirs / "cluster" / "state.json")
    processes.start("sleep", ["sleep", "60"])
    try:
        with pytest.raises(ClusterError, match=f"FALCON_CACHE={theirs} make cluster-down"):
            machine.check_owner()
    finally:
        processes.stop(["sleep"])


def test_a_command_of_another_cache_is_not_disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = _other_cache(tmp_path, monkeypatch)
    with (theirs / "cluster.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="another cache"):
            machine.check_owner()


def test_what_a_dead_cluster_of_another_cache_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = _other_cache(tmp_path, monkeypatch)
    commands: list[tuple[str | Path, ...]] = []
    monkeypatch.setattr(machine, "run", lambda *command: commands.append(command))
    machine.check_owner()
    assert [command[1] for command in commands] == [f"FALCON_CACHE={theirs}"]
    assert commands[0][-1] == "down"


def _other_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Claim the machine for a cache and return that cache; this process then belongs to another cache."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    monkeypatch.setattr(machine, "_OWNER", tmp_path / "run" / "cache")
    monkeypatch.setattr(machine, "CACHE", theirs)
    theirs.mkdir()
    machine.claim()
    machine.check_owner()
    monkeypatch.setattr(machine, "CACHE", ours)
    return theirs


def test_every_node_has_addresses_and_names_of_its_own() -> None:
    made = nodes(workers=3, spares=2)
    assert [node.name for node in made] == ["control", "node-a", "node-b", "node-c", "node-d", "node-e"]
    assert [node.role for node in made] == ["control", "worker", "worker", "worker", "spare", "spare"]
    for values in zip(*((n.address, n.pod_subnet, n.namespace, n.veth, n.cgroup, n.run) for n in made), strict=True):
        assert len(set(values)) == len(made)
