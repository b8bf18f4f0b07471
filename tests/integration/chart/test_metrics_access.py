"""Metrics for clients with a token: what the chart grants, and what its components answer before a real API server."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.anomaly.service_process import Service, issue
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import CHART, NAMESPACE, Manifest, Rendered
from tests.integration.gateway.gateways import Site
from tests.integration.operator.authority import Authority
from tests.integration.operator.cluster import Operator, until
from tests.integration.ports import free_port

READER = "falcon-metrics-reader"
ON = ("--set", "metrics.authentication.enabled=true,anomalies.enabled=true")
ACCOUNTS = {"operator": "falcon", "gateway": "falcon-gateway", "anomalies": "falcon-anomalies"}
DEPLOYMENTS = ("falcon", "falcon-gateway", "falcon-anomalies")


def test_by_default_every_client_may_read_metrics_and_no_account_gets_a_right_for_it() -> None:
    chart = Rendered("--set", "anomalies.enabled=true")
    written = json.dumps(list(chart.objects.values()))
    for word in ("tokenreviews", "subjectaccessreviews", READER, "8444", "FALCON_METRICS_READER", "metrics-tls"):
        assert word not in written
    for name in ("falcon-gateway", "falcon-anomalies"):
        assert chart("Deployment", name)["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert ("ServiceAccount", "falcon-gateway") not in chart.objects
    # values that an earlier release has stored (helm upgrade --reuse-values)
    earlier = Rendered("--set", "anomalies.enabled=true,metrics.authentication=null,networkPolicy.apiServerPorts=null")
    assert earlier.objects == chart.objects


def test_the_rights_are_those_of_the_three_that_ask() -> None:
    chart = Rendered(*ON)
    assert chart("ClusterRole", READER)["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    asking = {
        (group, resource, verb)
        for rule in chart("ClusterRole", "falcon-token-reviews")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asking == {
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    }
    subjects = chart("ClusterRoleBinding", "falcon-token-reviews")["subjects"]
    assert {(each["name"], each["namespace"]) for each in subjects} == {(name, NAMESPACE) for name in ACCOUNTS.values()}
    for deployment, account in zip(DEPLOYMENTS, ACCOUNTS.values(), strict=True):
        spec = chart("Deployment", deployment)["spec"]["template"]["spec"]
        assert (spec["serviceAccountName"], spec.get("automountServiceAccountToken", True)) == (account, True)
        assert ("ServiceAccount", account) in chart.objects
    only = Rendered("--set", "metrics.authentication.enabled=true")("ClusterRoleBinding", "falcon-token-reviews")
    assert {each["name"] for each in only["subjects"]} == {"falcon", "falcon-gateway"}


def test_the_operator_keeps_two_more_secrets() -> None:
    def named(*flags: str) -> set[str]:
        rules = [rule for rule in Rendered(*flags)("Role", "falcon")["rules"] if "secrets" in rule["resources"]]
        return {name for rule in rules for name in rule.get("resourceNames", [])}

    assert named(*ON) - named("--set", "anomalies.enabled=true") == {"falcon-metrics-ca", "falcon-metrics-tls"}


def test_the_port_is_reached_as_that_of_health_and_probes_stay_where_they_are() -> None:
    chart = Rendered(*ON)
    for deployment, service in zip(
        DEPLOYMENTS, ("falcon-metrics", "falcon-gateway-metrics", DEPLOYMENTS[2]), strict=True
    ):
        (container,) = chart("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
        assert {"name": "https", "containerPort": 8444} in container["ports"]
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == "http"
            assert "scheme" not in container[probe]["httpGet"]
        assert {"name": "https", "port": 8444, "targetPort": "https"} in chart("Service", service)["spec"]["ports"]
        (rule,) = (
            rule for rule in chart("NetworkPolicy", deployment)["spec"]["ingress"] if {"port": "https"} in rule["ports"]
        )
        assert rule["ports"] == [{"port": "http"}, {"port": "https"}]
        assert rule["from"][1:] == [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ]


def test_the_environment_is_that_which_the_processes_below_read() -> None:
    chart = Rendered(*ON)
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    asking = {"FALCON_METRICS_READER": READER, "FALCON_SERVICE_ACCOUNT_DIR": account}
    wanted = {
        "falcon": {"FALCON_METRICS_READER": READER, "FALCON_METRICS_TLS_PORT": "8444"},
        "falcon-gateway": {**asking, "FALCON_METRICS_LISTEN": ":8444"},
        "falcon-anomalies": {**asking, "FALCON_METRICS_TLS_PORT": "8444"},
    }
    for deployment, environment in wanted.items():
        (container,) = chart("Deployment", deployment)["spec"]["template"]["spec"]["containers"]
        given = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert environment.items() <= given.items()


def test_the_anomaly_service_alone_is_let_out_to_the_api_server() -> None:
    ports = ("--set", "networkPolicy.apiServerPorts={443,16443}")
    (reached,) = (
        rule
        for rule in Rendered(*ON, *ports)("NetworkPolicy", "falcon-anomalies")["spec"]["egress"]
        if {"port": 443} in rule["ports"]
    )
    assert reached == {"ports": [{"port": 443}, {"port": 16443}]}
    stored = Rendered(*ON, "--set", "networkPolicy.apiServerPorts=null")("NetworkPolicy", "falcon-anomalies")
    assert {"ports": [{"port": 443}, {"port": 6443}]} in stored["spec"]["egress"]


def test_a_service_monitor_shows_a_token_to_a_server_whose_name_it_checks() -> None:
    chart = Rendered(*ON, "--set", "metrics.serviceMonitor.enabled=true")
    hosts = {
        "falcon": (f"falcon-metrics.{NAMESPACE}.svc", "falcon-metrics-tls"),
        "falcon-gateway": (f"falcon-gateway.{NAMESPACE}.svc", "falcon-gateway-tls"),
        "falcon-anomalies": (f"falcon-anomalies.{NAMESPACE}.svc", "falcon-anomalies-tls"),
    }
    assert chart.operator_env()["FALCON_METRICS_NAMES"] == hosts["falcon"][0]
    for name, (host, secret) in hosts.items():
        (endpoint,) = chart("ServiceMonitor", name)["spec"]["endpoints"]
        assert (endpoint["port"], endpoint["scheme"], endpoint["path"]) == ("https", "https", "/metrics")
        assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
        assert endpoint["tlsConfig"] == {"serverName": host, "ca": {"secret": {"name": secret, "key": "ca.crt"}}}


# -- before a real API server ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServer]:
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
        return self._up(Metrics(port, plain, ssl.create_default_context(cafile=str(site.control.ca))))

    def anomalies(self, asking: dict[str, str]) -> Metrics:
        authority = Authority(self.folder / "authority")
        port, tls = free_port(), issue(authority, self.folder / "tls")
        service = Service(self.folder, tls, f"127.0.0.1:{free_port()}", FALCON_METRICS_TLS_PORT=str(port), **asking)
        service.start()
        self.stops.append(service.end)
        trusted = ssl.create_default_context(cafile=str(authority.ca))
        trusted.check_hostname = False  # the certificate has the name of the Service, and this machine's address
        return self._up(Metrics(port, service.pages, trusted))

    def operator(self, account: Path) -> Metrics:
        """Start an operator that leads, and trust the authority that it keeps."""
        config = Manifest(json.loads(self.cluster.ok("kubectl", "config", "view", "--raw", "-o", "json")))
        config["users"][0]["user"] = {"tokenFile": str(account / "token")}
        kubeconfig = self.folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        port = free_port()
        operator = Operator(
            self.cluster, NAMESPACE, self.folder, "operator", free_port(), KUBECONFIG=str(kubeconfig),
            FALCON_METRICS_READER=READER, FALCON_METRICS_NAMES="localhost", FALCON_METRICS_TLS_PORT=str(port),
        )  # fmt: skip
        operator.start()
        self.stops.append(operator.stop)
        find = ("-n", NAMESPACE, "get", "secret", "falcon-metrics-tls", "--ignore-not-found", "-o", "json")
        secret = until(lambda: self.cluster.ok("kubectl", *find))
        authority = base64.b64decode(json.loads(secret)["data"]["ca.crt"]).decode()
        return self._up(Metrics(port, operator.port, ssl.create_default_context(cadata=authority)))

    def _up(self, metrics: Metrics) -> Metrics:
        until(lambda: metrics.read()[0])
        until(lambda: metrics.plainly("/healthz")[0] == 200)
        return metrics


@pytest.fixture
def components(cluster: ApiServer, tmp_path: Path) -> Iterator[Components]:
    made = Components(cluster, tmp_path)
    yield made
    for stop in made.stops:
        stop()


def started(components: Components, name: str) -> Metrics:
    account = components.account(ACCOUNTS[name])
    if name == "operator":
        return components.operator(account)
    start = components.gateway if name == "gateway" else components.anomalies
    return start(components.asking(account))


@pytest.mark.parametrize(
    ("name", "metric"),
    [("operator", "falcon_leading"), ("gateway", "falcon_gateway_connections"), ("anomalies", "falcon_anomaly")],
)
def test_metrics_are_for_the_clients_that_rbac_lets_read_them(components: Components, name: str, metric: str) -> None:
    metrics = started(components, name)
    status, text = metrics.read()
    assert (status, "Authorization: Bearer" in text, READER in text) == (401, True, True)
    status, text = metrics.read("no-token-of-this-cluster")
    assert (status, "does not know this token" in text) == (401, True)
    status, text = metrics.read(token(components.cluster, "team", "tenant"))
    remedy = f"system:serviceaccount:team:tenant may not get /metrics: bind it to the ClusterRole {READER}"
    assert (status, remedy in text) == (403, True)
    status, text = metrics.read(token(components.cluster, "monitoring", "prometheus"))
    assert (status, metric in text) == (200, True)
    status, text = metrics.plainly("/metrics")
    assert (status, f"HTTPS at port {metrics.port}" in text, metric in text) == (426, True, False)
    assert metrics.plainly("/healthz")[0] == 200, "a kubelet has no token"
    assert metrics.read(path="/healthz")[0] == 404


@pytest.mark.parametrize("name", ["gateway", "anomalies"])
def test_without_an_answer_of_the_api_server_there_is_one_all_the_same(components: Components, name: str) -> None:
    silent = socket.create_server(("127.0.0.1", free_port()))  # it accepts, and never answers
    components.stops.append(silent.close)
    start = components.gateway if name == "gateway" else components.anomalies
    account = components.account(ACCOUNTS[name])
    metrics = start(components.asking(account, silent.getsockname()[1]))
    status, text = metrics.read(token(components.cluster, "monitoring", "prometheus"))
    assert (status, "tokens cannot be checked now" in text) == (503, True)
    assert metrics.plainly("/healthz")[0] == 200


@pytest.mark.parametrize("name", ["gateway", "anomalies"])
def test_a_component_without_the_right_says_so(components: Components, name: str) -> None:
    start = components.gateway if name == "gateway" else components.anomalies
    metrics = start(components.asking(components.account("tenant", "team")))
    status, text = metrics.read(token(components.cluster, "monitoring", "prometheus"))
    assert (status, 'cannot create resource "tokenreviews"' in text) == (503, True)


@pytest.mark.parametrize("name", ["gateway", "anomalies"])
def test_many_wrong_tokens_from_many_addresses_keep_no_reader_out(components: Components, name: str) -> None:
    metrics = started(components, name)
    reader = token(components.cluster, "monitoring", "prometheus")
    assert metrics.read(reader)[0] == 200

    def flood(source: int) -> list[int]:
        return [metrics.read(f"wrong-{source}-{number}", source=f"127.0.1.{source}")[0] for number in range(20)]

    with ThreadPoolExecutor(8) as attackers:
        floods = [attackers.submit(flood, source) for source in range(1, 17)]
        answers = [metrics.read(reader)[0] for _ in range(20)]
        assert answers == [200] * 20
        refused = [status for each in floods for status in each.result()]
    assert set(refused) <= {0, 401, 503}  # 0: the connection was closed for a newer one, or came too fast
    assert 401 in refused
    assert metrics.plainly("/healthz")[0] == 200
