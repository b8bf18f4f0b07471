"""Falcon's own etcd and gateways, seen from the host."""

from __future__ import annotations

import base64
import subprocess
import tempfile
from pathlib import Path

from dev.install import CACHE
from dev.kubectl import Json, Kubectl


def etcd_pod(system: Kubectl) -> Json:
    """Return the pod of the single etcd member; one that is being deleted, as on a dead node, is passed over."""
    (pod,) = (
        pod
        for pod in system.items("pods", "app.kubernetes.io/component=etcd")
        if "deletionTimestamp" not in pod["metadata"]
    )
    return pod


def gateway_pods(system: Kubectl) -> list[Json]:
    """Return the pods of the gateways that are ready."""
    return [
        pod
        for pod in system.items("pods", "app.kubernetes.io/component=gateway")
        if "deletionTimestamp" not in pod["metadata"]
        and any(entry["type"] == "Ready" and entry["status"] == "True" for entry in pod["status"].get("conditions", []))
    ]


def bus_keys(system: Kubectl, prefix: str) -> list[str]:
    """Return etcd's keys under a prefix, read as its root."""
    secret = system.get("secret", "falcon-etcd-root")
    pod = etcd_pod(system)
    assert secret is not None
    with tempfile.TemporaryDirectory() as folder:
        for name, content in secret["data"].items():
            (Path(folder) / name).write_bytes(base64.b64decode(content))
        done = subprocess.run(
            [
                str(CACHE / "bin" / "etcdctl"),
                f"--endpoints=https://{pod['status']['podIP']}:2379",
                "--insecure-skip-tls-verify",  # the certificate names the service, and we come by address
                f"--cacert={folder}/ca.crt",
                f"--cert={folder}/tls.crt",
                f"--key={folder}/tls.key",
                *("get", prefix, "--prefix", "--keys-only"),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    return done.stdout.split()
