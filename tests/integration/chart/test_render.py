"""The chart's variants, and the values that it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from falcon_core.errors.table import parse_overrides, shipped
from falcon_operator.api.common import LABEL_JOB, TAINT_FENCED, TAINT_SPARE
from falcon_operator.cluster.gateway_pods import PORT
from tests.integration.chart.charts import (
    CHART,
    ETCD_WORKLOADS,
    KUBE_VERSION,
    LOCAL_VALUES,
    NAMESPACE,
    ROOT,
    Manifest,
    Rendered,
    helm,
    template,
)

READERS = ["test", "monitoring"]  # of metrics, by default
THREE = ("--set", "etcd.replicas=3,etcd.persistence.enabled=true")
EXTERNAL = (
    "--set",
    "etcd.enabled=false,etcd.external.secretPrefix=shared,"
    "etcd.external.endpoints={https://a.example.com:2379,https://b.example.com:2379}",
)


@pytest.mark.parametrize("flags", [(), ("--values", str(LOCAL_VALUES)), THREE, EXTERNAL])
def test_lint(flags: tuple[str, ...]) -> None:
    done = helm("lint", "--strict", "--kube-version", KUBE_VERSION, str(CHART), *flags)
    assert done.returncode == 0, done.stdout


def test_one_etcd_is_reached_by_its_service() -> None:
    chart = Rendered()
    env = chart.operator_env()
    assert env["FALCON_ETCD_ENDPOINTS"] == "https://falcon-etcd.falcon-system.svc:2379"
    assert env["FALCON_ETCD_SERVER_NAMES"].split(",")[0] == "falcon-etcd.falcon-system.svc"
    assert env["FALCON_ETCD_MANAGED"] == "true"
    assert env["FALCON_ETCD_SECRET_PREFIX"] == "falcon-etcd"
    assert ("PodDisruptionBudget", "falcon-etcd") not in chart.objects
    assert "PersistentVolumeClaim" not in chart.kinds()
    flags = chart.etcd_flags()
    assert flags["advertise-client-urls"] == "https://falcon-etcd.falcon-system.svc:2379"
    assert flags["initial-cluster"] == f"{flags['name']}={flags['initial-advertise-peer-urls']}"
    for url in (flags["advertise-client-urls"], flags["initial-advertise-peer-urls"]):
        assert url.removeprefix("https://").partition(":")[0] in env["FALCON_ETCD_SERVER_NAMES"].split(",")


def test_one_etcd_is_replaced_when_its_node_is_lost() -> None:
    """A StatefulSet would wait for the pod of the dead node, for ever."""
    chart = Rendered()
    assert chart.etcd()["kind"] == "Deployment"
    assert chart.etcd()["spec"]["strategy"] == {"type": "Recreate"}
    for pod in (chart.etcd_pod(), chart.gateway_pod(), chart("Deployment", "falcon")["spec"]["template"]["spec"]):
        stay = {entry["key"]: entry["tolerationSeconds"] for entry in pod["tolerations"]}
        assert stay == {"node.kubernetes.io/not-ready": 5, "node.kubernetes.io/unreachable": 5}
        assert {entry["effect"] for entry in pod["tolerations"]} == {"NoExecute"}


def test_how_long_a_pod_stays_on_a_lost_node_is_the_users() -> None:
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 60}
    chart = Rendered("--set-json", f"etcd.tolerations={json.dumps([unreachable])}")
    stays = {entry["key"]: entry["tolerationSeconds"] for entry in chart.etcd_pod()["tolerations"]}
    assert stays == {"node.kubernetes.io/not-ready": 5, "node.kubernetes.io/unreachable": 60}


@pytest.mark.parametrize("flags", [(), THREE])
def test_all_of_falcon_prefers_nodes_without_training_and_is_kept_off_spares(flags: tuple[str, ...]) -> None:
    chart = Rendered(*flags)
    for pod in (chart.etcd_pod(), chart.gateway_pod(), chart("Deployment", "falcon")["spec"]["template"]["spec"]):
        first = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
        assert first["podAffinityTerm"] == {
            "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": {},
            "labelSelector": {"matchExpressions": [{"key": LABEL_JOB, "operator": "Exists"}]},
        }
        tolerated = {entry["key"] for entry in pod.get("tolerations", [])}
        assert not tolerated & {TAINT_SPARE, TAINT_FENCED}


def test_the_operator_learns_as_whom_injected_containers_run() -> None:
    def run_as(*flags: str) -> object:
        return json.loads(Rendered(*flags).operator_env()["FALCON_RUN_AS"])

    assert run_as() == {"runAsUser": 65532, "runAsGroup": 65532}
    assert run_as("--set", "injected.securityContext.runAsUser=1000700000") == {
        "runAsUser": 1000700000,
        "runAsGroup": 65532,
    }
    without = "injected.securityContext.runAsUser=null,injected.securityContext.runAsGroup=null"
    assert run_as("--set", without) == {}
    # values that an earlier release has stored (helm upgrade --reuse-values)
    stored = Rendered("--set", "injected.securityContext=null,securityContext=null")
    assert stored.objects == Rendered().objects


@pytest.mark.parametrize("values", [{"runAsUser": 0}, {"runAsUser": "falcon"}, {"user": 7}, {"runAsGroup": -1}])
@pytest.mark.parametrize("place", ["securityContext", "injected.securityContext"])
def test_no_pod_runs_as_root_or_as_no_number(place: str, values: Manifest) -> None:
    done = template("--set-json", f"{place}={json.dumps(values)}")
    assert done.returncode != 0
    assert f"'/{place.replace('.', '/')}" in done.stderr


def test_the_operator_gets_the_annotations_of_spares() -> None:
    wanted = {"karpenter.sh/do-not-disrupt": "true", "example.com/keep": "7"}
    env = Rendered("--set-json", f"operator.spareAnnotations={json.dumps(wanted)}").operator_env()
    assert json.loads(env["FALCON_SPARE_ANNOTATIONS"]) == wanted
    assert Rendered().operator_env()["FALCON_SPARE_ANNOTATIONS"] == "{}"
    # values that an earlier release has stored (helm upgrade --reuse-values)
    assert Rendered("--set", "operator.spareAnnotations=null").operator_env()["FALCON_SPARE_ANNOTATIONS"] == "{}"


def test_one_etcd_may_keep_its_data_on_a_volume() -> None:
    chart = Rendered("--set", "etcd.persistence.enabled=true,etcd.persistence.storageClassName=fast")
    (data,) = (volume for volume in chart.etcd_pod()["volumes"] if volume["name"] == "data")
    claim = chart("PersistentVolumeClaim", data["persistentVolumeClaim"]["claimName"])
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "5Gi"}},
    }


@pytest.mark.parametrize(("retention", "seconds"), [("90s", "90"), ("1m", "60"), ("2h", "7200")])
def test_the_operator_knows_how_long_etcd_keeps_history(retention: str, seconds: str) -> None:
    env = Rendered("--set", f"etcd.autoCompactionRetention={retention}").operator_env()
    assert env["FALCON_ETCD_RETENTION_SECONDS"] == seconds


def test_there_is_room_to_defragment_a_full_database() -> None:
    (data,) = (
        volume
        for volume in Rendered("--set", "etcd.quotaBackendBytes=4294967296").etcd_pod()["volumes"]
        if volume["name"] == "data"
    )
    assert data["emptyDir"] == {"sizeLimit": "9216Mi"}


def test_three_etcds_are_reached_one_by_one() -> None:
    chart = Rendered(*THREE)
    hosts = [f"falcon-etcd-{i}.falcon-etcd-headless.falcon-system.svc" for i in range(3)]
    assert chart.operator_env()["FALCON_ETCD_ENDPOINTS"].split(",") == [f"https://{host}:2379" for host in hosts]
    assert chart.etcd_flags()["initial-cluster"].split(",") == [
        f"falcon-etcd-{i}=https://{host}:2380" for i, host in enumerate(hosts)
    ]
    assert "*.falcon-etcd-headless.falcon-system.svc" in chart.operator_env()["FALCON_ETCD_SERVER_NAMES"].split(",")
    assert chart.etcd()["kind"] == "StatefulSet"
    etcd = chart.etcd()["spec"]
    assert etcd["replicas"] == 3
    assert "PersistentVolumeClaim" not in chart.kinds()
    assert etcd["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert "requiredDuringSchedulingIgnoredDuringExecution" in etcd["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert chart("PodDisruptionBudget", "falcon-etcd")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("flags", [(), THREE])
def test_every_member_and_client_is_authenticated(flags: tuple[str, ...]) -> None:
    given = Rendered(*flags).etcd_flags()
    assert given["client-cert-auth"] == given["peer-client-cert-auth"] == "true"
    assert given["peer-cert-allowed-hostname"] == "falcon-etcd.falcon-system.svc"
    urls = {flag: url for flag, url in given.items() if flag.endswith("-urls") and flag != "listen-metrics-urls"}
    assert len(urls) == 4
    assert all(url.startswith("https://") for url in urls.values())


def test_agents_reach_the_gateway_and_the_gateway_reaches_etcd() -> None:
    chart = Rendered()
    operator, pod = chart.operator_env(), chart.gateway_pod()
    (container,) = pod["containers"]
    host, _, port = operator["FALCON_GATEWAYS"].partition(":")
    service = chart("Service", host.split(".")[0])
    assert host == f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert service["spec"]["ports"] == [{"name": "agents", "port": int(port), "targetPort": "agents"}]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    (address,) = (entry for entry in container["env"] if entry["name"] == "FALCON_POD_IP")
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env["FALCON_ETCD_ENDPOINTS"] == operator["FALCON_ETCD_ENDPOINTS"].removeprefix("https://")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert env["FALCON_JOBS_AUTHORITY"] == f"{env['FALCON_TLS_DIR']}/jobs-ca.crt"
    assert {mounts[str(env[name])] for name in ("FALCON_TLS_DIR", "FALCON_ETCD_TLS_DIR")} == {"tls", "etcd"}
    prefix = operator["FALCON_GATEWAY_SECRET_PREFIX"]
    assert _secrets(pod) == {
        "tls": f"{prefix}-gateway-tls",
        "etcd": f"{operator['FALCON_ETCD_SECRET_PREFIX']}-root",
    }
    named = {"tls": env["FALCON_TLS_SECRET"], "etcd": env["FALCON_ETCD_TLS_SECRET"]}
    assert named == _secrets(pod), "the metric of a certificate's expiry names the Secret as the operator's does"
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    template = chart("Deployment", "falcon-gateway")["spec"]["template"]["metadata"]
    wanted = dict(label.split("=") for label in operator["FALCON_GATEWAY_SELECTOR"].split(","))
    assert wanted.items() <= template["labels"].items()
    assert {"name": PORT, "containerPort": 7444} in container["ports"]


def test_programs_of_others_use_no_proxy_that_the_platform_names_to_all_pods() -> None:
    """They speak inside the cluster alone, and each takes HTTPS_PROXY for its way to the others."""
    chart = Rendered()
    pods = [chart.etcd_pod(), *(chart("Pod", f"falcon-test-{name}")["spec"] for name in ("etcd", "operator"))]
    for pod in pods:
        (container,) = pod["containers"]
        given = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert (given["NO_PROXY"], given["no_proxy"]) == ("*", "*"), container["name"]


@pytest.mark.parametrize("flags", [(), ("--set", "etcd.replicas=3,etcd.persistence.enabled=true")])
def test_the_operator_knows_the_pods_of_etcd_by_their_labels(flags: tuple[str, ...]) -> None:
    chart = Rendered(*flags)
    kind = "StatefulSet" if flags else "Deployment"
    labels = chart(kind, "falcon-etcd")["spec"]["template"]["metadata"]["labels"]
    wanted = dict(label.split("=") for label in chart.operator_env()["FALCON_ETCD_SELECTOR"].split(","))
    assert wanted.items() <= labels.items()
    assert wanted["app.kubernetes.io/component"] == "etcd"


def test_two_gateways_keep_apart_and_to_other_nodes_than_etcd() -> None:
    chart = Rendered()
    preferred = chart.gateway_pod()["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    weights = {
        term["podAffinityTerm"]["labelSelector"]["matchLabels"]["app.kubernetes.io/component"]: term["weight"]
        for term in preferred[1:]
    }
    assert weights == {"etcd": 50, "gateway": 100}
    assert chart("PodDisruptionBudget", "falcon-gateway")["spec"]["maxUnavailable"] == 1
    single = Rendered("--set", "gateway.replicas=1")
    assert ("PodDisruptionBudget", "falcon-gateway") not in single.objects


def test_who_may_reach_whom() -> None:
    chart = Rendered()
    assert _allowed(chart("NetworkPolicy", "falcon-etcd")) == {
        "client": ["operator", "gateway", "test"],
        "peer": ["etcd"],
        "metrics": READERS,
    }
    assert _allowed(chart("NetworkPolicy", "falcon-gateway")) == {
        "agents": [LABEL_JOB, "test"],
        "operator": ["operator"],
        "http": READERS,
    }
    assert _allowed(chart("NetworkPolicy", "falcon")) == {"http": READERS, "webhook": None}
    named = Rendered("--set-json", 'networkPolicy.evictionsFrom=[{"ipBlock":{"cidr":"10.2.0.0/16"}}]')
    assert _allowed(named("NetworkPolicy", "falcon"))["webhook"] == ["10.2.0.0/16"]
    assert "NetworkPolicy" not in Rendered("--set", "networkPolicy.enabled=false").kinds()


@pytest.mark.parametrize(
    "flags",
    [
        (),
        THREE,
        ("--set", "anomalies.enabled=true,nodeAgent.enabled=true"),
        ("--set", "anomalies.enabled=true,metrics.authentication.enabled=true"),
    ],
)
def test_every_port_of_every_component_has_a_policy(flags: tuple[str, ...]) -> None:
    """A pod that no policy selects is reached by all; a rule without peers lets in everybody."""
    chart = Rendered(*flags)
    workloads = {"Deployment", "StatefulSet", "DaemonSet"}
    templates = [found["spec"]["template"] for (kind, _), found in chart.objects.items() if kind in workloads]
    assert len(templates) >= 3
    for pod in templates:
        rules = _rules_of(chart, pod["metadata"]["labels"])
        assert {port["port"] for rule in rules for port in rule["ports"]} == set(_port_names(pod))
        # No policy can name the API server, which asks about evictions.
        open_to_all = {port["port"] for rule in rules if not rule.get("from") for port in rule["ports"]}
        assert open_to_all <= {"webhook"}


def _rules_of(chart: Rendered, labels: dict[str, str]) -> list[Manifest]:
    """Return the rules of the one policy that selects a pod with these labels."""
    policies = [policy["spec"] for (kind, _), policy in chart.objects.items() if kind == "NetworkPolicy"]
    (policy,) = [each for each in policies if each["podSelector"]["matchLabels"].items() <= labels.items()]
    rules: list[Manifest] = policy.get("ingress", [])
    return rules


def _port_names(template: Manifest) -> Iterator[str]:
    for container in template["spec"]["containers"]:
        yield from (port["name"] for port in container.get("ports", []))


def test_who_reads_the_metrics_is_the_platforms_choice() -> None:
    for value, readers in (("[]", ["test"]), ('[{"ipBlock":{"cidr":"10.2.0.0/16"}}]', ["test", "10.2.0.0/16"])):
        chart = Rendered("--set-json", f"networkPolicy.metricsFrom={value}")
        for name, port in (("falcon", "http"), ("falcon-gateway", "http"), ("falcon-etcd", "metrics")):
            assert _allowed(chart("NetworkPolicy", name))[port] == readers


def test_values_of_a_release_that_did_not_know_the_readers_let_monitoring_read() -> None:
    """``helm upgrade --reuse-values`` keeps the former chart's values, in which the field is missing."""
    chart = Rendered("--set-json", "networkPolicy.metricsFrom=null")
    assert _allowed(chart("NetworkPolicy", "falcon"))["http"] == READERS


