"""What the installed operator may do, asked of a real kube-apiserver; its pods pass Pod Security "restricted"."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from falcon_operator.base.spare_annotations import RECORD
from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import CHART, NAMESPACE, Rendered
from tests.integration.operator.cluster import until

KEEP, DISABLED = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/scale-down-disabled"
EARLIER = "example.com/keep"  # of an earlier setting
OPERATOR = f"system:serviceaccount:{NAMESPACE}:falcon"
POLICY_TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServer]:
    """Yield the chart installed for all namespaces, and a team's namespace."""
    with running_apiserver() as server:
        installed = ["-n", NAMESPACE, "--create-namespace", "--set", "anomalies.enabled=true"]
        installed += ["--set-json", f"operator.spareAnnotations={json.dumps({KEEP: 'true', DISABLED: 'true'})}"]
        server.ok("helm", "install", "falcon", str(CHART), *installed)
        server.ok("kubectl", "create", "namespace", "team")
        yield server


GROUPS = {
    "trainingjobs": "falcon.dev",
    "trainingruns": "falcon.dev",
    "warmpools": "falcon.dev",
    "poddisruptionbudgets": "policy",
    "validatingwebhookconfigurations": "admissionregistration.k8s.io",
    "leases": "coordination.k8s.io",
    "clusterroles": "rbac.authorization.k8s.io",
}


def may(cluster: ApiServer, verb: str, resource: str, namespace: str = "team", user: str = OPERATOR) -> bool:
    """Ask the server as that user, as ``kubectl auth can-i`` does.

    ``resource``: with a subresource, if any; of Secrets and webhooks, with the name of one.
    """
    kind, _, rest = resource.partition("/")
    kind, _, group = kind.partition(".")
    asked = {"namespace": namespace, "verb": verb, "group": group or GROUPS.get(kind, ""), "resource": kind}
    if rest:
        asked["name" if kind in ("secrets", "validatingwebhookconfigurations") else "subresource"] = rest
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, user)
    allowed = answer["status"]["allowed"]
    assert isinstance(allowed, bool)
    return allowed


@pytest.mark.parametrize(
    "granted",
    [
        "list trainingjobs",
        "watch trainingjobs",
        "delete trainingjobs",
        "update trainingjobs/status",
        "create trainingruns",
        "update trainingruns",
        "watch trainingruns",
        "list warmpools",
        "update warmpools/status",
        "create pods",
        "delete pods",
        "watch pods",
        "create services",
        "get services",
        "patch services",
        "delete services",
        "get poddisruptionbudgets",
        "delete poddisruptionbudgets",
        "list limitranges",
        "list resourcequotas",
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
        "list services",
        "get limitranges",
        "watch resourcequotas",
        "update services",
        "list poddisruptionbudgets",
        "create poddisruptionbudgets",
        "patch validatingwebhookconfigurations",
        "create validatingwebhookconfigurations",
        "patch trainingjobs/status",
        "update trainingjobs/finalizers",
        "patch trainingruns",
        "patch warmpools/status",
        "create events.events.k8s.io",
    ],
)
def test_the_operator_may_not(cluster: ApiServer, denied: str) -> None:
    verb, resource = denied.split()
    assert not may(cluster, verb, resource)


def test_of_webhooks_it_changes_its_own_alone(cluster: ApiServer) -> None:
    assert may(cluster, "patch", "validatingwebhookconfigurations/falcon-webhook")
    assert not may(cluster, "patch", "validatingwebhookconfigurations/another")
    assert not may(cluster, "delete", "validatingwebhookconfigurations/falcon-webhook")


