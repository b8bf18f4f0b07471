"""Run etcd, kube-apiserver, controller-manager, scheduler and CoreDNS as processes of the root namespace."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import urllib.request
from pathlib import Path

from dev.cluster.layout import (
    API_PORT,
    BIN,
    CLUSTER,
    ETCD_PEER_PORT,
    ETCD_PORT,
    GATEWAY,
    KUBECONFIG,
    PKI,
    SERVICE_DNS,
    SERVICE_SUBNET,
)
from dev.cluster.pki import write_kubeconfig
from dev.cluster.process import Processes, run

NAMES = ("coredns", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "kube-etcd")


def start_api(processes: Processes) -> None:
    """Start etcd and the API server, and wait until the API server is ready."""
    processes.start(
        "kube-etcd",
        [
            BIN / "etcd",
            f"--data-dir={CLUSTER}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{ETCD_PORT}",
            f"--advertise-client-urls=http://127.0.0.1:{ETCD_PORT}",
            f"--listen-peer-urls=http://127.0.0.1:{ETCD_PEER_PORT}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{ETCD_PEER_PORT}",
            f"--initial-cluster=default=http://127.0.0.1:{ETCD_PEER_PORT}",
            "--unsafe-no-fsync",  # a cluster that is thrown away
            "--log-level=warn",
        ],
    )
    processes.start(
        "kube-apiserver",
        [
            BIN / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
            f"--bind-address={GATEWAY}",
            f"--advertise-address={GATEWAY}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={PKI}/apiserver.crt",
            f"--tls-private-key-file={PKI}/apiserver.key",
            f"--client-ca-file={PKI}/ca.crt",
            f"--kubelet-client-certificate={PKI}/admin.crt",
            f"--kubelet-client-key={PKI}/admin.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={PKI}/sa.pub",
            f"--service-account-signing-key-file={PKI}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_SUBNET}",
            # No kube-proxy runs where the API server does: it reaches webhooks by their pods' addresses.
            "--enable-aggregator-routing",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",  # as clusters have it: Pod Security admission decides
            "--profiling=false",
        ],
    )
    write_kubeconfig(KUBECONFIG, "admin")
    processes.wait("kube-apiserver", api_lacking, 60, ["kube-apiserver", "kube-etcd"])


def start_rest(processes: Processes) -> None:
    """Start controllers, scheduler and DNS."""
    for name, certificate in (("controller-manager", "controller-manager"), ("scheduler", "scheduler")):
        write_kubeconfig(CLUSTER / f"{name}.kubeconfig", certificate)
    processes.start(
        "kube-controller-manager",
        [
            BIN / "kube-controller-manager",
            f"--kubeconfig={CLUSTER}/controller-manager.kubeconfig",
            f"--service-account-private-key-file={PKI}/sa.key",
            f"--root-ca-file={PKI}/ca.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=20s",  # the default is 50 s: a dead node shows while a test waits for it
            "--bind-address=127.0.0.1",
        ],
    )
    processes.start(
        "kube-scheduler",
        [
            BIN / "kube-scheduler",
            f"--kubeconfig={CLUSTER}/scheduler.kubeconfig",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ],
    )
    _start_dns(processes)


def _start_dns(processes: Processes) -> None:
    """Start CoreDNS on the bridge, with a Service without selector that leads to it from the usual cluster address."""
    corefile = CLUSTER / "Corefile"
    corefile.write_text(
        f".:53 {{\n  bind {GATEWAY}\n  errors\n  ready {GATEWAY}:8181\n"
        f"  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {KUBECONFIG}\n  }}\n  cache 5\n}}\n"
    )
    processes.start("coredns", [BIN / "coredns", "-conf", corefile])
    ports = [("dns", 53, "UDP"), ("dns-tcp", 53, "TCP")]
    meta = {"name": "kube-dns", "namespace": "kube-system"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "clusterIP": SERVICE_DNS,
            "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
        },
    }
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [GATEWAY]}],
        "ports": [{"name": name, "port": port, "protocol": protocol} for name, port, protocol in ports],
    }
    for manifest in (service, slice_):
        kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def kubectl(*arguments: str, stdin: str | None = None, check: bool = True) -> str:
    """Run kubectl as the cluster's administrator and return its stdout."""
    return run(BIN / "kubectl", f"--kubeconfig={KUBECONFIG}", *arguments, stdin=stdin, check=check)


def api_lacking() -> str:
    """Return why the API server's /readyz does not answer ok; "" if it does."""
    try:
        context = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
        context.load_cert_chain(PKI / "admin.crt", PKI / "admin.key")
        with urllib.request.urlopen(f"https://{GATEWAY}:{API_PORT}/readyz", timeout=2, context=context):
            return ""
    except (OSError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
        return f"/readyz: {error}"


def stop(processes: Processes) -> None:
    """Stop the API server before etcd: without etcd, the API server does not end on SIGTERM."""
    for name in NAMES:
        processes.stop([name], signal.SIGTERM, grace_seconds=4)


def data_folder() -> Path:
    """Return the folder of etcd's data, which is removed with the cluster."""
    return CLUSTER / "etcd"
