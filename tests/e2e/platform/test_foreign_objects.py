"""A job under a name that a person's Service has, and a job whose template has null fields."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, condition, training_job

SECONDS = 60


def service(name: str, spec: Json) -> Json:
    """Build a person's Service."""
    ports = [{"port": 80}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": ports, **spec}}


@pytest.mark.parametrize(
    "address", [pytest.param("None", id="headless", marks=pytest.mark.long), pytest.param(None, id="with-an-address")]
)
def test_a_persons_service_is_untouched_and_the_job_starts_without_it(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], address: str | None
) -> None:
    fixed = {"clusterIP": address} if address else {}
    namespace.apply(service("gpt", {"selector": {"app": "theirs"}, **fixed}))
    before = namespace.get("service", "gpt")
    job = start(training_job("gpt", steps=100_000))
    # The operator writes the two conditions one after the other.
    taken = ("Ready", "ReconcileFailed")
    status = job.wait(
        "it names the Service",
        lambda found: all(condition(found, each).get("reason") == "NameTaken" for each in taken),
        SECONDS,
    )
    assert "/gpt exists and is not this job's" in condition(status, "Ready")["message"]
    assert (job.pods(), status["state"]) == ([], "Pending")
    assert namespace.get("secret", "gpt-falcon-gateway") is None
    assert namespace.get("service", "gpt") == before
    namespace.run("delete", "service", "gpt")
    job.wait("it trains", lambda s: s.get("state") == "Running", SECONDS)
    job.wait("nothing fails any more", lambda s: condition(s, "ReconcileFailed").get("status") == "False", SECONDS)


class Creating(Kubectl):
    """``kubectl create``: ``kubectl apply`` leaves nulls out by itself, Helm does not."""

    def apply(self, *objects: Json) -> None:
        for each in objects:
            self.run("create", "-f", "-", stdin=json.dumps(each))


@pytest.mark.long  # unit/operator/api/test_null_fields renders each replacement
def test_a_job_with_null_fields_replaces_a_pod(nodes: None, namespace: Kubectl) -> None:
    manifest = training_job("nulls", steps=100_000)
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    pod["affinity"] = {"nodeAffinity": None, "podAntiAffinity": None}
    job = Job(Creating(namespace.kubeconfig, namespace.namespace), manifest)
    try:
        assert job.get()["spec"]["template"]["spec"]["affinity"] == pod["affinity"]
        job.wait("it trains", lambda s: s.get("state") == "Running", SECONDS)
        lost, generation = job.member(1), job.generation()
        job.kubectl.run("delete", "pod", lost["podName"], "--grace-period=0", "--force")
        job.wait(
            "it trains with another pod",
            lambda s: s.get("state") == "Running" and job.generation() > generation,
            SECONDS,
        )
        assert job.member(1)["podUid"] != lost["podUid"]
    finally:
        job.delete()