def test_agents_are_let_in_from_watched_namespaces_and_from_nodes_whose_network_they_use() -> None:
    flags = "operator.watchNamespaces={team-a},networkPolicy.hostNetworkJobs={10.1.0.0/16}"
    (agents,) = (
        rule
        for rule in Rendered("--set", flags)("NetworkPolicy", "falcon-gateway")["spec"]["ingress"]
        if rule["ports"] == [{"port": "agents"}]
    )
    (team,) = agents["from"][0]["namespaceSelector"]["matchExpressions"]
    assert (team["key"], team["values"]) == ("kubernetes.io/metadata.name", ["team-a"])
    assert {"ipBlock": {"cidr": "10.1.0.0/16"}} in agents["from"]


@pytest.mark.parametrize(
    ("flags", "admitted"),
    [
        ("networkPolicy.enabled=true", "false"),
        ("networkPolicy.enabled=false", "true"),
        ("networkPolicy.hostNetworkJobs={10.1.0.0/16}", "true"),
    ],
)
def test_the_operator_knows_whether_pods_on_the_hosts_network_are_admitted(flags: str, admitted: str) -> None:
    assert Rendered("--set", flags).operator_env()["FALCON_HOST_NETWORK_ADMITTED"] == admitted


def test_an_external_etcd_is_not_run_but_used() -> None:
    chart = Rendered(*EXTERNAL)
    env = chart.operator_env()
    assert not ETCD_WORKLOADS & set(chart.objects)
    assert env["FALCON_ETCD_ENDPOINTS"] == "https://a.example.com:2379,https://b.example.com:2379"
    assert (env["FALCON_ETCD_MANAGED"], env["FALCON_ETCD_SECRET_PREFIX"]) == ("false", "shared")
    assert env["FALCON_ETCD_RETENTION_SECONDS"] == ""
    gateway = {entry["name"]: entry.get("value") for entry in chart.gateway_pod()["containers"][0]["env"]}
    assert gateway["FALCON_ETCD_ENDPOINTS"] == "a.example.com:2379,b.example.com:2379"
    assert _secrets(chart.gateway_pod()) == {"tls": "falcon-gateway-tls", "etcd": "shared-root"}
    assert chart("NetworkPolicy", "falcon-gateway")
    assert ("NetworkPolicy", "falcon-etcd") not in chart.objects


