"""The chart's rules and the operator's calls are the same set: no call is refused, and no right lies idle."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.manifests.pods import secret_name
from tests.integration.chart.calls import (
    Right,
    client_rights,
    definition_rights,
    own_rights,
    rights_of,
    watch_rights,
    webhook_rights,
)
from tests.integration.chart.charts import Rendered

EXTERNAL = "etcd.enabled=false,etcd.external.secretPrefix=shared,etcd.external.endpoints={https://a:1}"
PODS = {Right("", "pods", verb) for verb in ("create", "delete", "get", "list", "watch")}  # burn-ins, at home


def granted(*rules: dict[str, Any]) -> set[Right]:
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_what_concerns_the_cluster_and_the_jobs() -> None:
    chart = Rendered()
    rights = granted(*chart("ClusterRole", "falcon")["rules"], *chart("ClusterRole", "falcon-jobs")["rules"])
    at_home = {right for right in webhook_rights() if right.resource == "secrets"}
    assert rights == client_rights() | watch_rights() | definition_rights() | (webhook_rights() - at_home)


def test_what_it_keeps_at_home() -> None:
    assert granted(*Rendered()("Role", "falcon")["rules"]) == own_rights() | PODS


def test_of_an_external_etcd_it_only_reads_the_certificates() -> None:
    rules = Rendered("--set", EXTERNAL)("Role", "falcon")["rules"]
    named = {name: rule["verbs"] for rule in rules for name in rule.get("resourceNames", [])}
    assert named == {
        "shared-ca": ["get"],
        "shared-root": ["get"],
        "falcon-gateway-tls": ["get", "update"],
        "falcon-jobs-ca": ["get", "update"],
        "falcon-webhook-ca": ["get", "update"],
        "falcon-webhook-tls": ["get", "update"],
    }
    assert granted(*rules) == own_rights() | PODS


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/api/v1/nodes", Right("", "nodes", "list")),
        ("GET", "/api/v1/namespaces/n/pods/p", Right("", "pods", "get")),
        ("PUT", "/apis/falcon.dev/v1alpha1/warmpools/w/status", Right("falcon.dev", "warmpools/status", "update")),
    ],
)
def test_a_request_needs_this_right(method: str, path: str, right: Right) -> None:
    """The reckoning itself."""
    assert rights_of(method, path) == {right}


def test_only_with_the_anomaly_service_does_it_keep_that_services_certificate() -> None:
    def named(*flags: str) -> set[str]:
        rules = [rule for rule in Rendered(*flags)("Role", "falcon")["rules"] if "secrets" in rule["resources"]]
        return {name for rule in rules for name in rule.get("resourceNames", [])}

    assert named("--set", "anomalies.enabled=true") - named() == {"falcon-anomalies-tls"}


ANOMALIES = "anomalies.enabled=true"


@pytest.mark.parametrize(
    "flags", [(), ("--set", EXTERNAL), ("--set", ANOMALIES)], ids=["own-etcd", "external-etcd", "anomalies"]
)
def test_no_job_has_a_secret_of_the_name_of_one_of_the_releases(flags: tuple[str, ...]) -> None:
    """Jobs may live in the release's namespace, and `prod-falcon` is what a release named `prod` is called."""
    chart = Rendered(*flags, release="prod")
    gateway = chart("Deployment", "prod-falcon-gateway")["spec"]["template"]["spec"]
    pods = [gateway]
    if ("Deployment", "prod-falcon-anomalies") in chart.objects:
        pods.append(chart("Deployment", "prod-falcon-anomalies")["spec"]["template"]["spec"])
    mounted = {volume["secret"]["secretName"] for pod in pods for volume in pod["volumes"] if "secret" in volume}
    named = {name for rule in chart("Role", "prod-falcon")["rules"] for name in rule.get("resourceNames", [])}
    assert mounted <= named
    suffix = secret_name(TrainingJob(metadata=ObjectMeta(name=""), spec=TrainingJobSpec(replicas=1, template={})))
    assert not any(name.endswith(suffix) for name in named)