def test_in_its_own_namespace_it_reads_its_own_secrets_alone(cluster: ApiServer) -> None:
    assert may(cluster, "update", "leases", NAMESPACE)
    assert not may(cluster, "patch", "leases", NAMESPACE)
    assert may(cluster, "get", "secrets/falcon-etcd-ca", NAMESPACE)
    assert may(cluster, "update", "secrets/falcon-etcd-server", NAMESPACE)
    assert may(cluster, "update", "secrets/falcon-jobs-ca", NAMESPACE)
    assert may(cluster, "update", "secrets/falcon-gateway-tls", NAMESPACE)
    assert not may(cluster, "get", "secrets/someone-elses", NAMESPACE)
    assert not may(cluster, "list", "secrets", NAMESPACE)


@pytest.mark.parametrize("namespace", [NAMESPACE, "team"])
def test_the_anomaly_service_may_nothing(cluster: ApiServer, namespace: str) -> None:
    """Its account has no role; what every account may (ask for its own rights) is all that is left."""
    user = f"system:serviceaccount:{NAMESPACE}:falcon-anomalies"
    assert may(cluster, "get", "secrets/falcon-anomalies-tls", NAMESPACE), (
        "the operator may, so the question is asked right"
    )
    for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
        for resource in (
            "pods",
            "secrets",
            "configmaps",
            "services",
            "nodes",
            "trainingjobs",
            "trainingruns",
            "events",
        ):
            assert not may(cluster, verb, resource, namespace, user), f"{verb} {resource}"


def test_it_writes_no_other_secret_of_a_job(cluster: ApiServer) -> None:
    """The policy takes effect a moment after it was installed."""

    def create(name: str) -> str:
        return cluster.run(
            "kubectl", "create", "secret", "generic", name, "-n", "team", "--dry-run=server", "--as", OPERATOR
        ).stderr

    deadline = time.monotonic() + POLICY_TIMEOUT_SECONDS
    while "may write only Secrets named <job>-falcon-gateway" not in (refusal := create("database")):
        assert time.monotonic() < deadline, f"not refused: {refusal}"
        time.sleep(0.2)
    assert create("gpt2-falcon-gateway") == ""


OWNERS = {
    "Service": {"kind": "TrainingJob", "name": "gpt2"},
    "Secret": {"kind": "TrainingJob", "name": "gpt2"},
    "PodDisruptionBudget": {"kind": "TrainingJob", "name": "gpt2"},
    "TrainingRun": {"kind": "TrainingJob", "name": "gpt2"},
    "Pod": {"kind": "WarmPool", "name": "spares"},
}
NAMES = {"Secret": "gpt2-falcon-gateway", "PodDisruptionBudget": "gpt2-falcon"}
VERSIONS = {"PodDisruptionBudget": "policy/v1", "TrainingRun": "falcon.dev/v1alpha1"}
SPECS = {
    "Service": {"spec": {"clusterIP": "None"}},
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
    "TrainingRun": {"spec": {}},
    "Pod": {"spec": {"containers": [{"name": "c", "image": "x:1"}]}},
}
WRITES_OF = [
    ("Service", "patch"), ("Service", "delete"), ("Secret", "replace"), ("PodDisruptionBudget", "delete"),
    ("TrainingRun", "replace"), ("TrainingRun", "delete"), ("Pod", "delete"),
]  # fmt: skip