def test_watched_namespaces_narrow_the_rights() -> None:
    chart = Rendered("--set", "operator.watchNamespaces={team-a,team-b}")
    bound = {found["metadata"].get("namespace") for found in chart.objects.values() if found["kind"] == "RoleBinding"}
    assert ("ClusterRoleBinding", "falcon-jobs") not in chart.objects
    assert "team-b" in bound
    assert chart.operator_env()["FALCON_WATCH_NAMESPACES"] == "team-a,team-b"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("secretPolicy", "secrets"),
        ("objectPolicy", "objects"),
        ("objectPolicy", "pods"),
        ("nodePolicy", "nodes"),
        ("tolerationPolicy", "tolerations"),
    ],
)
def test_an_admission_policy_can_be_left_out(value: str, name: str) -> None:
    """And is left out where the cluster does not know it: Kubernetes 1.29, which the chart still serves."""
    policy = ("ValidatingAdmissionPolicy", f"falcon-{name}.falcon.dev")
    assert policy in Rendered().objects
    assert policy not in Rendered("--set", f"rbac.{value}=false").objects
    assert policy not in Rendered("--kube-version", "1.29").objects


def test_without_crds() -> None:
    assert "CustomResourceDefinition" not in Rendered("--set", "crds.enabled=false").kinds()


