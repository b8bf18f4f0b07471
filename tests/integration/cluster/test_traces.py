"""What the cluster's programs leave outside of its folders goes; what belongs to the machine's own programs stays."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.cluster.traces import Traces

OURS = Path("/run/falcon")


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield a short path: the path of a socket ends at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fal") as folder:
        yield Path(folder)


@pytest.fixture
def traces(root: Path) -> Traces:
    return Traces(root, root / "note", OURS)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link(path: Path, target: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def leave_what_a_cluster_leaves(root: Path) -> None:
    for name, interface in (("falcon", "eth0"), ("cni-loopback", "lo")):
        netns = "/run/falcon/node-a/containerd/io.containerd.grpc.v1.cri/netns/cni-1"
        write(root / f"var/lib/cni/results/{name}-0123-{interface}", json.dumps({"networkName": name, "netns": netns}))
    link(root / "var/log/containers/gpt2-0_default_trainer-1.log", "/run/falcon/node-a/pod-logs/default_gpt2/0.log")
    write(root / "etc/cni/net.d/cni.lock")
    write(root / "var/tmp/falcon-example/0123/step-00000020.pt", "weights")
    (root / "usr/libexec/kubernetes/kubelet-plugins/volume/exec").mkdir(parents=True)
    (root / "run/netns").mkdir(parents=True)
    for path in ("run/containerd/s/0123", "var/lib/kubelet/device-plugins/kubelet.sock"):
        (root / path).parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(root / path))


def test_everything_goes_from_a_machine_that_had_none_of_it(root: Path, traces: Traces) -> None:
    for folder in ("etc", "run", "usr/libexec", "var/lib", "var/log", "var/tmp"):
        (root / folder).mkdir(parents=True)
    before = sorted(root.rglob("*"))
    traces.remember()
    leave_what_a_cluster_leaves(root)
    traces.remember()  # an `up` that was interrupted, and another `up`
    traces.remove()
    assert sorted(root.rglob("*")) == before
    traces.remove()  # twice is once
    assert sorted(root.rglob("*")) == before


def test_what_is_not_ours_stays(root: Path, traces: Traces) -> None:
    theirs = [
        write(root / "var/lib/cni/results/bridge-9-eth0", json.dumps({"netns": "/run/netns/cni-9"})),
        write(root / "var/lib/cni/results/host-9-eth0", json.dumps({"networkName": "host"})),
        write(root / "var/lib/cni/results/broken-9-eth0", "{"),
        write(root / "var/lib/cni/results/list-9-eth0", "[]"),
        link(root / "var/log/containers/web-0.log", "/var/log/pods/web/0.log"),
        write(root / "etc/cni/net.d/10-bridge.conflist", "{}"),
        write(root / "etc/cni/net.d/cni.lock"),
        root / "run/containerd/s/dead",
    ]
    (root / "run/containerd/s").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(theirs[-1]))
    traces.remember()
    before = sorted(root.rglob("*"))
    results = {"networkName": "falcon", "netns": "/run/falcon/node-a/netns/cni-1"}
    write(root / "var/lib/cni/results/falcon-0123-eth0", json.dumps(results))
    traces.remove()
    assert sorted(root.rglob("*")) == [path for path in before if path != root / "note"]


def test_a_program_that_came_meanwhile_keeps_its_folder(root: Path, traces: Traces) -> None:
    traces.remember()
    leave_what_a_cluster_leaves(root)
    live = root / "run/containerd/s/live"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(live))
        server.listen()
        write(root / "run/netns/theirs")
        traces.remove()
        assert live.is_socket()
    assert (root / "run/netns/theirs").exists()
    assert not (root / "run/containerd/s/0123").exists()
    assert not (root / "var/lib/cni").exists()


def test_the_mount_of_iproute2_goes(root: Path, traces: Traces) -> None:
    traces.remember()
    namespaces = root / "run/netns"
    namespaces.mkdir(parents=True)
    subprocess.run(["mount", "--bind", namespaces, namespaces], check=True)
    try:
        traces.remove()
        assert not namespaces.exists()
        assert str(namespaces) not in Path("/proc/self/mountinfo").read_text()
    finally:
        subprocess.run(["umount", namespaces], check=False, capture_output=True)
