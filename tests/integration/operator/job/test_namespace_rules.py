"""Namespaces with rules: LimitRange, ResourceQuota, Pod Security and an admission policy of a real API server.

The quota's controller is the real one; it fills in the status without which the API server admits no pod.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from falcon_operator.cluster.client import RULES_SECONDS
from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation, a_job, until
from tests.integration.operator.control_plane import controllers
from tests.integration.operator.played import Played, add_node, connected

LIMITED = {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
PROXY = {
    "name": "mesh-proxy",
    "image": "proxy:1",
    "restartPolicy": "Always",
    "resources": {"limits": LIMITED},
    "securityContext": RESTRICTED,
}
POLICY = "owned-pods.example.com"
LABELLED = [
    ("has(object.metadata.labels) && 'team' in object.metadata.labels", "a pod needs the label team"),
]
# What hardened clusters demand besides: of all containers, and of the pod.
_INIT = "(!has(object.spec.initContainers) || object.spec.initContainers.all(c, {0}))"
_ALL = "object.spec.containers.all(c, {0}) && " + _INIT
_READ_ONLY = "has(c.securityContext.readOnlyRootFilesystem) && c.securityContext.readOnlyRootFilesystem"
ROOT = "a root file system has to be read-only"
HARDENED = [
    (_ALL.format(_READ_ONLY), ROOT),
    (_ALL.format("c.securityContext.seccompProfile.type != 'Unconfined'"), "a container needs a seccomp profile"),
    ("!has(object.spec.volumes) || object.spec.volumes.all(v, !has(v.hostPath))", "no paths of the host"),
    (
        "has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken",
        "no token of the service account",
    ),
    ("has(object.spec.hostUsers) && !object.spec.hostUsers", "a pod needs a user namespace of its own"),
    ("object.spec.preemptionPolicy == 'Never'", "no pod of this namespace takes the place of others"),
]
PROFILE = {"type": "Localhost", "localhostProfile": "training.json"}


@pytest.fixture
def strict(api: ApiServer, installation: Installation) -> Iterator[Installation]:
    """Yield a namespace with all of these rules, in effect."""
    space = installation.namespace
    levels = [f"pod-security.kubernetes.io/enforce{part}" for part in ("=restricted", "-version=latest")]
    api.ok("kubectl", "label", "namespace", space, *levels)
    quota = {"limits.cpu": "32", "limits.memory": "64Gi", "requests.cpu": "16", "requests.memory": "32Gi", "pods": "8"}
    ratio = {"cpu": "4", "memory": "2", "ephemeral-storage": "2"}
    limits = [
        {"type": "Container", "min": {"cpu": "50m", "memory": "128Mi"}, "maxLimitRequestRatio": ratio},
        {"type": "Pod", "max": {"memory": "16Gi"}, "maxLimitRequestRatio": {"cpu": "4"}},
    ]
    for kind, name, spec in (("ResourceQuota", "team", {"hard": quota}), ("LimitRange", "rules", {"limits": limits})):
        meta = {"name": name, "namespace": space}
        installation.apply({"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": spec})
    for manifest in _policy(space, *LABELLED):
        installation.apply(manifest)
    with controllers(api, "resourcequota-controller"):
        for words in (
            "minimum cpu usage per Container",
            "exceeded quota: team",
            "needs the label team",
            "restricted",
        ):
            until(lambda words=words: words in _refusal(api, space, words))
        yield installation
    kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding"
    api.run("kubectl", "delete", kinds, POLICY, "--wait=false")


def _policy(namespace: str, *checks: tuple[str, str]) -> list[dict[str, Any]]:
    """Return an admission policy about the pods of a namespace: expressions, and what is said where one is false."""
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    only = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    common = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": POLICY}}
    return [
        {
            **common,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "matchConstraints": {"resourceRules": rules, "namespaceSelector": only},
                "validations": [{"expression": expression, "message": message} for expression, message in checks],
            },
        },
        {
            **common,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
        },
    ]


def _refusal(api: ApiServer, namespace: str, words: str) -> str:
    """Return why a pod is refused that breaks one rule: the one that says ``words``."""
    resources: dict[str, Any] = {"limits": LIMITED, "requests": LIMITED}
    if "minimum" in words:
        resources = {"limits": LIMITED, "requests": {**LIMITED, "cpu": "10m"}}
    if "quota" in words:
        resources = {"limits": {**LIMITED, "cpu": "33"}}
    context = {} if "restricted" in words else {"securityContext": RESTRICTED}
    labels = {} if "label" in words else {"team": "ml"}
    spec = {"containers": [{"name": "c", "image": "x:1", "resources": resources, **context}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace, "labels": labels}}
    return api.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps({**pod, "spec": spec})).stderr


def _job(namespace: str, **spec: Any) -> dict[str, Any]:
    """Return a job whose own pods keep the rules, with a native sidecar as a mesh brings it."""
    trainer = {
        "name": "trainer",
        "image": "x:1",
        "command": ["python", "train.py"],
        "resources": {"limits": LIMITED},
        "securityContext": RESTRICTED,
    }
    template = {
        "metadata": {"labels": {"team": "ml"}},
        "spec": {"containers": [trainer], "initContainers": [PROXY]},
    }
    return a_job(namespace, template=template, **{"replicas": 2, **spec})


@pytest.fixture
async def played(api: ApiServer, strict: Installation) -> AsyncIterator[Played]:
    for name in ("w1", "w2", "w3"):
        add_node(strict, name, {})
    async with connected(api.kubeconfig, strict.namespace) as (kube, http):
        yield Played(strict.namespace, kube, http, "gpt2", schedules=True)


async def test_a_job_keeps_all_rules_of_its_namespace(strict: Installation, played: Played) -> None:
    """One for each of the pods that a job has: the first ones, and a pod that is made again later."""
    strict.apply(_job(strict.namespace))
    await played.until(lambda job: job.get("status", {}).get("state") == "Running")
    pods = strict.get("pods")
    assert [pod["status"]["qosClass"] for pod in pods] == ["Guaranteed"] * 2, "as the user's own pod"
    for pod in pods:
        assert pod["metadata"]["labels"]["team"] == "ml"
        names = [each["name"] for each in pod["spec"]["initContainers"]]
        assert names == ["falcon-install", "falcon-agent", "mesh-proxy"]
    first = {pod["metadata"]["name"] for pod in pods}
    strict.api.ok("kubectl", "-n", strict.namespace, "delete", "pod", min(first), "--wait=false")
    await played.until(
        lambda job: job["status"]["state"] == "Running" and job["status"]["counters"].get("restarts"), seconds=60
    )
    assert len({pod["metadata"]["name"] for pod in strict.get("pods")} - first) == 1


async def test_a_job_keeps_the_rules_of_a_hardened_namespace(strict: Installation, played: Played) -> None:
    """User namespaces, read-only roots, own seccomp profiles, shared processes, no token, a class that never preempts.

    Falcon's containers keep what is demanded of every container, and leave the pod's own settings as they are.
    """
    meta = {"name": f"patient-{strict.namespace}"}
    patient = {"metadata": meta, "value": 10, "preemptionPolicy": "Never"}
    strict.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **patient})
    for manifest in _policy(strict.namespace, *LABELLED, *HARDENED):
        strict.apply(manifest)
    until(lambda: ROOT in _refusal(strict.api, strict.namespace, ROOT))
    job = _job(strict.namespace)
    pod = job["spec"]["template"]["spec"]
    pod |= {
        "hostUsers": False,
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "priorityClassName": meta["name"],
        "securityContext": {"seccompProfile": PROFILE},
    }
    for container in (*pod["containers"], *pod["initContainers"]):
        container["securityContext"] = {**RESTRICTED, "readOnlyRootFilesystem": True, "seccompProfile": PROFILE}
    strict.apply(job)
    await played.until(lambda job: job.get("status", {}).get("state") == "Running")
    for made in strict.get("pods"):
        spec = made["spec"]
        assert (spec["hostUsers"], spec["shareProcessNamespace"], spec["preemptionPolicy"]) == (False, True, "Never")
        profiles = {each["name"]: each["securityContext"]["seccompProfile"]["type"] for each in spec["initContainers"]}
        assert profiles == {
            "falcon-install": "RuntimeDefault",
            "falcon-agent": "RuntimeDefault",
            "mesh-proxy": "Localhost",
        }


async def test_a_pod_with_resources_of_its_own_keeps_a_minimum_for_each_container(
    strict: Installation, played: Played
) -> None:
    """Falcon's containers share what such a pod has; the namespace's minimum is then the API server's to give them."""
    change = json.dumps({"spec": {"limits": [{"type": "Container", "min": {"cpu": "50m", "memory": "128Mi"}}]}})
    strict.api.ok("kubectl", "-n", strict.namespace, "patch", "limitrange", "rules", "--type=merge", "-p", change)
    whole = {"cpu": "5", "memory": "4Gi"}
    job = _job(strict.namespace)
    job["spec"]["template"]["spec"]["resources"] = {"limits": whole, "requests": whole}
    strict.apply(job)
    await played.until(lambda job: job.get("status", {}).get("state") == "Running")
    for pod in strict.get("pods"):
        assert pod["spec"]["resources"]["requests"] == whole
        requests = {each["name"]: each["resources"]["requests"]["cpu"] for each in pod["spec"]["initContainers"]}
        assert (requests["falcon-install"], requests["falcon-agent"]) == ("50m", "50m")