@pytest.mark.parametrize(("keep", "policy"), [("true", "keep"), ("false", None)])
def test_crds_are_the_files_at_the_top(keep: str, policy: str | None) -> None:
    chart = Rendered("--set", f"crds.keep={keep}")
    for path in (ROOT / "crds").iterdir():
        source = yaml.safe_load(path.read_text())
        rendered = chart("CustomResourceDefinition", source["metadata"]["name"])
        assert rendered["spec"] == source["spec"]
        annotations = rendered["metadata"]["annotations"]
        assert annotations.get("helm.sh/resource-policy") == policy
        assert source["metadata"].get("annotations", {}).items() <= annotations.items()


def test_the_packaged_chart_renders_the_same(tmp_path: Path) -> None:
    done = helm("package", "--destination", str(tmp_path), str(CHART))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.iterdir()
    assert Rendered(chart=archive).objects == Rendered().objects


def test_local_images_are_never_pulled() -> None:
    chart = Rendered("--values", str(LOCAL_VALUES))
    (operator,) = chart("Deployment", "falcon")["spec"]["template"]["spec"]["containers"]
    (etcd,) = chart.etcd_pod()["containers"]
    (gateway,) = chart.gateway_pod()["containers"]
    assert [container["image"] for container in (operator, gateway, etcd)] == [
        f"localhost/falcon/{name}:dev" for name in ("operator", "gateway", "etcd")
    ]
    assert chart.operator_env()["FALCON_AGENT_IMAGE"] == "localhost/falcon/agent:dev"
    assert {container["imagePullPolicy"] for container in (operator, gateway, etcd)} == {"Never"}


