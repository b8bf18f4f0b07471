"""Falcon on the local cluster: images onto the nodes, the chart through helm. Shared by the demo and the e2e tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dev.cluster import faults
from dev.kubectl import Kubectl, wait_for

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon"))
KUBECONFIG = Path(os.environ.get("KUBECONFIG", CACHE / "cluster" / "kubeconfig"))
RELEASE = "falcon"
SYSTEM_NAMESPACE = "falcon-system"
FENCED = "falcon.dev/fenced"
IMAGES = ("operator", "anomaly", "agent", "gateway", "etcd", "trainer")


def local_cluster() -> bool:
    """Check whether the cluster is that of ``dev/cluster``; any other cluster gets its images from its own registry."""
    return KUBECONFIG == CACHE / "cluster" / "kubeconfig"


def load_images() -> None:
    """Import the built images on every node of the local cluster; nodes that have an image already are skipped."""
    archives = [str(CACHE / "images" / f"{name}.tar") for name in IMAGES]
    subprocess.run([sys.executable, "-m", "dev.cluster", "load", *archives], cwd=ROOT, check=True)


def helm(*args: str, timeout_seconds: float = 300) -> str:
    """Run helm against the cluster and return its stdout.

    Raises:
        RuntimeError: helm failed; the message holds helm's own message.
    """
    done = subprocess.run(
        ["helm", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
        env={**os.environ, "KUBECONFIG": str(KUBECONFIG)},
    )
    if done.returncode != 0:
        raise RuntimeError(f"helm {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def install_chart(*extra: str, release: str = RELEASE, namespace: str = SYSTEM_NAMESPACE) -> None:
    """Install or upgrade a release and wait until its pods are ready."""
    values: list[str] = []
    if local_cluster():
        values = ["-f", "dev/values-local.yaml"]
        # The local tag never changes: the content's stamp rolls a new image out.
        for name, part in {"operator": "operator", "gateway": "gateway", "anomaly": "anomalies"}.items():
            stamp = (CACHE / "images" / f"{name}.stamp").read_text()[:16]
            values += ["--set-string", f"{part}.podAnnotations.image={stamp}"]
    helm(
        "upgrade", "--install", release, "charts/falcon", "--namespace", namespace, "--create-namespace",
        *values, *extra, "--wait", "--timeout", "3m",
    )  # fmt: skip


def heal_nodes(kubectl: Kubectl) -> None:
    """Undo every fault of the local cluster, wait until its nodes are Ready, and remove the fences that followed."""
    for node in kubectl.items("nodes"):
        faults.heal(node["metadata"]["name"])

    def ready() -> bool:
        return all(
            condition["status"] == "True"
            for node in kubectl.items("nodes")
            for condition in node["status"]["conditions"]
            if condition["type"] == "Ready"
        )

    wait_for("every node is Ready", ready, timeout_seconds=60)
    for node in kubectl.items("nodes"):
        if any(taint["key"] == FENCED for taint in node["spec"].get("taints", [])):
            kubectl.run("taint", "node", node["metadata"]["name"], f"{FENCED}-")


def prepare_cluster() -> Kubectl:
    """Install Falcon and its example's warm pool, undo every fault of the local cluster, and return kubectl."""
    kubectl = Kubectl(KUBECONFIG)
    if local_cluster():
        heal_nodes(kubectl)
        load_images()
    install_chart()
    if local_cluster():
        # The demo leaves its job training, for people to look at: it would take the cores that are measured here.
        kubectl.run("delete", "-f", str(ROOT / "examples" / "trainingjob.yaml"), "--ignore-not-found", "--wait=false")
    kubectl.run("apply", "-f", str(ROOT / "examples" / "warmpool.yaml"))
    return kubectl


def wait_for_spare(kubectl: Kubectl) -> None:
    """Wait until the warm pool has a node that a job can take.

    Raises:
        WaitTimeoutError: it has none; the message quotes the pool's status.
    """
    wait_for(
        "the warm pool has a ready spare",
        lambda: any(
            spare["state"] == "Ready"
            for pool in kubectl.items("warmpools")
            for spare in pool.get("status", {}).get("spares", [])
        ),
        timeout_seconds=180,  # with PATIENCE, longer than a pool waits with a node that was slow in two tests
        last_seen=lambda: str([pool.get("status") for pool in kubectl.items("warmpools")]),
    )
