"""What the installed operator may do, asked of a real kube-apiserver; its pods pass Pod Security "restricted"."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import CHART, NAMESPACE, Rendered

OPERATOR = f"system:serviceaccount:{NAMESPACE}:falcon"
POLICY_TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServer]:
    """The chart installed for all namespaces, and a team's namespace."""
    with running_apiserver() as server:
        server.ok("helm", "install", "falcon", str(CHART), "-n", NAMESPACE, "--create-namespace")
        server.ok("kubectl", "create", "namespace", "team")
        yield server


def may(cluster: ApiServer, verb: str, resource: str, namespace: str = "team", user: str = OPERATOR) -> bool:
    kind, _, subresource = resource.partition("/")
    flags = ("--subresource", subresource) if subresource and not subresource.startswith("falcon-") else ()
    target = kind if flags else resource
    done = cluster.run("kubectl", "auth", "can-i", verb, target, *flags, "-n", namespace, "--as", user)
    assert done.stdout.strip() in {"yes", "no"}, done.stderr
    return done.stdout.strip() == "yes"


@pytest.mark.parametrize(
    "granted",
    [
        "list trainingjobs",
        "watch trainingjobs",
        "delete trainingjobs",
        "patch trainingjobs/status",
        "list warmpools",
        "patch warmpools/status",
        "create pods",
        "delete pods",
        "watch pods",
        "create services",
        "create secrets",
        "update secrets",
        "watch nodes",
        "patch nodes",
        "create events",
    ],
)
def test_the_operator_may(cluster: ApiServer, granted: str) -> None:
    verb, resource = granted.split()
    assert may(cluster, verb, resource)


@pytest.mark.parametrize(
    "denied",
    [
        "get secrets",
        "list secrets",
        "watch secrets",
        "patch secrets",
        "delete secrets",
        "create trainingjobs",
        "update trainingjobs",
        "delete warmpools",
        "delete nodes",
        "update nodes",
        "create pods/exec",
        "get pods/log",
        "update pods",
        "create serviceaccounts/token",
        "create clusterroles",
        "get configmaps",
        "create leases",
    ],
)
def test_the_operator_may_not(cluster: ApiServer, denied: str) -> None:
    verb, resource = denied.split()
    assert not may(cluster, verb, resource)


def test_in_its_own_namespace_it_reads_its_own_secrets_alone(cluster: ApiServer) -> None:
    assert may(cluster, "create", "leases", NAMESPACE)
    assert may(cluster, "get", "secrets/falcon-etcd-ca", NAMESPACE)
    assert may(cluster, "update", "secrets/falcon-etcd-server", NAMESPACE)
    assert not may(cluster, "get", "secrets/someone-elses", NAMESPACE)
    assert not may(cluster, "list", "secrets", NAMESPACE)


def test_it_writes_no_other_secret_of_a_job(cluster: ApiServer) -> None:
    """The policy takes effect a moment after it was installed."""

    def create(name: str) -> str:
        return cluster.run(
            "kubectl", "create", "secret", "generic", name, "-n", "team", "--dry-run=server", "--as", OPERATOR
        ).stderr

    deadline = time.monotonic() + POLICY_TIMEOUT_SECONDS
    while "may write only Secrets named <job>-falcon-etcd" not in (refusal := create("database")):
        assert time.monotonic() < deadline, f"not refused: {refusal}"
        time.sleep(0.2)
    assert create("gpt2-falcon-etcd") == ""


@pytest.mark.parametrize(("role", "verb", "allowed"), [("edit", "create", True), ("view", "create", False)])
def test_users_get_rights_through_the_default_roles(cluster: ApiServer, role: str, verb: str, allowed: bool) -> None:
    """No controller aggregates here, so what would be aggregated is bound itself."""
    user = f"{role}or"
    cluster.ok("kubectl", "create", "rolebinding", user, "-n", "team", f"--clusterrole=falcon-{role}", f"--user={user}")
    labels = json.loads(cluster.ok("kubectl", "get", "clusterrole", f"falcon-{role}", "-o", "json"))["metadata"][
        "labels"
    ]
    assert labels[f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"
    assert may(cluster, verb, "trainingjobs", user=user) is allowed


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Deployment", "falcon"),
        ("StatefulSet", "falcon-etcd"),
        ("Pod", "falcon-test-operator"),
        ("Pod", "falcon-test-etcd"),
    ],
)
def test_pods_pass_pod_security_restricted(cluster: ApiServer, kind: str, name: str) -> None:
    namespace = f"restricted-{name}"
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    enforced = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": label}}
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(enforced))
    workload = Rendered()(kind, name)
    spec = workload["spec"] if kind == "Pod" else workload["spec"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": namespace}, "spec": spec}
    cluster.ok("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    loose = json.loads(json.dumps(pod))
    loose["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = cluster.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(loose))
    assert "violates PodSecurity" in refused.stderr