def refusal(cluster: ApiServer, kind: str, verb: str, owner: dict[str, object] | None) -> str:
    """Make an object as an administrator, and return why the operator may not write it on trial; "" if it may."""
    name = NAMES.get(kind, "gpt2")
    references = [{"apiVersion": "falcon.dev/v1alpha1", "uid": "u", "controller": True, **owner}] if owner else []
    metadata = {"name": name, "namespace": "team", "ownerReferences": references}
    made = {"apiVersion": VERSIONS.get(kind, "v1"), "kind": kind, "metadata": metadata, **SPECS.get(kind, {})}
    cluster.run("kubectl", "-n", "team", "delete", kind, name, "--force", "--grace-period=0")
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(made))
    command = ["kubectl", "-n", "team", verb]
    command += ["-f", "-"] if verb == "replace" else [kind, name]
    command += ["--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}'] if verb == "patch" else []
    labelled = {**made, "metadata": {**metadata, "labels": {"a": "b"}}}
    done = cluster.run(*command, "--dry-run=server", "--as", OPERATOR, stdin=json.dumps(labelled))
    return done.stderr.replace("Warning: Immediate deletion", "") if done.returncode else ""


@pytest.mark.parametrize(("kind", "verb"), WRITES_OF)
def test_it_changes_and_deletes_only_what_belongs_to_a_job_or_a_pool(cluster: ApiServer, kind: str, verb: str) -> None:
    says = "may change and delete only what belongs to a TrainingJob of its name"
    until(lambda: says in refusal(cluster, kind, verb, None))  # the policy takes effect a moment after its installation
    owner = OWNERS[kind]
    if kind != "Pod":
        assert says in refusal(cluster, kind, verb, {**owner, "name": "another"})
        assert says in refusal(cluster, kind, verb, {**owner, "kind": "WarmPool"})
    assert says in refusal(cluster, kind, verb, {**owner, "controller": False})
    assert says in refusal(cluster, kind, verb, {**owner, "apiVersion": "example.com/v1"})
    assert refusal(cluster, kind, verb, dict(owner)) == ""


def test_it_creates_pods_of_jobs_and_of_its_pools_alone(cluster: ApiServer) -> None:
    says = "may create only pods of a TrainingJob"
    job, pool = ({"kind": kind, "name": "gpt2"} for kind in ("TrainingJob", "WarmPool"))

    def create(namespace: str, owner: dict[str, object] | None, **labels: str) -> str:
        """Return why the operator may not create a pod; "" if it may."""
        references = [{"apiVersion": "falcon.dev/v1alpha1", "uid": "u", "controller": True, **owner}] if owner else []
        metadata = {"name": "made", "namespace": namespace, "labels": labels, "ownerReferences": references}
        made = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **SPECS["Pod"]})
        done = cluster.run("kubectl", "create", "-f", "-", "--dry-run=server", "--as", OPERATOR, stdin=made)
        return done.stderr if done.returncode else ""

    until(lambda: says in create("team", None))  # the policy takes effect a moment after its installation
    named = {"falcon.dev/job": "gpt2"}
    assert create("team", dict(job), **named) == ""
    assert create(NAMESPACE, dict(pool)) == ""
    for refused in (
        create("team", dict(job)),
        create("team", {**job, "name": "another"}, **named),
        create("team", {**job, "controller": False}, **named),
        create("team", {**job, "apiVersion": "example.com/v1"}, **named),
        create("team", dict(pool), **named),
        create(NAMESPACE, None, **named),
    ):
        assert says in refused
    made = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "made"}, **SPECS["Pod"]})
    cluster.ok("kubectl", "-n", "team", "create", "-f", "-", "--dry-run=server", stdin=made)  # others as before


@pytest.mark.parametrize(
    ("namespace", "component", "allowed"),
    [(NAMESPACE, "etcd", True), (NAMESPACE, "gateway", False), ("team", "etcd", False)],
)
def test_of_other_pods_it_restarts_those_of_its_own_etcd(
    cluster: ApiServer, namespace: str, component: str, allowed: bool
) -> None:
    says = "may change and delete only what belongs to a TrainingJob of its name"
    until(lambda: says in refusal(cluster, "Pod", "delete", None))  # the policy has taken effect
    chart = {"app.kubernetes.io/name": "falcon", "app.kubernetes.io/instance": "falcon"}
    labels = {**chart, "app.kubernetes.io/component": component}
    metadata = {"name": "member", "namespace": namespace, "labels": labels}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **SPECS["Pod"]}
    cluster.run("kubectl", "-n", namespace, "delete", "pod", "member", "--force", "--grace-period=0")
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(made))
    done = cluster.run("kubectl", "-n", namespace, "delete", "pod", "member", "--dry-run=server", "--as", OPERATOR)
    assert (done.returncode == 0) == allowed, done.stderr
    assert allowed or says in done.stderr


