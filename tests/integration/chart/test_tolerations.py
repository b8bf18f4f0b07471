"""Who may tolerate Falcon's taints, asked of a real kube-apiserver with the chart's policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.api.apiserver import ApiServer, running_apiserver
from tests.integration.chart.charts import CHART, NAMESPACE
from tests.integration.operator.cluster import until

CONTROLLER = "system:serviceaccount:kube-system:replicaset-controller"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:falcon"
SPARE = {"key": "falcon.dev/spare", "operator": "Exists", "effect": "NoSchedule"}
FENCED = {"key": "falcon.dev/fenced", "operator": "Equal", "value": "gpt2"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}
ALL = {"operator": "Exists"}
SAYS = "only Falcon places pods on spares and on fenced nodes"


def pod(namespace: str, *tolerations: dict[str, str]) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x:1"}], "tolerations": list(tolerations)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace}, "spec": spec}


def job(namespace: str, *tolerations: dict[str, str]) -> dict[str, Any]:
    template = {
        "spec": {
            "containers": [{"name": "trainer", "image": "x:1", "command": ["python3", "train.py"]}],
            "tolerations": list(tolerations),
        }
    }
    return {
        "apiVersion": "falcon.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt2", "namespace": namespace},
        "spec": {"replicas": 1, "template": template},
    }


def refusal(cluster: ApiServer, manifest: dict[str, Any], user: str, *, verb: str = "create") -> str:
    """Return why the user may not write the object on trial; "" if it may."""
    done = cluster.run("kubectl", verb, "--dry-run=server", "-f", "-", "--as", user, stdin=json.dumps(manifest))
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServer]:
    """Yield the installed chart, a team's namespace, one that is open, and a controller that makes pods and jobs."""
    with running_apiserver() as server:
        server.ok("helm", "install", "falcon", str(CHART), "-n", NAMESPACE, "--create-namespace")
        for namespace in ("team", "open"):
            server.ok("kubectl", "create", "namespace", namespace)
            server.ok("kubectl", "create", "serviceaccount", "default", "-n", namespace)
        server.ok("kubectl", "create", "serviceaccount", "default", "-n", NAMESPACE)
        server.ok("kubectl", "label", "namespace", "open", "falcon.dev/may-tolerate=")
        rights = ("--verb=get,create,update,patch", "--resource=pods,trainingjobs.falcon.dev")
        server.ok("kubectl", "create", "clusterrole", "makes-pods", *rights)
        server.ok("kubectl", "create", "clusterrolebinding", "makes-pods", "--clusterrole=makes-pods",
                  f"--user={CONTROLLER}")  # fmt: skip
        # the policy takes effect a moment after its installation
        until(lambda: SAYS in refusal(server, pod("team", SPARE), CONTROLLER))
        yield server


@pytest.mark.parametrize("tolerations", [(SPARE,), (FENCED,), (GPU, SPARE)], ids=["spare", "fenced", "among others"])
@pytest.mark.parametrize("made", [pod, job])
def test_pods_and_jobs_of_a_team_may_not(
    cluster: ApiServer, made: Any, tolerations: tuple[dict[str, str], ...]
) -> None:
    said = refusal(cluster, made("team", *tolerations), CONTROLLER)
    assert SAYS in said
    assert "kubectl label namespace NAME falcon.dev/may-tolerate=" in said


@pytest.mark.parametrize("made", [pod, job])
def test_other_tolerations_are_no_matter(cluster: ApiServer, made: Any) -> None:
    """A pod of each node tolerates all taints, and is seen where it runs."""
    for tolerations in ((), (GPU,), (ALL,)):
        assert refusal(cluster, made("team", *tolerations), CONTROLLER) == ""


@pytest.mark.parametrize("tolerations", [None, [{"key": None, "operator": "Exists"}], {}, "all", ["all"]])
def test_what_is_no_toleration_is_no_matter(cluster: ApiServer, tolerations: Any) -> None:
    """A chart's template often leaves a null. Falcon's operator judges what the API server keeps as it was written."""
    manifest = job("team")
    manifest["spec"]["template"]["spec"]["tolerations"] = tolerations
    assert refusal(cluster, manifest, CONTROLLER) == ""
    manifest["metadata"]["name"] = "kept"
    manifest["spec"]["suspend"] = True  # else its template does not change
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(manifest))
    found = json.loads(cluster.ok("kubectl", "get", "trainingjob", "kept", "-n", "team", "-o", "json"))
    found["metadata"]["labels"] = {"a": "b"}
    assert refusal(cluster, found, CONTROLLER, verb="replace") == ""
    found["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    assert SAYS in refusal(cluster, found, CONTROLLER, verb="replace")
    cluster.ok("kubectl", "delete", "trainingjob", "kept", "-n", "team")


def test_where_an_administrator_allows_it(cluster: ApiServer) -> None:
    for namespace in ("open", NAMESPACE):
        assert refusal(cluster, pod(namespace, SPARE), CONTROLLER) == ""
    assert refusal(cluster, job("open", SPARE), CONTROLLER) == ""


def test_the_operator_and_those_who_could_take_the_taint_away(cluster: ApiServer) -> None:
    of_a_job = pod("team", SPARE)
    owner = {"apiVersion": "falcon.dev/v1alpha1", "kind": "TrainingJob", "name": "gpt2", "uid": "u", "controller": True}
    of_a_job["metadata"] |= {"labels": {"falcon.dev/job": "gpt2"}, "ownerReferences": [owner]}
    assert refusal(cluster, of_a_job, OPERATOR) == ""
    cluster.ok("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod("team", SPARE)))


def test_a_pod_that_is_there_already_can_be_changed_and_gets_no_toleration_more(cluster: ApiServer) -> None:
    cluster.ok("kubectl", "create", "-f", "-", stdin=json.dumps(pod("team", SPARE)))
    found = json.loads(cluster.ok("kubectl", "get", "pod", "p", "-n", "team", "-o", "json"))
    found["metadata"]["labels"] = {"a": "b"}
    assert refusal(cluster, found, CONTROLLER, verb="replace") == ""
    found["spec"]["tolerations"].append(FENCED)
    assert SAYS in refusal(cluster, found, CONTROLLER, verb="replace")
