"""The operator as a process, its etcd, and objects for it to work on, against a real kube-apiserver.

There is no scheduler and no kubelet here: a test plays their part by patching pods' and nodes' status.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.integration.api.apiserver import ApiServer
from tests.integration.api.objects import Objects
from tests.integration.etcd_server import EtcdServer
from tests.integration.pki import Issued
from tests.integration.ports import free_port

CRDS = Path(__file__).resolve().parents[3] / "crds"
PREFIX, GATEWAY_PREFIX = "falcon-etcd", "falcon"
GATEWAY_SELECTOR = "app.kubernetes.io/component=gateway"
WAIT_SECONDS = 120.0
AGENT_IMAGE = "falcon/agent:test"


class SecretPki:
    """The certificates that the operator put into Secrets, as files: the part of ``pki.Pki`` that an etcd needs."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        for part in ("server", "root"):
            secret = json.loads(api.ok("kubectl", "-n", namespace, "get", "secret", f"{PREFIX}-{part}", "-o", "json"))
            for name, value in secret["data"].items():
                (folder / f"{part}-{name}").write_bytes(base64.b64decode(value))
        self.ca = folder / "server-ca.crt"

    def server(self, _host: str) -> Issued:
        return Issued(self._folder / "server-tls.crt", self._folder / "server-tls.key")

    def client(self, _user: str) -> Issued:
        return Issued(self._folder / "root-tls.crt", self._folder / "root-tls.key")


class Operator:
    """One replica of the operator."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path, name: str, etcd_port: int, **env: str) -> None:
        self.name = name
        self.port = free_port()
        self.log = folder / f"{name}.log"
        self._env = {
            **os.environ,
            "KUBECONFIG": str(api.kubeconfig),
            "TMPDIR": str(folder),  # a killed operator leaves its certificates
            "FALCON_NAMESPACE": namespace,
            "FALCON_POD": name,
            "FALCON_ETCD_ENDPOINTS": f"https://127.0.0.1:{etcd_port}",
            "FALCON_ETCD_SECRET_PREFIX": PREFIX,
            "FALCON_ETCD_SERVER_NAMES": "localhost,127.0.0.1",
            "FALCON_ETCD_MANAGED": "true",
            "FALCON_GATEWAYS": "localhost:7443",
            "FALCON_GATEWAY_SELECTOR": GATEWAY_SELECTOR,
            "FALCON_GATEWAY_SECRET_PREFIX": GATEWAY_PREFIX,
            "FALCON_AGENT_IMAGE": AGENT_IMAGE,
            "FALCON_WATCH_NAMESPACES": namespace,
            "FALCON_LOG_LEVEL": "debug",
            "FALCON_METRICS_PORT": str(self.port),
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            # the kernel ends it with the test run, however that ends
            command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "falcon_operator"]
            self.process = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(20)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def metric(self, name: str) -> float | None:
        """Return the first sample of this name (labels included), None where there is none."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(f"{name} ")]
        return float(lines[0].split()[-1]) if lines else None

    def logged(self, event: str) -> list[dict[str, Any]]:
        records = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                records.append(json.loads(line))
        return [record for record in records if isinstance(record, dict) and record.get("event") == event]


class Installation:
    """A namespace with an operator and its etcd."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path) -> None:
        self.api = api
        self.objects = Objects(api)
        self.namespace = namespace
        self.folder = folder
        self.etcd = EtcdServer(folder)
        self.operators: list[Operator] = []

    def operator(self, name: str, **env: str) -> Operator:
        """Start another replica and return it."""
        port = self.etcd.members[0].client_port
        replica = Operator(self.api, self.namespace, self.folder, name, port, **env)
        self.operators.append(replica)
        replica.start()
        return replica

    def start_etcd(self) -> None:
        """Start etcd as the chart does: it comes up once the operator has made its certificates."""
        until(lambda: self.get("secret", f"{PREFIX}-root"))
        self.etcd.pki = SecretPki(self.api, self.namespace, self.folder / "pki")  # type: ignore[assignment]
        self.etcd.start()

    def get(self, kind: str, name: str = "", namespace: str | None = None) -> Any:
        return self.objects.get(kind, name, namespace or self.namespace)

    def apply(self, manifest: dict[str, Any]) -> None:
        self.objects.apply(manifest)

    def patch_status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        self.objects.patch_status(kind, name, self.namespace, status)

    def stop(self) -> None:
        for replica in self.operators:
            replica.stop()
        self.etcd.kill()


def until(true: Callable[[], Any], *, seconds: float = WAIT_SECONDS, every: float = 0.2) -> Any:
    """Wait for a true answer and return it."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := true():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"still not after {seconds:.0f} s: {true}")
        time.sleep(every)


async def until_async(true: Callable[[], Any], *, seconds: float = WAIT_SECONDS, every: float = 0.05) -> Any:
    """Wait for a true answer within a loop and return it."""
    deadline = time.monotonic() + seconds
    while not (answer := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still not after {seconds:.0f} s: {true}")
        await asyncio.sleep(every)
    return answer


def a_job(namespace: str, name: str = "gpt2", **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "image": "x:1", "command": ["python", "train.py"]}]}}
    return {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 1, "template": template, **spec},
    }


@contextlib.contextmanager
def a_job_of_a_newer_version(installation: Installation, name: str) -> Iterator[None]:
    """Let the API server take a job with a value that the operator cannot read. All jobs are deleted at the end."""
    api = installation.api
    crd = json.loads(api.ok("kubectl", "get", "crd", "trainingjobs.falcon.dev", "-o", "json"))
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/mitigation/properties/mode/enum"
    known = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    modes = known["properties"]["spec"]["properties"]["mitigation"]["properties"]["mode"]["enum"]

    def allow(values: list[str]) -> None:
        change = [{"op": "replace", "path": path, "value": values}]
        api.ok("kubectl", "patch", "crd", "trainingjobs.falcon.dev", "--type=json", "-p", json.dumps(change))

    allow([*modes, "Predict"])
    try:
        body = json.dumps(a_job(installation.namespace, name, mitigation={"mode": "Predict"}))
        apply = ("kubectl", "apply", "--server-side", "-f", "-")
        until(lambda: api.run(*apply, stdin=body).returncode == 0)  # the new schema is served a moment later
        yield
    finally:
        api.ok("kubectl", "-n", installation.namespace, "delete", "trainingjobs", "--all")
        allow(modes)


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


READY = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
NOT_READY = {"conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:01:00Z"}]}


def namespaces() -> Iterator[str]:
    """Yield names that no other test of this session has."""
    number = 0
    while True:
        number += 1
        yield f"falcon-test-{number}"