FENCE = {"key": "falcon.dev/fenced", "effect": "NoSchedule", "value": "gpt2"}
FOREIGN = {"key": "maintenance", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def guarded_node(cluster: ApiServer) -> str:
    """Make a node with somebody else's taint; the policy takes effect a moment after its installation."""
    spec = {"taints": [FOREIGN], "providerID": "cloud://1"}
    annotations = {"a": "b", DISABLED: "false", EARLIER: "yes", RECORD: f"{EARLIER}=yes"}
    metadata = {"name": "worker", "labels": {"gpu": "h200"}, "annotations": annotations}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(node))
    # the server itself adds a taint, not-ready, to a new node
    cluster.ok("kubectl", "patch", "node", "worker", "--type=merge", "-p", json.dumps({"spec": spec}))
    deadline = time.monotonic() + POLICY_TIMEOUT_SECONDS
    while not (refusal := patch_node(cluster, {"metadata": {"labels": {"gpu": None}}})):
        assert time.monotonic() < deadline, f"not refused: {refusal}"
        time.sleep(0.2)
    return "worker"


def patch_node(cluster: ApiServer, change: dict[str, object]) -> str:
    """Return the refusal of the operator's merge patch on trial; empty where it would be taken."""
    command = ("kubectl", "patch", "node", "worker", "--type=merge", "--dry-run=server", "--as", OPERATOR)
    return cluster.run(*command, "-p", json.dumps(change)).stderr


@pytest.mark.parametrize(
    "taints",
    [[FOREIGN, FENCE], [FOREIGN, FENCE, {"key": "falcon.dev/spare", "effect": "NoSchedule", "value": "p"}], [FOREIGN]],
    ids=["fence", "fence and spare", "none"],
)
def test_it_may_change_its_own_taints(cluster: ApiServer, guarded_node: str, taints: list[dict[str, str]]) -> None:
    assert patch_node(cluster, {"spec": {"taints": taints}}) == ""