def test_a_digest_takes_the_tags_place() -> None:
    digest = "sha256:" + "0" * 64
    chart = Rendered("--set", f"images.agent.digest={digest},images.registry=registry.example.com:5000/ml")
    assert chart.operator_env()["FALCON_AGENT_IMAGE"] == f"registry.example.com:5000/ml/falcon/agent@{digest}"


def test_options_reach_the_pods() -> None:
    chart = Rendered(
        "--set",
        "operator.replicas=2,operator.nodeSelector.a=b,operator.priorityClassName=high,operator.podAnnotations.c=d,"
        "operator.tolerations[0].key=gpu,etcd.podLabels.e=f,images.pullSecrets={pull},gateway.nodeSelector.g=h,"
        "gateway.logLevel=debug,"
        "metrics.serviceMonitor.enabled=true",
    )
    template = chart("Deployment", "falcon")["spec"]["template"]
    pod = template["spec"]
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"a": "b"}, "high")
    assert (pod["tolerations"][0], pod["imagePullSecrets"]) == ({"key": "gpu"}, [{"name": "pull"}])
    assert template["metadata"]["annotations"]["c"] == "d"
    assert chart.etcd()["spec"]["template"]["metadata"]["labels"]["e"] == "f"
    gateway = chart.gateway_pod()
    assert (gateway["nodeSelector"], gateway["imagePullSecrets"]) == ({"g": "h"}, [{"name": "pull"}])
    assert {"name": "FALCON_LOG_LEVEL", "value": "debug"} in gateway["containers"][0]["env"]
    for name in ("falcon-test-operator", "falcon-test-etcd", "falcon-test-gateway"):
        test = chart("Pod", name)["spec"]
        assert (test["nodeSelector"], test["imagePullSecrets"]) == ({"a": "b"}, [{"name": "pull"}])
    assert ("PodDisruptionBudget", "falcon") in chart.objects
    assert {("ServiceMonitor", "falcon"), ("ServiceMonitor", "falcon-gateway")} <= set(chart.objects)


