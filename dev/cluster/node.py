"""Run one node: containerd, kubelet and kube-proxy in the node's network namespace, and its CNI configuration."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

from dev.cluster import cgroups
from dev.cluster.controlplane import kubectl
from dev.cluster.layout import BIN, PKI, POOL_LABEL, SERVICE_DNS, Node
from dev.cluster.pki import write_kubeconfig
from dev.cluster.process import Processes, run

PAUSE_IMAGE = "localhost/falcon/pause:1"
CONTROL_TAINT = "node-role.kubernetes.io/control-plane"


def process_names(node: Node) -> list[str]:
    """Return the names of the node's processes, in the order in which they are stopped."""
    return [f"kubelet-{node.name}", f"kube-proxy-{node.name}", f"containerd-{node.name}"]


def start_containerd(node: Node, processes: Processes) -> None:
    """Start containerd with its own root (kept, for its images), state folder, socket and pod network."""
    for folder in (node.folder, node.run, node.folder / "cni", node.run / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    network = {
        "cniVersion": "1.0.0",
        "name": "falcon",
        "plugins": [
            {
                # ptp, not bridge: every packet crosses the node's stack, so a service on the same node works
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.run / "ipam"),
                    "ranges": [[{"subnet": node.pod_subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
    (node.folder / "cni" / "10-falcon.conflist").write_text(json.dumps(network))
    config = f"""version = 3
root = "{node.folder}/containerd"
state = "{node.run}/containerd"
temp = "{node.run}/tmp"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{node.containerd_socket}"
[ttrpc]
  address = "{node.containerd_socket}.ttrpc"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{node.folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = "{BIN}/containerd-shim-runc-v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{BIN}/runc"
  Root = "{node.run}/runc"
  SystemdCgroup = false
"""
    (node.folder / "containerd.toml").write_text(config)
    processes.start(
        f"containerd-{node.name}",
        [BIN / "containerd", "--config", node.folder / "containerd.toml", "--log-level", "warn"],
        netns=node.namespace,
    )


def wait_containerd(node: Node, processes: Processes) -> None:
    """Wait until containerd answers.

    Raises:
        ClusterError: containerd ended, or did not answer in time.
    """
    name = f"containerd-{node.name}"

    def lacking() -> str:
        return "" if "io.containerd" in run(*ctr(node), "plugins", "list", check=False) else "no answer"

    processes.wait(f"containerd of {node.name}", lacking, 60, [name])


def forget_containers(node: Node, processes: Processes) -> None:
    """Remove the records of an earlier cluster's containers from the store; the images stay.

    containerd reads its records once, at its start. So it is started again if there were any.
    """
    containers = run(*ctr(node), "containers", "list", "-q").split()
    sandboxes = [line.split()[0] for line in run(*ctr(node), "sandboxes", "list").splitlines()[1:]]
    if not containers and not sandboxes:
        return
    for name in containers:
        run(*ctr(node), "tasks", "delete", "--force", name, check=False)  # rarely there is a task: of a killed shim
        run(*ctr(node), "containers", "delete", name)
    for name in sandboxes:
        run(*ctr(node), "sandboxes", "delete", "--force", name, check=False)  # gone with its container, mostly
    processes.stop([f"containerd-{node.name}"])
    start_containerd(node, processes)
    wait_containerd(node, processes)


def ctr(node: Node) -> list[str | Path]:
    """Return the start of a ctr command line for the kubelet's images."""
    return [BIN / "ctr", "--address", node.containerd_socket, "--namespace", "k8s.io"]


def start_kubelet(node: Node, processes: Processes) -> None:
    """Start kubelet and kube-proxy; the API server must be up."""
    write_kubeconfig(node.folder / "kubelet.kubeconfig", f"kubelet-{node.name}")
    write_kubeconfig(node.folder / "proxy.kubeconfig", "proxy")
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [SERVICE_DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "podLogsDir": str(node.run / "pod-logs"),
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 12,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
        "serializeImagePulls": False,
        "maxPods": 60,
        "healthzPort": 0,
        "shutdownGracePeriod": "0s",
    }
    (node.folder / "kubelet.json").write_text(json.dumps(kubelet))
    labels = f"falcon.dev/role={node.role}" + (f",{POOL_LABEL}=spares" if node.role == "spare" else "")
    taints = [f"--register-with-taints={CONTROL_TAINT}=:NoSchedule"] if node.role == "control" else []
    processes.start(
        f"kubelet-{node.name}",
        [
            BIN / "kubelet",
            f"--config={node.folder}/kubelet.json",
            f"--kubeconfig={node.folder}/kubelet.kubeconfig",
            f"--root-dir={node.run}/kubelet",
            f"--cert-dir={node.run}/kubelet-pki",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels={labels}",
            *taints,
        ],
        netns=node.namespace,
    )
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(node.folder / "proxy.kubeconfig")},
        "conntrack": {"maxPerCore": 0},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
    (node.folder / "proxy.json").write_text(json.dumps(proxy))
    processes.start(
        f"kube-proxy-{node.name}", [BIN / "kube-proxy", f"--config={node.folder}/proxy.json"], netns=node.namespace
    )


def not_ready(nodes: list[Node]) -> list[str]:
    """Return the names of nodes whose condition Ready is not True, or that have not registered."""
    listed = json.loads(kubectl("get", "nodes", "-o", "json", check=False) or '{"items": []}')
    ready = {
        item["metadata"]["name"]
        for item in listed["items"]
        if any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", []))
    }
    return [node.name for node in nodes if node.name not in ready]


def stop(node: Node, processes: Processes) -> None:
    """Stop the node: no daemon, container, mount or cgroup is left; the image store stays in the cache."""
    kubelet, proxy, containerd = process_names(node)
    processes.stop([kubelet, proxy], signal.SIGTERM, grace_seconds=2)
    cgroups.kill(node)
    processes.stop([containerd], signal.SIGTERM, grace_seconds=5)
    remove_leftovers(node)
    cgroups.remove(node)


def lose(node: Node, processes: Processes) -> None:
    """Kill the node: everything on it gets SIGKILL at once, as in a power cut."""
    processes.stop(process_names(node), signal.SIGKILL, grace_seconds=0)
    _kill_shims(node)
    cgroups.kill(node)


def boot(node: Node, processes: Processes) -> None:
    """Start the node again after ``lose``. Its images are unchanged; its memory and its pods are gone."""
    lose(node, processes)  # an earlier boot may have been interrupted
    remove_leftovers(node)
    start_containerd(node, processes)
    wait_containerd(node, processes)
    start_kubelet(node, processes)


def remove_leftovers(node: Node) -> None:
    """Remove shims, mounts and run files of a node whose daemons are gone."""
    _kill_shims(node)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    prefix = (str(node.run), str(node.folder))
    for mount in sorted((m for m in mounts if m.startswith(prefix)), key=len, reverse=True):
        run("umount", "--lazy", mount, check=False)
    shutil.rmtree(node.run, ignore_errors=True)


def _kill_shims(node: Node) -> None:
    """Kill the node's containerd shims, which outlive containerd. Their command line names the node's socket."""
    mark = f"-address\0{node.containerd_socket}\0".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark in line:
            subprocess.run(["kill", "-9", entry.name], check=False, capture_output=True)