@pytest.mark.parametrize(
    "annotations",
    [
        {KEEP: "true", RECORD: f"{EARLIER}=yes,{KEEP}=true"},
        {KEEP: "true", RECORD: f"{KEEP}=true", EARLIER: None},
        {RECORD: None, EARLIER: None},
        {},
    ],
    ids=["set", "set in the place of an earlier one", "removed", "none"],
)
def test_it_may_change_the_annotations_of_the_setting_and_those_that_it_has_set(
    cluster: ApiServer, guarded_node: str, annotations: dict[str, str | None]
) -> None:
    spare = {"key": "falcon.dev/spare", "effect": "NoSchedule", "value": "p"}
    assert patch_node(cluster, {"spec": {"taints": [FOREIGN, spare]}, "metadata": {"annotations": annotations}}) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spec": {"taints": [FENCE]}}, "only taints whose keys begin with falcon.dev/"),
        ({"spec": {"taints": [FOREIGN, CORDON]}}, "only taints whose keys begin with falcon.dev/"),
        ({"spec": {"taints": [{**FOREIGN, "value": "x"}]}}, "only taints whose keys begin with falcon.dev/"),
        ({"spec": {"taints": None}}, "only taints whose keys begin with falcon.dev/"),
        ({"spec": {"taints": [FOREIGN, {**FENCE, "effect": "NoExecute"}]}}, "only taints of effect NoSchedule"),
        ({"spec": {"unschedulable": True}}, "spec: Falcon's operator may change nothing of a node but its taints"),
        ({"metadata": {"labels": {"more": "x"}}}, "metadata: Falcon's operator may change nothing"),
        ({"metadata": {"labels": None}}, "metadata: Falcon's operator may change nothing"),
        ({"metadata": {"annotations": {"a": "c"}}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": {"a": None}}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": {"x.y/z": "true"}}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": {KEEP: "false"}}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": {DISABLED: "true"}}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": {DISABLED: None}}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": {EARLIER: "no"}}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": None}}, "only those of operator.spareAnnotations that it has set"),
        ({"metadata": {"annotations": {RECORD: "a=b"}}}, "may record only those of operator.spareAnnotations"),
        ({"metadata": {"annotations": {RECORD: f"{KEEP}=x"}}}, "may record only those of operator.spareAnnotations"),
        ({"metadata": {"finalizers": ["example.com/x"]}}, "metadata: Falcon's operator may change nothing"),
        ({"metadata": {"ownerReferences": []}, "spec": {"podCIDR": "10.0.0.0/24"}}, "nothing of a node but its taints"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_it_may_change_nothing_else_of_a_node(
    cluster: ApiServer, guarded_node: str, change: dict[str, object], says: str
) -> None:
    assert says in patch_node(cluster, change)


def test_other_users_patch_nodes_as_before(cluster: ApiServer, guarded_node: str) -> None:
    change = {"metadata": {"labels": {"more": "x"}}, "spec": {"taints": [CORDON], "unschedulable": True}}
    cluster.ok("kubectl", "patch", "node", guarded_node, "--type=merge", "--dry-run=server", "-p", json.dumps(change))


WRITES = ("create", "update", "patch", "delete")


@pytest.mark.parametrize("role", ["edit", "view"])
def test_users_get_rights_through_the_default_roles(cluster: ApiServer, role: str) -> None:
    """No controller aggregates here, so what would be aggregated is bound itself; edit includes view."""
    user = f"{role}or"
    for part in {role, "view", "view-pools"}:
        name = f"{user}-{part}"
        cluster.ok("kubectl", "create", "clusterrolebinding", name, f"--clusterrole=falcon-{part}", f"--user={user}")
    for verb in WRITES:
        assert may(cluster, verb, "trainingjobs", user=user) is (role == "edit")
        assert not may(cluster, verb, "trainingruns", user=user)  # the operator's own memory
        assert not may(cluster, verb, "warmpools", user=user)
    for resource in ("trainingjobs", "trainingjobs/status", "trainingruns", "warmpools", "warmpools/status"):
        assert may(cluster, "get", resource, user=user)
    labels = json.loads(cluster.ok("kubectl", "get", "clusterrole", f"falcon-{role}", "-o", "json"))["metadata"][
        "labels"
    ]
    assert labels[f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Deployment", "falcon"),
        ("Deployment", "falcon-etcd"),
        ("Deployment", "falcon-gateway"),
        ("Deployment", "falcon-anomalies"),
        ("Pod", "falcon-test-operator"),
        ("Pod", "falcon-test-etcd"),
        ("Pod", "falcon-test-gateway"),
    ],
)
@pytest.mark.parametrize("ids", ["65532", "1000700000", "null"])
def test_pods_pass_pod_security_restricted(cluster: ApiServer, kind: str, name: str, ids: str) -> None:
    namespace = f"restricted-{name}-{ids}"
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    enforced = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": label}}
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(enforced))
    fields = ("runAsUser", "runAsGroup", "fsGroup")
    chosen = ",".join(f"securityContext.{field}={ids}" for field in fields)
    workload = Rendered("--set", f"anomalies.enabled=true,{chosen}")(kind, name)
    spec = workload["spec"] if kind == "Pod" else workload["spec"]["template"]["spec"]
    written = {field: spec["securityContext"][field] for field in fields if field in spec["securityContext"]}
    assert written == ({} if ids == "null" else dict.fromkeys(fields, int(ids)))
    for container in spec["containers"]:
        assert not set(fields) & set(container["securityContext"])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": namespace}, "spec": spec}
    cluster.ok("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    loose = json.loads(json.dumps(pod))
    loose["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = cluster.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(loose))
    assert "violates PodSecurity" in refused.stderr
