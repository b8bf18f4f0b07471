"""The chart's anomaly service: what the pod gets, whom it reaches, and that it is off unless somebody wants it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from falcon_anomaly.queries.specification import parse
from falcon_anomaly.settings import Settings
from falcon_operator.api.common import LABEL_JOB
from tests.integration.chart.charts import LOCAL_VALUES, NAMESPACE, Manifest, Rendered, template

ON = ("--set", "anomalies.enabled=true")


def pod(chart: Rendered) -> Manifest:
    spec: Manifest = chart("Deployment", "falcon-anomalies")["spec"]["template"]["spec"]
    return spec


def test_it_is_off_and_leaves_nothing_behind() -> None:
    chart = Rendered()
    assert not [name for _, name in chart.objects if "anomal" in name or name.endswith("-series")]
    assert chart.operator_env()["FALCON_ANOMALY_SERVICE"] == ""
    env = Rendered(*ON).operator_env()
    assert env["FALCON_ANOMALY_SERVICE"] == f"falcon-anomalies.{NAMESPACE}.svc:8443"


def test_its_environment_is_what_it_reads() -> None:
    chart = Rendered(*ON, "--set", "metrics.authentication.enabled=true")
    (container,) = pod(chart)["containers"]
    given: dict[str, Any] = {entry["name"]: entry.get("value") for entry in container["env"]}
    only_asked_for = {"prometheus", "prometheus_dir"}
    assert {name.removeprefix("FALCON_").lower() for name in given} == set(Settings.model_fields) - only_asked_for
    host, _, port = given["FALCON_GATEWAYS"].rpartition(":")
    series = chart("Service", "falcon-gateway-series")["spec"]
    assert (host, series["clusterIP"]) == (f"falcon-gateway-series.{NAMESPACE}.svc", "None")
    assert series["ports"] == [{"name": "operator", "port": int(port), "targetPort": "operator"}]
    labels = chart("Deployment", "falcon-gateway")["spec"]["template"]["metadata"]["labels"]
    assert series["selector"].items() <= labels.items()
    assert given["FALCON_GATEWAY_NAME"] == chart.operator_env()["FALCON_GATEWAYS"].partition(":")[0]
    (mount,) = container["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"]) == (given["FALCON_TLS_DIR"], True)
    prefix = chart.operator_env()["FALCON_GATEWAY_SECRET_PREFIX"]
    (volume,) = pod(chart)["volumes"]
    assert volume["secret"]["secretName"] == given["FALCON_TLS_SECRET"] == f"{prefix}-anomalies-tls"


def test_the_operator_asks_where_it_listens() -> None:
    chart = Rendered(*ON)
    address = chart.operator_env()["FALCON_ANOMALY_SERVICE"]
    service = chart("Service", address.split(".")[0])["spec"]
    (container,) = pod(chart)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["port"] for port in service["ports"]} == set(ports.values()) == {8443, 8080}
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["FALCON_PORT"], env["FALCON_METRICS_PORT"]) == (str(ports["verdicts"]), str(ports["http"]))
    template = chart("Deployment", "falcon-anomalies")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= template.items()
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "http"


def test_it_has_no_rights_and_no_token() -> None:
    chart = Rendered(*ON)
    account = pod(chart)["serviceAccountName"]
    assert chart("ServiceAccount", account)["automountServiceAccountToken"] is False
    assert pod(chart)["automountServiceAccountToken"] is False
    subjects = [
        subject["name"]
        for (kind, _), found in chart.objects.items()
        if kind in ("RoleBinding", "ClusterRoleBinding")
        for subject in found["subjects"]
    ]
    assert subjects
    assert account not in subjects


def components(peers: list[Manifest]) -> list[str]:
    return [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers]


def test_it_reaches_gateways_and_names_alone_and_only_the_operator_asks_it() -> None:
    chart = Rendered(*ON)
    policy = chart("NetworkPolicy", "falcon-anomalies")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    verdicts, pages = policy["ingress"]
    assert (verdicts["ports"], components(verdicts["from"])) == ([{"port": "verdicts"}], ["operator"])
    assert pages["ports"] == [{"port": "http"}]
    assert components(pages["from"][:1]) == ["test"]
    gateways, names = policy["egress"]
    assert (gateways["ports"], components(gateways["to"])) == ([{"port": "operator"}], ["gateway"])
    assert {port["port"] for port in names["ports"]} == {53}
    (let_in,) = (
        rule
        for rule in chart("NetworkPolicy", "falcon-gateway")["spec"]["ingress"]
        if rule["ports"] == [{"port": "operator"}]
    )
    assert components(let_in["from"]) == ["operator", "anomalies"]
    assert ("NetworkPolicy", "falcon-anomalies") not in Rendered(*ON, "--set", "networkPolicy.enabled=false").objects


def test_options_reach_its_pod() -> None:
    flags = (
        "anomalies.nodeSelector.a=b,anomalies.podLabels.c=d,anomalies.podAnnotations.e=f,anomalies.logLevel=debug,"
        "anomalies.priorityClassName=high,anomalies.tolerations[0].key=gpu,images.pullSecrets={pull},"
        "anomalies.resources.limits.memory=1Gi,metrics.serviceMonitor.enabled=true"
    )
    chart = Rendered(*ON, "--set", flags)
    template = chart("Deployment", "falcon-anomalies")["spec"]["template"]
    spec = template["spec"]
    assert (template["metadata"]["labels"]["c"], template["metadata"]["annotations"]["e"]) == ("d", "f")
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"a": "b"}, "high")
    assert (spec["tolerations"][0], spec["imagePullSecrets"]) == ({"key": "gpu"}, [{"name": "pull"}])
    (container,) = spec["containers"]
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert {"name": "FALCON_LOG_LEVEL", "value": "debug"} in container["env"]
    assert ("ServiceMonitor", "falcon-anomalies") in chart.objects
    first = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
    assert first["podAffinityTerm"]["labelSelector"]["matchExpressions"] == [{"key": LABEL_JOB, "operator": "Exists"}]


def test_agents_see_gpus_only_where_the_service_runs_and_the_platform_asks_for_it() -> None:
    asked = ("--set", "anomalies.gpuSeries=true")
    values = [Rendered(*flags).operator_env()["FALCON_GPU_SERIES"] for flags in ((), ON, asked, (*ON, *asked))]
    assert values == ["false", "false", "false", "true"]


PROMETHEUS = {
    "anomalies": {
        "enabled": True,
        "prometheus": {
            "url": "https://prometheus.monitoring.svc:9090",
            "queries": [
                {
                    "metric": "link_drops",
                    "query": 'rate(drops{device="eth0"}[1m])',
                    "like": "nic_errors",
                    "by": "node",
                    "nodeLabel": "instance",
                },
                {
                    "metric": "heat",
                    "query": "heat",
                    "rankLabel": "gpu",
                    "podLabel": "exported_pod",
                    "namespaceLabel": "exported_namespace",
                },
            ],
            "secretName": "prometheus-access",
        },
    }
}


def asking(folder: Path, **changes: Any) -> tuple[str, ...]:
    """Return the flags that render the chart with queries; ``changes`` are of anomalies.prometheus."""
    prometheus = {**PROMETHEUS["anomalies"]["prometheus"], **changes}  # type: ignore[dict-item]
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"anomalies": {"enabled": True, "prometheus": prometheus}}))
    return ("--values", str(file))


def test_queries_reach_the_service_as_they_are_written(tmp_path: Path) -> None:
    chart = Rendered(*asking(tmp_path))
    (container,) = pod(chart)["containers"]
    given = {entry["name"]: entry.get("value") for entry in container["env"]}
    found = parse(given["FALCON_PROMETHEUS"])
    assert found is not None
    assert found.url == "https://prometheus.monitoring.svc:9090"
    assert found.pods == 'kube_pod_info{job="kube-state-metrics"}'
    drops, heat = found.queries
    assert (drops.query, drops.name, drops.by, drops.node_label) == (
        'rate(drops{device="eth0"}[1m])',
        "nic_errors:link_drops",
        "node",
        "instance",
    )
    assert (heat.rank_label, heat.pod_label, heat.namespace_label) == ("gpu", "exported_pod", "exported_namespace")
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert (mounts["prometheus"]["mountPath"], mounts["prometheus"]["readOnly"]) == (
        given["FALCON_PROMETHEUS_DIR"],
        True,
    )
    volumes = {volume["name"]: volume for volume in pod(chart)["volumes"]}
    assert volumes["prometheus"]["secret"] == {
        "secretName": "prometheus-access",
        "defaultMode": 0o440,
        "optional": True,
    }


def test_it_reaches_prometheus_where_it_is_asked_and_nowhere_else(tmp_path: Path) -> None:
    where = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    rule = {"ports": [{"port": 9090}], "to": where}
    assert rule in Rendered(*asking(tmp_path))("NetworkPolicy", "falcon-anomalies")["spec"]["egress"]
    (tmp_path / "another").mkdir()
    elsewhere = asking(tmp_path / "another", egressTo=[{"podSelector": {}}], egressPort=8080)
    egress = Rendered(*elsewhere)("NetworkPolicy", "falcon-anomalies")["spec"]["egress"]
    assert {"ports": [{"port": 8080}], "to": [{"podSelector": {}}]} in egress
    assert rule not in egress
    assert len(Rendered(*ON)("NetworkPolicy", "falcon-anomalies")["spec"]["egress"]) == 2


def test_without_a_secret_none_is_mounted(tmp_path: Path) -> None:
    chart = Rendered(*asking(tmp_path, url="http://prometheus:9090", secretName=""))
    assert [volume["name"] for volume in pod(chart)["volumes"]] == ["tls"]
    (container,) = pod(chart)["containers"]
    assert "FALCON_PROMETHEUS_DIR" not in {entry["name"] for entry in container["env"]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"url": ""}, "anomalies.prometheus.url is empty"),
        ({"secretName": ""}, "name a Secret whose ca.crt"),
        ({"url": "prometheus:9090"}, "url"),
        ({"queries": [{"metric": "a"}]}, "query"),
        ({"queries": [{"metric": "A b", "query": "a"}]}, "metric"),
        ({"queries": [{"metric": "a", "query": "a", "rank": "gpu"}]}, "rank"),
        ({"pods": "kube_pod_info or up"}, "pods"),
        ({"egressPort": 0}, "egressPort"),
    ],
)
def test_values_that_cannot_be_meant_are_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    done = template(*asking(tmp_path, **changes))
    assert done.returncode != 0
    assert named in done.stderr


def test_its_local_image_is_never_pulled() -> None:
    (container,) = pod(Rendered(*ON, "--values", str(LOCAL_VALUES)))["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("localhost/falcon/anomaly:dev", "Never")


def test_values_of_a_release_without_it_go_on(tmp_path: Any) -> None:
    """An installation's own file of values says nothing of it."""
    values = tmp_path / "values.yaml"
    values.write_text("operator: {replicas: 2}\nimages: {registry: registry.example.com}\n")
    chart = Rendered("--values", str(values))
    assert chart("Deployment", "falcon")["spec"]["replicas"] == 2
    assert chart.operator_env()["FALCON_ANOMALY_SERVICE"] == ""


def test_the_operator_may_change_one_config_map_for_it_and_the_service_still_nothing() -> None:
    chart = Rendered(*ON)
    name = chart.operator_env()["FALCON_ANOMALY_MODELS"]
    made = chart("ConfigMap", name)
    assert "data" not in made, "an upgrade would undo what is learned"
    rules = [rule for rule in chart("Role", "falcon")["rules"] if "configmaps" in rule["resources"]]
    assert rules == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "patch"]}
    ]
    for values in ((), (*ON, "--set", "anomalies.learning.enabled=false")):
        without = Rendered(*values)
        assert without.operator_env()["FALCON_ANOMALY_MODELS"] == ""
        assert ("ConfigMap", name) not in without.objects
        assert not [rule for rule in without("Role", "falcon")["rules"] if "configmaps" in rule["resources"]]