def test_the_platforms_errors_reach_the_operator() -> None:
    assert "FALCON_ERRORS" not in Rendered().operator_env()
    own = {"rules": [{"id": "rack", "class": "CoolingFailure", "patterns": [r"rack \d+ \"hot\""]}]}
    chart = Rendered("--set-json", f"operator.errors={json.dumps(own)}")
    merged = shipped().merged(parse_overrides(chart.operator_env()["FALCON_ERRORS"]))
    assert (merged.rules[0].id, merged.rules[0].patterns) == ("rack", (r"rack \d+ \"hot\"",))


@pytest.mark.parametrize("name", ["falcon-test-operator", "falcon-test-etcd", "falcon-test-gateway"])
def test_the_logs_of_a_passed_test_can_be_read(name: str) -> None:
    """``helm test --logs`` asks for them when the test is over, without naming a container."""
    pod = Rendered()("Pod", name)
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"
    assert len(pod["spec"]["containers"]) == 1


@pytest.mark.parametrize(
    ("release", "name"), [("falcon", "falcon"), ("prod", "prod-falcon"), ("my-falcon-2", "my-falcon-2")]
)
def test_names_follow_the_release(release: str, name: str) -> None:
    assert ("Deployment", name) in Rendered(release=release).objects


def _secrets(pod: Manifest) -> dict[str, str]:
    """Return the names of the Secrets that a pod mounts, by volume."""
    return {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}


