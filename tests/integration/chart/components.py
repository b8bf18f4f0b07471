"""Operator, gateway and anomaly service as the chart starts them, with metrics for clients with a token.

They run before a real API server, with tokens of the chart's own accounts.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.integration.anomaly.service_process import Service, issue
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import CHART, NAMESPACE, Manifest
from tests.integration.gateway.gateways import Site
from tests.integration.operator.authority import Authority
from tests.integration.operator.cluster import Operator, until
from tests.integration.ports import free_port

READER = "falcon-metrics-reader"
ON = ("--set", "metrics.authentication.enabled=true,anomalies.enabled=true")
ACCOUNTS = {"operator": "falcon", "gateway": "falcon-gateway", "anomalies": "falcon-anomalies"}


@contextlib.contextmanager
def cluster_with_chart() -> Iterator[ApiServer]:
    """Yield a server with the chart installed, a Prometheus that is bound to the chart's role, and a tenant."""
    with running_apiserver() as server:
        server.ok("helm", "install", "falcon", str(CHART), "-n", NAMESPACE, "--create-namespace", *ON)
        for namespace, account in (("monitoring", "prometheus"), ("team", "tenant")):
            server.ok("kubectl", "create", "namespace", namespace)
            server.ok("kubectl", "-n", namespace, "create", "serviceaccount", account)
        bound = ("--clusterrole", READER, "--serviceaccount", "monitoring:prometheus")
        server.ok("kubectl", "create", "clusterrolebinding", "prometheus", *bound)
        yield server


def token(cluster: ApiServer, namespace: str, account: str) -> str:
    return cluster.ok("kubectl", "-n", namespace, "create", "token", account).strip()


class Metrics(NamedTuple):
    """A component's metrics, and the page of its health."""

    port: int
    plain: int
    trusted: ssl.SSLContext
    pid: int
    webhook: int = 0  # the operator's, for evictions

    def read(self, shown: str = "", path: str = "/metrics", source: str = "127.0.0.1") -> tuple[int, str]:
        """Return status and text for a client with this token at this address; 0 where nothing answers."""
        headers = {"Authorization": f"Bearer {shown}"} if shown else {}
        opened = http.client.HTTPSConnection(
            "localhost", self.port, timeout=30, source_address=(source, 0), context=self.trusted
        )
        return _answer(opened, path, headers)

    def plainly(self, path: str) -> tuple[int, str]:
        return _answer(http.client.HTTPConnection("localhost", self.plain, timeout=30), path, {})


def _answer(opened: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> tuple[int, str]:
    with contextlib.closing(opened), contextlib.suppress(OSError, http.client.HTTPException):
        opened.request("GET", path, headers=headers)
        answer = opened.getresponse()
        return answer.status, answer.read().decode()
    return 0, ""


class Components:
    """The three processes, as the chart starts them, with tokens of their own accounts."""

    def __init__(self, cluster: ApiServer, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.stops: list[Callable[[], object]] = []

    def account(self, name: str, namespace: str = NAMESPACE) -> Path:
        """Return the folder that the kubelet would mount into a pod of this account."""
        folder = self.folder / f"account-{namespace}-{name}"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token(self.cluster, namespace, name))
        (folder / "ca.crt").write_bytes(self.cluster.ca_file.read_bytes())
        return folder

    def asking(self, account: Path, port: int = 0) -> dict[str, str]:
        """Return the environment of a component that asks the API server, at another port where one is given."""
        own = int(self.cluster.url.rpartition(":")[2])
        return {
            "FALCON_METRICS_READER": READER,
            "FALCON_SERVICE_ACCOUNT_DIR": str(account),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port or own),
        }

    def gateway(self, asking: dict[str, str]) -> Metrics:
        site = Site(self.folder)
        self.stops.append(site.stop)
        port = free_port()
        gateway = site.gateway(FALCON_METRICS_LISTEN=f"127.0.0.1:{port}", **asking)
        plain = int(gateway.pages.rpartition(":")[2])
        return self._up(Metrics(port, plain, ssl.create_default_context(cafile=str(site.control.ca)), gateway.pid))

    def anomalies(self, asking: dict[str, str]) -> Metrics:
        authority = Authority(self.folder / "authority")
        port, tls = free_port(), issue(authority, self.folder / "tls")
        service = Service(self.folder, tls, f"127.0.0.1:{free_port()}", FALCON_METRICS_TLS_PORT=str(port), **asking)
        service.start()
        self.stops.append(service.end)
        trusted = ssl.create_default_context(cafile=str(authority.ca))
        trusted.check_hostname = False  # the certificate has the name of the Service, and this machine's address
        assert service.process is not None
        return self._up(Metrics(port, service.pages, trusted, service.process.pid))

    def operator(self, account: Path) -> Metrics:
        """Start an operator that leads, and trust the authority that it keeps."""
        config = Manifest(json.loads(self.cluster.ok("kubectl", "config", "view", "--raw", "-o", "json")))
        config["users"][0]["user"] = {"tokenFile": str(account / "token")}
        kubeconfig = self.folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        port, webhook = free_port(), free_port()
        operator = Operator(
            self.cluster, NAMESPACE, self.folder, "operator", free_port(), KUBECONFIG=str(kubeconfig),
            FALCON_METRICS_READER=READER, FALCON_METRICS_NAMES="localhost", FALCON_METRICS_TLS_PORT=str(port),
            FALCON_WEBHOOK_CONFIGURATION="falcon-webhook", FALCON_WEBHOOK_NAMES="localhost",
            FALCON_WEBHOOK_PORT=str(webhook),
        )  # fmt: skip
        operator.start()
        self.stops.append(operator.stop)
        find = ("-n", NAMESPACE, "get", "secret", "falcon-metrics-tls", "--ignore-not-found", "-o", "json")
        secret = until(lambda: self.cluster.ok("kubectl", *find))
        authority = base64.b64decode(json.loads(secret)["data"]["ca.crt"]).decode()
        assert operator.process is not None
        trusted = ssl.create_default_context(cadata=authority)
        return self._up(Metrics(port, operator.port, trusted, operator.process.pid, webhook))

    def _up(self, metrics: Metrics) -> Metrics:
        until(lambda: metrics.read()[0])
        until(lambda: metrics.plainly("/healthz")[0] == 200)
        return metrics


def started(components: Components, name: str) -> Metrics:
    account = components.account(ACCOUNTS[name])
    if name == "operator":
        return components.operator(account)
    start = components.gateway if name == "gateway" else components.anomalies
    return start(components.asking(account))
