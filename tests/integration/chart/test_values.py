"""The chart's values: bad ones are refused by name, and every value is described."""

from __future__ import annotations

import pytest
import yaml

from tests.integration.chart.charts import (
    CHART,
    helm,
    template,
)

REFUSED = {
    "unknown key": ("opertor.replicas=1", "opertor"),
    "unknown nested key": ("operator.replica=1", "replica"),
    "three operators": ("operator.replicas=3", "operator/replicas"),
    "replicas as text": ("operator.replicas=one", "operator/replicas"),
    "no gateway": ("gateway.replicas=0", "gateway/replicas"),
    "no handshakes": ("gateway.handshakesPerSecond=0", "gateway/handshakesPerSecond"),
    "nodes without a mask": ("networkPolicy.hostNetworkJobs={10.0.0.1}", "networkPolicy/hostNetworkJobs/0"),
    "two etcds": ("etcd.replicas=2", "etcd/replicas"),
    "three etcds without volumes": ("etcd.replicas=3", "etcd.persistence.enabled=true"),
    "pull policy": ("images.pullPolicy=Sometimes", "images/pullPolicy"),
    "tag with a colon": ("images.agent.tag=a:b", "images/agent/tag"),
    "bad digest": ("images.agent.digest=sha256:12", "images/agent/digest"),
    "no repository": ("images.operator.repository=", "images/operator/repository"),
    "log level": ("operator.logLevel=loud", "operator/logLevel"),
    "bad namespace": ("operator.watchNamespaces={Team A}", "operator/watchNamespaces/0"),
    "figures of another container": ("injected.trainer.resources.limits.cpu=1", "injected"),
    "a GPU for the agent": ("injected.agent.resources.limits.gpu=1", "injected/agent/resources/limits"),
    "memory without a figure": (
        "injected.agent.resources.limits.memory=much",
        "injected/agent/resources/limits/memory",
    ),
    "an annotation that is no text": (
        "operator.spareAnnotations.karpenter\\.sh/do-not-disrupt=true",
        "operator/spareAnnotations/karpenter.sh~1do-not-disrupt",
    ),
    "an annotation without a domain": ("operator.spareAnnotations.idle=x", "invalid propertyName 'idle'"),
    "an annotation of Falcon's own": (
        "operator.spareAnnotations.falcon\\.dev/spare-annotations=x",
        "invalid propertyName 'falcon.dev/spare-annotations'",
    ),
    "two annotations in one": (
        "operator.spareAnnotations.a\\.b/c=x\\,d/e=y",
        "operator/spareAnnotations/a.b~1c",
    ),
    "negative fences": ("operator.fencing.limit=-1", "operator/fencing/limit"),
    "no window": ("operator.fencing.windowSeconds=0", "operator/fencing/windowSeconds"),
    "class of errors": ("operator.errors.rules[0].klass=x", "operator/errors/rules/0"),
    "an anomaly service as text": ("anomalies.enabled=maybe", "anomalies/enabled"),
    "unknown key of it": ("anomalies.replicas=2", "replicas"),
    "tiny quota": ("etcd.quotaBackendBytes=1024", "etcd/quotaBackendBytes"),
    "retention without unit": ("etcd.autoCompactionRetention=10", "etcd/autoCompactionRetention"),
    "volume size": ("etcd.persistence.size=big", "etcd/persistence/size"),
    "external without endpoints": ("etcd.enabled=false", "etcd.external.endpoints is empty"),
    "external without secrets": (
        "etcd.enabled=false,etcd.external.endpoints={https://a:2379}",
        "ca.key, ECDSA: its key, with which the operator makes the gateways' certificate",
    ),
    "external without TLS": (
        "etcd.enabled=false,etcd.external.endpoints={http://a:2379},etcd.external.secretPrefix=x",
        "etcd/external/endpoints/0",
    ),
    "external beside our own": ("etcd.external.secretPrefix=x", "set etcd.enabled=false"),
    "no service account": ("serviceAccount.create=false", "serviceAccount.name is empty"),
    "keep as text": ("crds.keep=yes", "crds/keep"),
    "scrape interval": ("metrics.serviceMonitor.interval=often", "metrics/serviceMonitor/interval"),
}


@pytest.mark.parametrize(("values", "names"), REFUSED.values(), ids=REFUSED.keys())
def test_bad_values_are_refused_by_name(values: str, names: str) -> None:
    done = template("--set", values)
    assert done.returncode != 0, "helm took it"
    assert names in done.stderr


def test_every_value_is_described() -> None:
    """values.yaml and the schema hold the same keys."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(_keys(values, schema, "")) == set(_properties(schema, "")) - {".global"}


def test_an_old_kubernetes_is_refused() -> None:
    done = helm("template", "falcon", str(CHART), "--kube-version", "1.28")
    assert "requires kubeVersion: >=1.29.0-0" in done.stderr


def _keys(values: dict[str, object], schema: dict[str, object], at: str) -> list[str]:
    """Return the paths of the values, down to where the schema stops listing properties."""
    found: list[str] = []
    properties = schema.get("properties")
    assert isinstance(properties, dict)
    for key, value in values.items():
        found.append(f"{at}.{key}")
        inner = properties.get(key, {})
        if isinstance(value, dict) and "properties" in inner:
            found += _keys(value, inner, f"{at}.{key}")
    return found


def _properties(schema: dict[str, object], at: str) -> list[str]:
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)
    found: list[str] = []
    for key, inner in properties.items():
        assert "description" in inner or "$ref" in inner, f"{at}.{key} has no description"
        found += [f"{at}.{key}", *_properties(inner, f"{at}.{key}")]
    return found
