"""Metrics for clients with a token: what the chart grants, and what its components answer before a real API server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.api.apiserver import ApiServer
from tests.integration.chart.charts import NAMESPACE, Rendered
from tests.integration.chart.components import ACCOUNTS, ON, READER, Components, cluster_with_chart, started, token
from tests.integration.ports import free_port

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
    with cluster_with_chart() as server:
        yield server


@pytest.fixture
def components(cluster: ApiServer, tmp_path: Path) -> Iterator[Components]:
    made = Components(cluster, tmp_path)
    yield made
    for stop in made.stops:
        stop()


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