def _allowed(policy: Manifest) -> dict[str, list[str] | None]:
    """Return who may reach a port: components, the label of pods elsewhere, or a namespace; None: all may."""

    def names(peer: Manifest) -> str:
        if "ipBlock" in peer:
            return str(peer["ipBlock"]["cidr"])
        if "podSelector" not in peer:
            return str(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"])
        selector = peer["podSelector"]
        if "matchLabels" in selector:
            return str(selector["matchLabels"]["app.kubernetes.io/component"])
        return str(selector["matchExpressions"][0]["key"])

    return {
        rule["ports"][0]["port"]: [names(peer) for peer in rule["from"]] if "from" in rule else None
        for rule in policy["spec"]["ingress"]
    }


def test_evictions_are_judged_by_all_replicas_in_the_namespaces_of_jobs_and_never_block() -> None:
    chart = Rendered("--set", "operator.replicas=2")
    (webhook,) = chart("ValidatingWebhookConfiguration", "falcon-webhook")["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 1, "None")
    (rule,) = webhook["rules"]
    assert (rule["resources"], rule["operations"]) == (["pods/eviction"], ["CREATE"])
    service = chart("Service", webhook["clientConfig"]["service"]["name"])
    template = chart("Deployment", "falcon")["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (port,) = (port for port in template["spec"]["containers"][0]["ports"] if port["name"] == "webhook")
    environment = chart.operator_env()
    assert environment["FALCON_WEBHOOK_PORT"] == str(port["containerPort"])
    assert environment["FALCON_WEBHOOK_CONFIGURATION"] == "falcon-webhook"
    assert environment["FALCON_WEBHOOK_NAMES"] == f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert "caBundle" not in webhook["clientConfig"], "the operator writes it, and an upgrade leaves it"


@pytest.mark.parametrize(
    ("watched", "operator", "namespaces"),
    [("[]", "NotIn", ["kube-system", NAMESPACE]), ('["team-a","team-b"]', "In", ["team-a", "team-b"])],
)
def test_evictions_elsewhere_are_not_judged(watched: str, operator: str, namespaces: list[str]) -> None:
    chart = Rendered("--set-json", f"operator.watchNamespaces={watched}")
    (webhook,) = chart("ValidatingWebhookConfiguration", "falcon-webhook")["webhooks"]
    (rule,) = webhook["namespaceSelector"]["matchExpressions"]
    assert (rule["operator"], rule["values"]) == (operator, namespaces)


def test_without_the_webhook_nothing_is_left_of_it() -> None:
    chart = Rendered("--set", "operator.evictionWebhook.enabled=false")
    assert "webhook" not in json.dumps(list(chart.objects.values())).lower()