@pytest.mark.parametrize(("scope", "counts"), [("NotTerminating", True), ("Terminating", False)])
async def test_a_quota_with_a_scope_is_met_where_it_is_about_the_jobs_pods(
    api: ApiServer, installation: Installation, scope: str, counts: bool
) -> None:
    """Without a limit for the agent's CPU, the first quota would refuse the pod. No training pod has a deadline."""
    meta = {"name": "scoped", "namespace": installation.namespace}
    quota = {"hard": {"limits.cpu": "32"}, "scopes": [scope]}
    installation.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": quota})
    job = _job(installation.namespace, replicas=1)
    trainer = job["spec"]["template"]["spec"]["containers"][0]
    trainer["resources"] = {
        "limits": LIMITED,
        "requests": {**LIMITED, "cpu": "1"},
    }  # in a Guaranteed pod all have limits
    add_node(installation, "w1", {})
    with controllers(api, "resourcequota-controller"):
        until(lambda: installation.get("resourcequotas")[0].get("status", {}).get("hard"))
        async with connected(api.kubeconfig, installation.namespace) as (kube, http):
            played = Played(installation.namespace, kube, http, "gpt2", schedules=True)
            installation.apply(job)
            await played.until(lambda job: job.get("status", {}).get("state") == "Running")
    [pod] = installation.get("pods")
    agent = next(each for each in pod["spec"]["initContainers"] if each["name"] == "falcon-agent")
    assert ("cpu" in agent["resources"]["limits"]) is counts


