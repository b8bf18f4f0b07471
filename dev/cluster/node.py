"""One node: containerd, kubelet and kube-proxy in the node's network namespace, and its CNI configuration."""

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
from dev.cluster.process import Processes, run, wait

PAUSE_IMAGE = "localhost/falcon/pause:1"
CONTROL_TAINT = "node-role.kubernetes.io/control-plane"


def process_names(node: Node) -> list[str]:
    """In the order in which they are stopped."""
    return [f"kubelet-{node.name}", f"kube-proxy-{node.name}", f"containerd-{node.name}"]


def start_containerd(node: Node, processes: Processes) -> None:
    """containerd with its own root (kept: the images), state folder, socket and pod network."""
    for folder in (node.folder, node.run, node.folder / "cni", node.run / "tmp"):
        folder.mkdir(parents=True, exist_ok=True)
    (node.folder / "clean").unlink(missing_ok=True)
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


def wait_containerd(node: Node) -> None:
    wait(
        f"containerd of {node.name} answers",
        lambda: "io.containerd" in run(*ctr(node), "plugins", "list", check=False),
        30,
        f"containerd-{node.name}",
    )


def ctr(node: Node) -> list[str | Path]:
    """The start of a ctr command line for the kubelet's images."""
    return [BIN / "ctr", "--address", node.containerd_socket, "--namespace", "k8s.io"]


def start_kubelet(node: Node, processes: Processes) -> None:
    """kubelet and kube-proxy; the API server must be up."""
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


def ready_nodes() -> set[str]:
    """Names of the nodes whose condition Ready is True."""
    listed = json.loads(kubectl("get", "nodes", "-o", "json", check=False) or '{"items": []}')
    return {
        item["metadata"]["name"]
        for item in listed["items"]
        if any(c["type"] == "Ready" and c["status"] == "True" for c in item["status"].get("conditions", []))
    }


def stop(node: Node, processes: Processes) -> None:
    """Stop for good: no kubelet, no containers, an image store without leftovers, no mounts, no cgroups."""
    kubelet, proxy, containerd = process_names(node)
    processes.stop([kubelet, proxy], signal.SIGTERM, grace_seconds=2)
    cgroups.kill(node)
    clean = processes.alive(containerd) and _forget_containers(node)
    processes.stop([containerd], signal.SIGTERM, grace_seconds=5)
    remove_leftovers(node)
    if clean:
        (node.folder / "clean").touch()
    elif (node.folder / "containerd").exists():
        shutil.rmtree(node.folder / "containerd")  # it may hold containers that no longer exist
    cgroups.remove(node)


def lose(node: Node, processes: Processes) -> None:
    """The node dies: everything on it is SIGKILLed at once, as by a power cut."""
    names = process_names(node)
    processes.stop(names, signal.SIGKILL, grace_seconds=0)
    _kill_shims(node)
    cgroups.kill(node)


def boot(node: Node, processes: Processes) -> None:
    """The node comes back after ``lose``: its disk is as it was, its memory is empty."""
    remove_leftovers(node)
    start_containerd(node, processes)
    wait_containerd(node)
    start_kubelet(node, processes)


def remove_leftovers(node: Node) -> None:
    """Shims, mounts and run files of a node whose daemons are gone."""
    _kill_shims(node)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    prefix = (str(node.run), str(node.folder))
    for mount in sorted((m for m in mounts if m.startswith(prefix)), key=len, reverse=True):
        run("umount", "--lazy", mount, check=False)
    shutil.rmtree(node.run, ignore_errors=True)


def _forget_containers(node: Node) -> bool:
    """Remove every container and sandbox record, so that the next start finds images alone."""
    listed = run(*ctr(node), "containers", "list", "-q", check=False).split()
    for name in listed:
        run(*ctr(node), "tasks", "delete", "--force", name, check=False)
        run(*ctr(node), "containers", "delete", name, check=False)
    for name in run(*ctr(node), "sandboxes", "list", check=False).splitlines()[1:]:
        run(*ctr(node), "sandboxes", "delete", "--force", name.split()[0], check=False)
    return not run(*ctr(node), "containers", "list", "-q", check=False).strip()


def _kill_shims(node: Node) -> None:
    """containerd's shims outlive it; ours name the node's socket on their command line."""
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
