"""Define names, addresses and folders of the cluster: everything that two modules must agree on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon"))
BIN = CACHE / "bin"
CLUSTER = CACHE / "cluster"
LOGS = CLUSTER / "logs"
PKI = CLUSTER / "pki"
KUBECONFIG = CLUSTER / "kubeconfig"
STATE = CLUSTER / "state.json"
FAULTS = CLUSTER / "faults.json"
RUN = Path("/run/falcon")  # short: socket paths end at 107 bytes

BRIDGE = "falcon0"
GATEWAY = "10.250.0.1"  # the root namespace on the bridge: API server and DNS listen here
API_PORT = 7443
ETCD_PORT = 23790
ETCD_PEER_PORT = 23800
NODE_SUBNET = "10.250.0.0/24"
POD_SUBNET = "10.251.0.0/16"  # a /24 a node
SERVICE_SUBNET = "10.252.0.0/16"
SERVICE_DNS = "10.252.0.10"
SERVICE_API = "10.252.0.1"
CGROUP_PARENT = "falcon"
POOL_LABEL = "falcon.dev/pool"


@dataclass(frozen=True)
class Node:
    """A node of the cluster; ``index`` fixes its addresses."""

    name: str
    index: int
    role: str  # "control" (system pods; tainted), "worker", "spare"

    @property
    def address(self) -> str:
        return f"10.250.0.{10 + self.index}"

    @property
    def pod_subnet(self) -> str:
        return f"10.251.{self.index}.0/24"

    @property
    def namespace(self) -> str:
        return f"falcon-{self.name}"

    @property
    def veth(self) -> str:
        return f"fal-{self.index}"

    @property
    def cgroup(self) -> str:
        return f"/{CGROUP_PARENT}/{self.name}"

    @property
    def folder(self) -> Path:
        """Return the folder that outlives the cluster: the containerd root (images) and the configuration."""
        return CLUSTER / "nodes" / self.name

    @property
    def run(self) -> Path:
        """Return the folder that is removed with the cluster: sockets, mounts, kubelet state."""
        return RUN / self.name

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"


def nodes(workers: int, spares: int) -> list[Node]:
    """Return the control node, then the workers node-a, node-b, …, then the spares, whose letters go on from there."""
    named = [Node("control", 0, "control")]
    for index in range(1, workers + spares + 1):
        role = "worker" if index <= workers else "spare"
        named.append(Node(f"node-{chr(ord('a') + index - 1)}", index, role))
    return named