async def test_a_job_that_cannot_keep_a_rule_says_which_and_what_to_set(strict: Installation, played: Played) -> None:
    """And it goes on once the field is set, or the rule is another."""
    own = {"agent": {"resources": {"limits": {"memory": "100Mi"}}}}
    _set_quota(strict, pods="2")
    strict.apply(_job(strict.namespace, replicas=3, injected=own))
    job = await played.until(lambda job: _accepted(job).get("reason") == "InvalidSpec")
    found = _accepted(job)["message"]
    field = "spec.injected.agent.resources.limits.memory"
    assert f"{field}: LimitRange rules wants at least 128Mi in each container" in found
    assert "spec.replicas: ResourceQuota team allows 2 pods in the namespace, and the job has 3" in found
    assert strict.get("pods") == []
    strict.apply(_job(strict.namespace, replicas=3))
    played.kube.job_changed(strict.namespace, "gpt2", None)  # no watch of jobs runs here
    job = await played.until(lambda job: field not in _accepted(job).get("message", field))
    assert strict.get("pods") == []
    _set_quota(strict, pods="8")
    await played.until(lambda job: job["status"]["state"] == "Running", seconds=RULES_SECONDS + 60)


@pytest.mark.parametrize("counted", ["secrets", "services"])
async def test_a_quota_on_what_a_job_has_besides_its_pods_is_named_and_the_job_runs_when_it_is_raised(
    strict: Installation, played: Played, counted: str
) -> None:
    _set_quota(strict, **{counted: "0"})
    until(lambda: counted in strict.get("resourcequotas")[0].get("status", {}).get("hard", {}))
    strict.apply(_job(strict.namespace))
    refusal = f"exceeded quota: team, requested: {counted}=1, used: {counted}=0, limited: {counted}=0"
    await played.until(lambda job: refusal in _condition(job, "Ready").get("message", ""))
    assert strict.get("pods") == []
    _set_quota(strict, **{counted: "1"})
    await played.until(lambda job: job["status"]["state"] == "Running", seconds=90)


def _set_quota(strict: Installation, **hard: str) -> None:
    change = json.dumps({"spec": {"hard": hard}})
    strict.api.ok("kubectl", "-n", strict.namespace, "patch", "quota", "team", "--type=merge", "-p", change)


def _accepted(job: dict[str, Any]) -> dict[str, Any]:
    found = _condition(job, "Accepted")
    return found if found.get("status") == "False" else {}


def _condition(job: dict[str, Any], name: str) -> dict[str, Any]:
    return next((entry for entry in job.get("status", {}).get("conditions", []) if entry["type"] == name), {})
