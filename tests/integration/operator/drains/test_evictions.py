"""The webhook on evictions, asked by a real API server, with the operator as a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation, Operator, a_job, until
from tests.integration.operator.played import add_node, running_status
from tests.integration.ports import free_port

CONFIGURATION = "falcon-webhook"


def register(installation: Installation, port: int) -> None:
    """Register a webhook on this machine, as the chart registers the operator's Service."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"]}
    webhook = {
        "name": "evictions.falcon.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 1,
        "rules": [rule],
        "clientConfig": {"url": f"https://localhost:{port}/evictions"},
    }
    manifest = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [webhook],
    }
    installation.apply(manifest)


class Site:
    """An installation whose API server asks one replica; a Service would choose between all."""

    def __init__(self, installation: Installation) -> None:
        self.api = installation.api
        self.installation = installation
        self.port = free_port()
        register(installation, self.port)

    def operator(self, name: str, port: int) -> Operator:
        return self.installation.operator(
            name, FALCON_WEBHOOK_CONFIGURATION=CONFIGURATION, FALCON_WEBHOOK_NAMES="localhost",
            FALCON_WEBHOOK_PORT=str(port),
        )  # fmt: skip

    def bundle(self) -> str:
        """Return the authority that the API server trusts for the webhook."""
        found = self.installation.get("validatingwebhookconfiguration", CONFIGURATION)
        return str(found["webhooks"][0]["clientConfig"].get("caBundle", ""))

    def run_a_pod(self, node: str) -> str:
        """Play scheduler and kubelet for the job's only pod; return its name."""
        self.installation.apply(a_job(self.installation.namespace))
        (pod,) = until(lambda: self.installation.get("pods"))
        name = str(pod["metadata"]["name"])
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        where = f"/api/v1/namespaces/{self.installation.namespace}/pods/{name}"
        body = json.dumps({**binding, "target": {"kind": "Node", "name": node}})
        self.api.ok("kubectl", "create", "--raw", f"{where}/binding", "-f", "-", stdin=body)
        self.installation.patch_status("pod", name, running_status())
        return name

    def evict(self, pod: str) -> str:
        """Ask for the pod's eviction on trial; return what it is refused with, "" where it is admitted."""
        namespace = self.installation.namespace
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"dryRun": ["All"]},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        done: subprocess.CompletedProcess[str] = self.api.run(
            "kubectl", "create", "--raw", path, "-f", "-", stdin=json.dumps(eviction)
        )
        return done.stderr if done.returncode else ""

    def refuses(self, pod: str) -> Callable[[], bool]:
        return lambda: "and trains until then" in self.evict(pod)


@pytest.fixture
def site(api: ApiServer, installation: Installation) -> Iterator[Site]:
    add_node(installation, "w1", {})
    yield Site(installation)
    api.run("kubectl", "delete", "validatingwebhookconfiguration", CONFIGURATION)


def test_an_eviction_waits_only_while_an_operator_lives_and_the_node_is_being_emptied(site: Site) -> None:
    operator = site.operator("op-a", site.port)
    site.installation.start_etcd()
    pod = site.run_a_pod("w1")
    until(site.bundle)
    assert site.evict(pod) == "", "the node stays in use"
    site.api.ok("kubectl", "cordon", "w1")
    until(site.refuses(pod))
    assert "(TooManyRequests)" in site.evict(pod), "by which kubectl drain knows that it is to ask again"
    assert "falcon_evictions_total" in operator.get("/metrics")
    operator.kill()
    assert site.evict(pod) == "", "no operator runs"


def test_a_pod_that_is_not_ready_and_one_of_another_workload_may_go(site: Site) -> None:
    site.operator("op-a", site.port)
    site.installation.start_etcd()
    pod = site.run_a_pod("w1")
    other = {"name": "other", "namespace": site.installation.namespace}
    spec = {"containers": [{"name": "c", "image": "x:1"}], "nodeName": "w1"}
    site.installation.apply({"apiVersion": "v1", "kind": "Pod", "metadata": other, "spec": spec})
    site.installation.patch_status("pod", "other", running_status())
    site.api.ok("kubectl", "cordon", "w1")
    until(site.bundle)
    until(site.refuses(pod))
    assert site.evict("other") == ""
    status: dict[str, Any] = running_status()
    status["containerStatuses"][0]["ready"] = False
    site.installation.patch_status("pod", pod, status)
    assert site.evict(pod) == ""


@pytest.mark.slow  # the first shows that a leader answers
def test_a_replica_that_only_stands_by_answers_in_the_same_way(site: Site) -> None:
    leader = site.operator("op-a", free_port())
    site.installation.start_etcd()
    pod = site.run_a_pod("w1")
    site.api.ok("kubectl", "cordon", "w1")
    until(site.bundle)
    standby = site.operator("op-b", site.port)
    until(site.refuses(pod))
    assert standby.metric("falcon_leading") == 0.0
    leader.terminate()
    assert site.refuses(pod)(), "the standby is about to lead"
